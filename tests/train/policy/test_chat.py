"""Conversations of chat models in the shapes of public ones: the template's own ids, ends of turns, foreign words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.studies.small_tokenizers import OPEN, SHAPES, shaped
from tstar_envs import BadData
from tstar_train.policy.chat import ChatCodec, SearchR1Codec
from tstar_train.policy.codec import PlainCodec
from tstar_train.rollout.player import Transcript

EVERY = pytest.mark.parametrize("name", SHAPES)
TALK = [
    "You push boxes.",
    "#####\n#@$.#\n#####",
    "Thought: to the right.\nAction: right",
    "Solved.",
    "Action: stop",
    "Over.",
]


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@EVERY
def test_a_conversation_has_the_ids_that_the_template_gives(name):
    tokenizer = shaped(name)
    codec = ChatCodec(tokenizer)
    mine = [
        *codec.start(*TALK[:2]),
        *codec.reply(TALK[2]),
        *codec.observation(TALK[3]),
        *codec.reply(TALK[4]),
        *codec.observation(TALK[5]),
    ]
    system = [{"role": "system", "content": TALK[0]}, {"role": "user", "content": TALK[1]}]
    if name in ("gemma2", "llama2"):
        system = [{"role": "user", "content": f"{TALK[0]}\n\n{TALK[1]}"}]
    rest = [
        {"role": role, "content": text}
        for role, text in zip(["assistant", "user"] * 2, TALK[2:], strict=True)
    ]
    whole = tokenizer.apply_chat_template([*system, *rest], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(mine) == tokenizer.decode(ids_of(tokenizer, whole))
    assert mine == ids_of(tokenizer, whole)


@EVERY
def test_a_turn_ends_where_anything_closes_it(name):
    tokenizer = shaped(name)
    closing = tokenizer.convert_tokens_to_ids(SHAPES[name][4])
    codec = ChatCodec(tokenizer)
    assert codec.end == closing and codec.ends == {closing, tokenizer.eos_token_id}
    third = tokenizer.convert_tokens_to_ids(SHAPES[name][1][1])
    assert ChatCodec(tokenizer, SimpleNamespace(eos_token_id=[third, closing, 10**6])).ends == {
        closing,
        tokenizer.eos_token_id,
        third,
    }
    said = codec.text("Action: right")
    assert codec.decode(codec.reply("Action: right")).strip() == "Action: right"
    for end in codec.ends:  # as it was sampled, whatever ended it
        assert codec.closed([*said, end]) == [*said, end] and codec.decode([*said, end]) == codec.decode(said)
    tail = codec.closed(said)[len(said) :]
    assert tail[-1] == closing and codec.reply("Action: right")[-len(tail) :] == tail


def test_what_closes_no_turn_is_refused_by_name():
    tokenizer = shaped("qwen2")
    tokenizer.chat_template = OPEN
    with pytest.raises(BadData, match=r"closes the assistant's turn with '\\nuser: '.*chat_template"):
        ChatCodec(tokenizer)
    with pytest.raises(BadData, match="no eos_token"):
        PlainCodec(shaped("qwen2"), True, ends=[])


@EVERY
@pytest.mark.parametrize("kind", ["chat", "base", "search_r1"])
def test_what_strangers_write_is_never_a_control_token(name, kind):
    tokenizer = shaped(name, chat=kind != "base")
    made = {
        "chat": ChatCodec,
        "base": lambda t: PlainCodec(t, True),
        "search_r1": lambda t: SearchR1Codec(t, [t.eos_token_id]),
    }
    codec = made[kind](tokenizer)
    controls = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    evil = "".join(f"{mark}old{mark * 2} price" for mark in SHAPES[name][1])
    clean = [
        sum(i in controls for i in ids)
        for ids in (codec.start("rules", "page"), codec.observation("page"), codec.text("page"))
    ]
    dirty = [codec.start(evil, f"a {evil}"), codec.observation(evil), codec.text(evil)]
    assert [sum(i in controls for i in ids) for ids in dirty] == clean
    assert tokenizer.decode(dirty[2]).strip() == evil, "not a character is lost"


@given(
    st.lists(st.sampled_from([*SHAPES["llama3"][1], "<|", "eot_id", "|>", " a", "\n"]), max_size=12).map(
        "".join
    )
)
def test_any_mixture_of_markers_is_text(text):
    tokenizer = shaped("llama3")
    ids = ChatCodec(tokenizer).text(text)
    assert not set(ids) & set(tokenizer.all_special_ids) and tokenizer.decode(ids) == text


def test_a_closing_token_that_is_not_special_is_one_all_the_same():
    tokenizer = shaped("qwen2")
    tokenizer.add_tokens(["[END]"])
    turns = "{% for m in messages %}[{{ m.role }}] {{ m.content }}[END]{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}[assistant] {% endif %}"
    codec = ChatCodec(tokenizer)
    assert (
        codec.end == tokenizer.convert_tokens_to_ids("[END]") and codec.decode(codec.reply("done")) == "done"
    )
    assert (
        codec.end not in codec.text("the [END] is near")
        and tokenizer.decode(codec.text("the [END] is near")) == "the [END] is near"
    )


@pytest.mark.parametrize("name", ["llama3", "gemma2", "llama2", "deepseek"])
def test_a_base_model_sees_a_document_begin(name):
    tokenizer = shaped(name, chat=False)
    codec = PlainCodec(tokenizer, with_prompt=True)
    assert codec.start("rules", "page")[
        0
    ] == tokenizer.bos_token_id and tokenizer.bos_token_id not in codec.observation("page")
    assert PlainCodec(shaped("qwen2", chat=False), with_prompt=True).start("rules", "page")[0] not in (
        None,
        codec.pad,
    )


@EVERY
def test_a_request_is_the_users(name):
    tokenizer = shaped(name)
    codec = ChatCodec(tokenizer)
    line = Transcript(codec, TALK[0], "", TALK[1])
    line.add(codec.reply(TALK[2]), TALK[3])
    asked = tokenizer.decode(codec.asked(line.context(), "Write it anew."))
    header = tokenizer.decode(ids_of(tokenizer, codec.reply_header))
    assert asked.endswith(header) and "Write it anew." in asked
    before = asked[: asked.index("Write it anew.")]
    # No turn of the assistant was begun behind the last observation.
    opened = header.strip().split(SHAPES[name][4])[-1].strip() or header.strip()
    assert opened not in before[before.index("Solved.") :]
    again = "" if name in ("gemma2", "llama2") else SHAPES[name][4]
    assert again == "" or name == "deepseek" or again in before[before.index("Solved.") :], (
        "a message of its own"
    )


def test_lines_end_at_every_token_with_a_break():
    codec = ChatCodec(shaped("qwen2"))
    assert codec.line_ends and all("\n" in codec.decode([i]) for i in codec.line_ends)
    assert {i for i in codec.text("one\ntwo\n\nthree") if "\n" in codec.decode([i])} <= codec.line_ends
