"""What of a model's answer is played, recorded and sent back: in parts, with thoughts apart, with calls in many forms, broken, endless."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import Body, Raw, completion, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from linear import require_linear
from test_chat_agents import _call, play

from tstar_envs import find_entry, parse_reply
from tstar_envs.agents.answers import Unreadable, error_in, parse_body, read_answer, written_calls
from tstar_envs.agents.base import ENDPOINT, UNPARSED, EndpointError
from tstar_envs.agents.endpoint import Dialect, Endpoint, Refusal
from tstar_envs.agents.llm import Conversation, calls_in
from tstar_envs.cli.console import make_env
from tstar_envs.redaction import encodable, encodable_parts, printable
from tstar_envs.tools import inert, reply_to_call

pytest.importorskip("aiohttp")
JSON = {"Content-Type": "application/json"}
UP = _call("c1", "move", '{"direction": "Up"}')


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tstar_envs.agents.endpoint.FIRST_WAIT", 0.01)


def body(message: Any, **choice: Any) -> Raw:
    content = {"choices": [{"index": 0, "finish_reason": "stop", "message": message, **choice}]}
    return Raw(body=json.dumps(content).encode(), headers=JSON)


@pytest.mark.parametrize(
    "own",
    [
        {"reasoning_content": "I think."},  # DeepSeek, Kimi
        {
            "reasoning": "I think.",
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}],
        },  # OpenRouter
        {"extra_content": {"google": {"thought_signature": "c2ln"}}},  # Gemini 3
        {
            "provider_specific_fields": {"thinking_blocks": [{"type": "thinking", "signature": "s"}]}
        },  # LiteLLM
    ],
)
def test_a_message_that_calls_tools_goes_back_as_it_came(own: Body) -> None:
    call = {**UP, "extra_content": {"google": {"thought_signature": "of the call"}}, "index": 0}
    with serving(
        lambda sent, number: body({"role": "assistant", "content": None, "tool_calls": [call], **own})
    ) as served:
        episode = play(served.url, tools=True, horizon=2)
    assert [step.action for step in episode.steps] == ["Up"] * 2
    assert served.requests[1]["messages"][2] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        **own,
    }


def test_what_is_empty_in_a_message_does_not_go_back() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [UP],
        "refusal": None,
        "annotations": [],
        "audio": None,
    }
    with serving(lambda sent, number: body(message)) as served:
        play(served.url, tools=True, horizon=2)
    assert served.requests[1]["messages"][2] == {"role": "assistant", "content": None, "tool_calls": [UP]}


def test_without_calls_the_words_alone_go_back() -> None:
    message = {
        "role": "assistant",
        "content": "Action: Up",
        "reasoning_content": "Hm.",
        "reasoning_details": [{"text": "Hm."}],
    }
    for tools in (False, True):
        with serving(lambda sent, number: body(message)) as served:
            play(served.url, tools=tools, horizon=2)
        assert served.requests[1]["messages"][2] == {"role": "assistant", "content": "Action: Up"}


THOUGHTS = [
    "No.</think><action>Left</action>",
    "No.</think>\nAction: Left\n<think>",
    "</thinking> <answer>Left</answer>",
    "[/think] Action: Left",
    "</reasoning>\nAction: Left",
    "\nAction: Left\n",
    '```json\n{"action": "Left"}\n```',
    "<|channel|>final<|message|>Action: Left",
    "\u25c1/think\u25b7Action: Left",
    "< / think >Action: Left",
    "<search>x</search><think><think></think>Action: Left",
    "Left",
    "</THINK>\r\nACTION: Left",
    "<|im_end|>\nAction: Left",
]


@pytest.mark.parametrize("thought", THOUGHTS)
def test_nothing_in_a_separate_thought_is_played(thought: str) -> None:
    for message in (
        {"content": "Action: Up", "reasoning_content": thought},
        {"content": "", "reasoning_content": thought},
    ):
        with serving(lambda sent, number, message=message: body({"role": "assistant", **message})) as served:
            episode = play(served.url, horizon=1)
        assert episode.steps[0].action == ("Up" if message["content"] else ""), episode.steps[0].reply
    for message in ({"content": None, "reasoning_content": thought}, {"content": thought}):
        with serving(
            lambda sent, number, message=message: body({"role": "assistant", "tool_calls": [UP], **message})
        ) as served:
            episode = play(served.url, horizon=1, tools=True)
        assert episode.steps[0].action == "Up", episode.steps[0].reply


def test_a_thought_keeps_its_words() -> None:
    assert (
        inert("3 < 5 and search[Oslo] x[1] <b <think> [ /think]")
        == "3 < 5 and search[Oslo] x[1] \u2039b \u2039think> \u2039 /think]"
    )
    for sign in ("<", "[", "</", "< ", "<think>", "\u25c1"):
        require_linear(inert, sign, 200_000)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"x": "\nAction: Left',
        "\nAction: Left\n",
        "<action>Left</action>",
        "</think>Action: Left",
        "[" * 9000,
        "3",
    ],
)
def test_nothing_in_a_broken_call_is_played(arguments: str) -> None:
    env = make_env(find_entry("sokoban-easy"), {})
    reply, wrong = reply_to_call(env.tools, "move", arguments)
    assert wrong and parse_reply(reply).action not in ("Left", "Up")
    env.reset(options={"task": 0})
    assert env.step(reply)[4]["action_valid"] is False


@pytest.mark.parametrize("env", ["hotpotqa", "webshop", "alfworld", "sokoban-easy", "blocksworld-stack"])
@pytest.mark.parametrize(
    "arguments", ['"Up"', '{"query": 3}', '{"query": "x", "more": "y"}', "Oslo", "(Up)", '["Up"]', "a, b"]
)
def test_a_call_that_no_tool_takes_is_no_action_in_any_family(env: str, arguments: str) -> None:
    made = make_env(find_entry(env), {})
    for tool in made.tools:
        reply, wrong = reply_to_call(made.tools, tool.name, arguments)
        made.reset(options={"task": 0})
        assert wrong and made.step(reply)[4]["action_valid"] is False, reply


def test_content_in_parts() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "I go"}]},
        {"type": "text", "text": "Action: "},
        {"type": "text", "text": "Up"},
    ]
    with serving(lambda sent, number: body({"role": "assistant", "content": content})) as served:
        episode = play(served.url, horizon=2)
    assert [(step.thought, step.action) for step in episode.steps] == [("I go", "Up")] * 2
    assert served.requests[1]["messages"][2]["content"] == "Action: Up"


@pytest.mark.parametrize(
    "content",
    [
        ["Action: Up"],
        [{"text": "Action: Up"}],
        [{"type": "output_text", "text": "Action: Up"}, {"type": "image"}],
    ],
)
def test_parts_of_other_kinds(content: Any) -> None:
    assert read({"content": content}).text == "Action: Up"


def read(message: Any, **more: Any) -> Any:
    return read_answer({"choices": [{"message": message}], **more}, "act", 1, 0.1)


CALLS = [
    _call("c", "move", {"direction": "Up"}),  # type: ignore[arg-type]
    _call("c", "move", '{"direction":"up"}'),
    _call("c", "move", '{"direction":" UP "}'),
    {"function": {"name": "move", "arguments": '{"direction":"Up"}'}},
    {"id": 7, "type": "function", "function": {"name": "move", "arguments": {"direction": "up"}}},
]


@pytest.mark.parametrize("call", CALLS)
def test_calls_in_the_forms_that_servers_give_them(call: Body) -> None:
    with serving(
        lambda sent, number: body({"role": "assistant", "content": None, "tool_calls": [call]})
    ) as served:
        episode = play(served.url, tools=True, horizon=2)
    assert [step.action for step in episode.steps] == ["Up"] * 2
    answer, result = served.requests[1]["messages"][2:4]
    (sent,) = answer["tool_calls"]
    assert isinstance(sent["id"], str) and sent["id"] == result["tool_call_id"] and sent["type"] == "function"
    assert json.loads(sent["function"]["arguments"])["direction"].strip().lower() == "up"


WRITTEN = [
    '<tool_call>\n{"name": "move", "arguments": {"direction": "Up"}}\n</tool_call>',
    'I go.\n<tool_call>{"name": "move", "arguments": "{\\"direction\\": \\"Up\\"}"}',
    "<tool_call>\n<function=move>\n<parameter=direction>\nUp\n</parameter>\n</function>\n</tool_call>",
    '[TOOL_CALLS][{"name": "move", "arguments": {"direction": "Up"}}]',
    '[TOOL_CALLS]move[ARGS]{"direction": "Up"}',
    '<|python_tag|>{"name": "move", "parameters": {"direction": "up"}}',
    # GLM, MiniMax, DeepSeek V3.2, V3.1 and V3, Kimi, Seed-OSS, Llama 3.1 and 4, Granite, Phi, LFM, Command A, InternLM, Nemotron,
    # Jamba, Hunyuan, Gemma, gpt-oss.
    "<tool_call>move\n<arg_key>direction</arg_key>\n<arg_value>Up</arg_value>\n</tool_call>",
    "<tool_call>move<arg_key>direction</arg_key><arg_value>Up</arg_value></tool_call>",
    '<minimax:tool_call>\n<invoke name="move">\n<parameter name="direction">Up</parameter>\n</invoke>\n</minimax:tool_call>',
    '<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="move">\n<\uff5cDSML\uff5cparameter name="direction" string="true">Up'
    "</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5cfunction_calls>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>move<\uff5ctool\u2581sep\uff5c>"
    '{"direction": "Up"}<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>',
    "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>move\n```json\n"
    '{"direction": "Up"}\n```<\uff5ctool\u2581call\u2581end\uff5c>',
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.move:0<|tool_call_argument_begin|>"
    '{"direction": "Up"}<|tool_call_end|><|tool_calls_section_end|>',
    "<seed:tool_call>\n<function=move>\n<parameter=direction>Up</parameter>\n</function>\n</seed:tool_call>",
    '<function=move>{"direction": "Up"}</function>',
    '[move(direction="Up")]',
    '<|tool_call|>[{"name": "move", "arguments": {"direction": "Up"}}]',
    '<|tool_call|>[{"name": "move", "arguments": {"direction": "Up"}}]<|/tool_call|>',
    "I go.<|tool_call_start|>[move(direction='Up')]<|tool_call_end|>",
    '<|START_THINKING|>x<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "move", "parameters": {"direction": "Up"}}]'
    "<|END_ACTION|>",
    '<|action_start|><|plugin|>\n{"name": "move", "parameters": {"direction": "Up"}}<|action_end|>',
    '<TOOLCALL>[{"name": "move", "arguments": {"direction": "Up"}}]</TOOLCALL>',
    '<tool_calls>[{"name": "move", "arguments": {"direction": "Up"}}]</tool_calls>',
    '<tool_calls><tool_call>move\n```json\n{"direction": "Up"}\n```\n</tool_call></tool_calls>',
    '```tool_code\nmove(direction="Up")\n```',
    '```json\n{"name": "move", "arguments": {"direction": "Up"}}\n```',
    "<|channel|>analysis<|message|>to=functions.move Left<|end|><|start|>assistant<|channel|>commentary to=functions.move "
    '<|constrain|>json<|message|>{"direction": "Up"}<|call|>',
    '<|start|>assistant to=functions.move<|channel|>commentary json<|message|>{"direction": "Up"}<|call|>',
    '{"name": "move", "parameters": {"direction": "Up"}}',
    '<think>Perhaps <tool_call>{"name": "move", "arguments": {"direction": "Left"}}</tool_call>?</think>'
    '<tool_call>{"name": "move", "arguments": {"direction": "Up"}}</tool_call>',
]


@pytest.mark.parametrize("text", WRITTEN)
def test_calls_that_were_left_in_the_text_are_played(text: str) -> None:
    with serving(lambda sent, number: text) as served:
        episode = play(served.url, tools=True, horizon=2)
    assert [step.action for step in episode.steps] == ["Up"] * 2
    answer, observed = served.requests[1]["messages"][2:4]
    assert answer == {"role": "assistant", "content": text} and observed == {
        "role": "user",
        "content": episode.steps[0].observation,
    }


def test_what_only_looks_like_a_call_is_none() -> None:
    for text in (
        '{"name": "Oslo", "arguments": {}}',
        "<tool_call>",
        "<tool_call>{",
        "[TOOL_CALLS]",
        '{"name": 3}',
        "[[[[",
        "move",
        "fly(direction='Up')",
        "<invoke name=",
        "<function=>",
        "<\uff5ctool\u2581call\u2581begin\uff5c>",
        "",
    ):
        assert written_calls(text, ["move"]) == ()
    for sign in (
        "<tool_call>",
        "[TOOL_CALLS]",
        "{",
        " ",
        "<function=",
        "[ARGS]",
        "<invoke name=",
        "<arg_key>",
        "move(a='",
        "to=functions.a<|",
    ):
        require_linear(lambda text: written_calls(text, ["move"]), sign, 50_000)


CALLED = {"name": "move", "arguments": '{"direction": "Up"}'}


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [{"id": "1", "function": {**CALLED, "arguments": json.dumps(CALLED["arguments"])}}]},
        {"tool_calls": [{"id": "1", "function": {**CALLED, "name": "functions.move"}}]},
        {"tool_calls": [{"id": "1", "function": {**CALLED, "name": "Move"}}]},
        {"tool_calls": [{"id": "1", "function": {**CALLED, "name": "move<|channel|>commentary"}}]},
        {"tool_calls": [{"id": "1", "function": {**CALLED, "arguments": '{"direction": "Up"}</tool_call>'}}]},
        {
            "tool_calls": [
                {"id": "1", "function": {**CALLED, "arguments": '```json\n{"direction": "Up"}\n```'}}
            ]
        },
        {"tool_calls": {"id": "1", "type": "function", "function": CALLED}},
        {"tool_calls": [CALLED]},
        {"function_call": CALLED},
    ],
)
def test_calls_in_other_shapes_are_played_and_answered(message: Body) -> None:
    with serving(lambda sent, number: completion({"content": None, **message})) as served:
        episode = play(served.url, tools=True, horizon=2)
    assert [step.action for step in episode.steps] == ["Up"] * 2
    answer, result = served.requests[1]["messages"][2:4]
    (sent,) = answer["tool_calls"]
    assert sent["id"] == result["tool_call_id"] and isinstance(sent["function"]["name"], str)
    assert "function_call" not in answer and json.loads(sent["function"]["arguments"]) is not None


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": {"value": "Action: Up"}}],
        [{"type": "text", "text": "Action: Left", "thought": True}, {"type": "text", "text": "Action: Up"}],
    ],
)
def test_words_in_other_shapes_are_played(content: Any) -> None:
    with serving(lambda sent, number: completion({"content": content})) as served:
        assert [step.action for step in play(served.url, horizon=1).steps] == ["Up"]


def test_a_call_in_a_thought_that_was_cut_off_is_not_played() -> None:
    for opening in ("<think>\n", "<|START_THINKING|>", "<|channel|>analysis<|message|>", "analysisWe "):
        assert calls_in(opening + WRITTEN[0], ["move"]) == ()


def test_a_bad_call_in_the_text_says_why_in_the_users_turn() -> None:
    text = '<tool_call>{"name": "fly", "arguments": {}}</tool_call>'
    with serving(lambda sent, number: text) as served:
        episode = play(served.url, tools=True, horizon=2)
    assert episode.steps[0].action_valid is False
    assert served.requests[1]["messages"][3]["content"].startswith("Error: there is no tool 'fly'")


BAD = [
    {"choices": [{"message": 3}]},
    {"choices": [{"message": ["Action: Up"]}]},
    {"choices": [{"message": "Action: Up"}]},
    {"choices": [3]},
    {"choices": {"0": {}}},
    {"choices": [{"message": {"content": {"text": "Action: Up"}}}]},
    {"choices": [{"message": {"content": None, "tool_calls": 3}}]},
    {"choices": [{"message": {"content": None, "tool_calls": [3]}}]},
    {"choices": [{"message": {"content": None, "tool_calls": [{"function": "move"}]}}]},
    {"choices": [{"message": {"content": None, "tool_calls": [{"function": {"name": 3}}]}}]},
    {"choices": [{"message": {"content": None, "tool_calls": {"id": "c"}}}]},
]


@pytest.mark.parametrize("bad", BAD)
def test_a_message_that_is_none_is_the_endpoints_fault(bad: Body) -> None:
    raw = Raw(body=json.dumps(bad).encode(), headers=JSON)
    with serving(lambda sent, number: raw) as served:
        episode = play(served.url, retries=1, tools=True)
    assert (
        (episode.ended, episode.failure) == ("error", ENDPOINT)
        and "an unreadable answer" in episode.error
        and len(served.requests) == 2
    )


def test_nesting_without_end_is_the_endpoints_in_an_answer_and_the_models_in_a_call() -> None:
    deep = Raw(body=b'{"choices": ' + b"[" * 100_000, headers=JSON)
    with serving(lambda sent, number: deep) as served:
        assert play(served.url, retries=0).failure == ENDPOINT
    call = _call("c", "move", '{"direction": ' + "[" * 5000)
    with serving(
        lambda sent, number: body({"role": "assistant", "content": None, "tool_calls": [call]})
    ) as served:
        episode = play(served.url, tools=True, horizon=2)
    assert episode.ended == "truncated" and not any(step.action_valid for step in episode.steps)


def test_an_answer_without_end_is_given_up_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSTAR_MAX_MODEL_REPLY_BYTES", "200000")
    with serving(lambda sent, number: completion("x" * 300_000)) as served:
        episode = play(served.url, retries=0)
    assert (
        episode.failure == ENDPOINT
        and "TSTAR_MAX_MODEL_REPLY_BYTES" in episode.error
        and "200,000 bytes" in episode.error
    )
    with serving(lambda sent, number: completion("x" * 100_000)) as served:
        assert play(served.url, horizon=1).failure == UNPARSED


@pytest.mark.parametrize("count", [10**400, 10**12, -5, "12", True, [1], 2.5])
def test_counts_that_cannot_be_meant_are_unknown(count: Any) -> None:
    message = {"role": "assistant", "content": "Action: Up"}
    raw = Raw(
        body=json.dumps(
            {
                "choices": [{"message": message}],
                "usage": {
                    "prompt_tokens": count,
                    "completion_tokens": count,
                    "prompt_tokens_details": {"cached_tokens": count},
                },
            }
        ).encode(),
        headers=JSON,
    )
    with serving(lambda sent, number: raw) as served:
        episode = play(served.url, horizon=1)
    assert not {"input_tokens", "output_tokens", "cached_tokens"} & episode.calls[0].keys()
    assert read(message, usage={"prompt_tokens": 7.0, "completion_tokens": 0}).call.input_tokens == 7
    for usage in (3, [], "x", None):
        assert read(message, usage=usage).call.input_tokens is None


def test_half_a_surrogate_pair_is_replaced_when_it_is_read_and_before_it_is_sent() -> None:
    half = Raw(
        body=b'{"choices": [{"message": {"role": "assistant", "content": "Action: Up \\ud83d", "reasoning_content": "\\ude00"}}]}',
        headers=JSON,
    )
    with serving(lambda sent, number: half) as served:
        episode = play(served.url, horizon=2)
    assert episode.ended == "truncated" and [step.reply[-1] for step in episode.steps] == ["\ufffd"] * 2

    async def ask(endpoint: Endpoint) -> str:
        try:
            asked = [{"role": "user", "content": "a passage with \udc00 in it"}]
            return (await endpoint.ask(asked, "act", max_tokens=5, user="\ud800")).text
        finally:
            await endpoint.close()

    with serving(lambda sent, number: "fine") as served:
        assert asyncio.run(ask(Endpoint("m", served.url, retries=0))) == "fine"
    assert (
        served.requests[0]["messages"][0]["content"] == "a passage with \ufffd in it"
        and served.requests[0]["user"] == "\ufffd"
    )


def test_foreign_text_has_one_form() -> None:
    assert (
        encodable("\ud83d\ude00") == "\U0001f600"
        and encodable("a\ud83db\ude00") == "a\ufffdb\ufffd"
        and encodable("\ufeffé") == "\ufeffé"
    )
    assert encodable_parts({"\ud800": ["\ud800", {"a": 3}]}) == {"\ufffd": ["\ufffd", {"a": 3}]}
    assert printable("a\x1b[31m\x00\x9b\u202e\tb\nc") == "a\ufffd[31m\ufffd\ufffd\ufffd\tb\nc"


@pytest.mark.parametrize("content", ["", None, "  \n"])
def test_an_answer_without_a_word_is_no_empty_message(content: str | None) -> None:
    with serving(lambda sent, number: body({"role": "assistant", "content": content})) as served:
        play(served.url, horizon=2)
    assert served.requests[1]["messages"][2] == {"role": "assistant", "content": "(no text)"}


def test_a_stream_that_was_not_asked_for() -> None:
    def events(*chunks: Any, end: str = "data: [DONE]\n\n") -> bytes:
        return (
            "".join(f": keep-alive\r\n\r\nevent: x\r\ndata: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)
            + end
        ).encode()

    def delta(**fields: Any) -> Body:
        return {"choices": [{"index": 0, "delta": fields}]}

    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "move", "arguments": '{"dir'}}
    rest = {"index": 0, "function": {"arguments": 'ection": "Up"}'}}
    chunks = [
        delta(role="assistant", reasoning_content="I "),
        delta(reasoning_content="go.\u2028"),
        delta(tool_calls=[call]),
        delta(tool_calls=[rest]),
    ]
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    answer = read_answer(parse_body(events(*chunks, usage), True), "act", 1, 0.1)
    assert answer.reasoning == "I go.\u2028" and answer.tool_calls == (("c", "move", '{"direction": "Up"}'),)
    assert (answer.call.input_tokens, answer.call.output_tokens) == (3, 4)
    with pytest.raises(Unreadable, match="broke off"):
        parse_body(events(delta(content="Action: "), end=""), True)
    for broken in (b"data: {\n\n", b"data: 3\n\n", b"data: [DONE]"):
        with pytest.raises(Unreadable):
            read_answer(parse_body(broken, True), "act", 1, 0.1)
    whole = Raw(
        body=events(delta(content="Action: "), delta(content="Up"), usage),
        headers={"Content-Type": "text/event-stream"},
    )
    error = Raw(
        body=events(delta(content="Action: "), {"error": {"code": 502, "message": "gone"}}),
        headers={"Content-Type": "text/event-stream"},
    )
    with serving(lambda sent, number: error if number == 0 else whole) as served:
        episode = play(served.url, horizon=1)
    assert episode.steps[0].action == "Up" and episode.calls[0]["tries"] == 2


def test_an_endpoint_that_cuts_messages_without_a_word_is_noticed_and_not_learned_from() -> None:
    def answer(sent: Body, number: int) -> Any:
        tokens = sum(len(message["content"]) for message in sent["messages"]) // 4
        return completion(f"Thought: {'word ' * 60}\nAction: Up", given=min(tokens, 600))

    with serving(answer) as served:
        episode = play(served.url, horizon=40, context_tokens=2000)
    noted = [call.get("miscounted", False) for call in episode.calls]
    assert not any(noted[:4]) and any(noted), "from where the count stood still while messages grew"
    assert (
        max(sum(len(message["content"]) for message in sent["messages"]) for sent in served.requests)
        < 2000 * 8
    ), "turns are dropped all the same"
    assert max(call.get("dropped", 0) for call in episode.calls) > 5


def test_a_conversation_believes_counts_that_can_be() -> None:
    english, grid = "The quick brown fox jumps over the lazy dog. " * 200, "#_#_P#\n" * 500
    for text, per_token in ((english, 4.5), (grid, 1.5), (english, 7.0)):
        conversation = Conversation([])
        for count in range(1, 6):
            messages = [{"role": "user", "content": text}] * count
            assert conversation.counted(messages, int(len(text) * count / per_token) + 6 * count)
        assert conversation.per_token == pytest.approx(per_token, rel=0.05)
    capped = Conversation([])
    assert capped.counted([{"role": "user", "content": english}], 2000)
    before = capped.per_token
    assert not capped.counted([{"role": "user", "content": english * 4}], 2000) and not capped.counted(
        [{"role": "user", "content": english * 9}], 1000
    )
    assert capped.per_token == before and capped.counted([{"role": "user", "content": english * 4}], None)


def test_a_cut_reply_is_told_under_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tstar_envs.cli import main

    cut = body(
        {"role": "assistant", "content": None, "reasoning_content": "Maybe\nAction: Up\n"},
        finish_reason="length",
    )
    with serving(lambda sent, number: cut) as served:
        command = [
            "eval",
            "--env",
            "sokoban-easy",
            "--agent",
            "chat",
            "--model",
            "m",
            "--base-url",
            served.url,
            "--tasks",
            "2",
        ]
        assert (
            main(
                [*command, "--option", "horizon=3", "--max-tokens", "77", "--out", str(tmp_path / "o.jsonl")]
            )
            == 0
        )
        first = capsys.readouterr().out
        assert (
            main(
                [*command, "--option", "horizon=3", "--max-tokens", "77", "--out", str(tmp_path / "o.jsonl")]
            )
            == 0
        )
    for shown in (first, capsys.readouterr().out):
        assert "6 of 6 replies were cut at --max-tokens 77" in shown and "the replies did not parse" in shown
    assert main(["report", str(tmp_path / "o.jsonl"), "--out", str(tmp_path / "page.html")]) == 0
    assert "6 of 6 replies were cut at --max-tokens 77" in (tmp_path / "page.html").read_text()


def test_a_connection_that_breaks_has_a_reason() -> None:
    async def ask(endpoint: Endpoint) -> None:
        try:
            await endpoint.ask([{"role": "user", "content": "x"}], "act", max_tokens=5)
        finally:
            await endpoint.close()

    with (
        serving(lambda sent, number: Raw(body=b"", announced=50, headers=JSON)) as served,
        pytest.raises(EndpointError) as caught,
    ):
        asyncio.run(ask(Endpoint("m", served.url, retries=0)))
    reason = str(caught.value).partition("the connection failed: ")[2]
    assert len(reason) > 10, str(caught.value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(10**400)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def shaped(*names: str, inner: Any = VALUES) -> Any:
    """Objects that have some of these fields, with anything in them."""
    return st.dictionaries(st.sampled_from(names), inner, max_size=len(names)) | VALUES


FUNCTIONS = shaped("name", "arguments")
TOOL_CALLS = (
    st.lists(shaped("id", "type", "function", "index", inner=FUNCTIONS | VALUES), max_size=3) | VALUES
)
MESSAGES = shaped("role", "content", "reasoning_content", "reasoning", "tool_calls", inner=TOOL_CALLS)
CHOICES = st.lists(shaped("message", "delta", "finish_reason", "error", inner=MESSAGES), max_size=2) | VALUES
COMPLETIONS = shaped("choices", "usage", "error", "object", inner=CHOICES)


@pytest.mark.parametrize("examples", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_no_completion_and_no_stream_raises_anything_but_that_it_is_unreadable(examples: int) -> None:
    @settings(deadline=None, max_examples=examples)
    @given(COMPLETIONS, st.lists(COMPLETIONS, max_size=3))
    def holds(whole: Any, chunks: list[Any]) -> None:
        require_read_or_refused(whole, chunks)

    holds()


def require_read_or_refused(whole: Any, chunks: list[Any]) -> None:
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    for content, streamed in ((json.dumps(whole).encode(), False), (stream.encode(), True)):
        try:
            found = parse_body(content, streamed)
            error = error_in(found)
            if error is not None:
                refusal = Refusal.of_error(error)
                assert 400 <= refusal.status < 600 and refusal.told()
                assert {type(refusal.is_final), type(refusal.is_too_long)} == {bool}
                assert refusal.wait is None or refusal.wait >= 0
                Dialect().learn(refusal, {"messages": [{"role": "system", "content": "r"}], "max_tokens": 5})
                continue
            answer = read_answer(found, "act", 1, 0.1)
        except Unreadable:
            continue
        assert isinstance(answer.text, str) and isinstance(answer.reasoning, str)
        assert json.dumps(answer.message, allow_nan=False) and answer.text.encode() is not None
        assert all(isinstance(part, str) for call in answer.tool_calls for part in call)


@settings(deadline=None, max_examples=200)
@given(
    st.integers(400, 599),
    shaped(
        "error", "message", "detail", "code", inner=shaped("message", "code", "type", "details", "metadata")
    ),
    st.text(max_size=9),
)
def test_no_refusal_raises(status: int, content: Any, header: str) -> None:
    refusal = Refusal(status, content, {"retry-after": header, "retry-after-ms": header})
    assert refusal.told().startswith(f"HTTP {status}: ") and isinstance(refusal.advice({}, "http://x"), str)
    assert {type(refusal.is_final), type(refusal.is_too_long)} == {bool} and (
        refusal.wait is None or refusal.wait >= 0
    )
