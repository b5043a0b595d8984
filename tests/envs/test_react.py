"""The reply parser: its forms by example, and that no reply makes it slow or raise."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_envs import parse_reply, render_reply
from tstar_envs.react import answer_content, match_action

SINGLE_LINE = st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("reply", "thought", "action"),
    [
        ("Thought: the box is left.\nAction: right", "the box is left.", "right"),
        (
            "thought 1: a\nb\nACTION 1 : go to desk 1\nObservation: fake\nAction: second",
            "a\nb",
            "go to desk 1",
        ),
        ("**Thought:** a\n**Action:** b", "a", "b"),
        ("**Thought 2**: a\n**Action 2**: b", "a", "b"),
        ("Action:\n  search[x]  \nmore", "", "search[x]"),
        ("Action: a\nAction: b", "", "a"),
        ("I think so.\nAction: a", "I think so.", "a"),
        ("Action:", "", ""),
        ("<think>a b</think><action>go</action> tail", "a b", "go"),
        ("<think>a</think>\n<search> who\n is it </search>", "a", "search[who is it]"),
        ("<think>a</think><answer>Paris</answer><answer>Rome</answer>", "a", "finish[Paris]"),
        ("<THINK>a</THINK><Search>q</SEARCH>", "a", "search[q]"),
        ("<search>never closed", "", "search[never closed]"),
        ("<search>İİİ abc</search> tail", "", "search[İİİ abc]"),
        ("<action>x</action>\nAction: y", "", "x"),
        ("Action: y\n<action>x</action>", "", "y"),
        ("<think>hm</think> left", "hm", "left"),
        ("up", "", "up"),
        ("\n\n  up \nThe box moved.", "", "up"),
        ("Thought: only a thought", "only a thought", ""),
        ("Thought: first a thought\nsearch[x]", "first a thought", "search[x]"),
        ("the action: run", "", "the action: run"),
        ("", "", ""),
        (" \n\t ", "", ""),
        ("\ud800", "", "\ud800"),
    ],
)
def test_forms(reply: str, thought: str, action: str) -> None:
    parsed = parse_reply(reply)
    assert (parsed.thought, parsed.action) == (thought, action)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_never_raises(reply: str) -> None:
    parsed = parse_reply(reply)
    assert parsed.action == parsed.action.strip() and parsed.thought == parsed.thought.strip()


@given(SINGLE_LINE, SINGLE_LINE, st.sampled_from(["react", "tags"]))
def test_what_is_rendered_is_read(thought: str, action: str, style: str) -> None:
    parsed = parse_reply(render_reply(thought, action, style))
    if not any(cue in (thought + action).casefold() for cue in ("<", "action", "thought")):
        assert (parsed.thought, parsed.action) == (thought, action)


UNITS = st.sampled_from(
    [
        " ",
        "\t",
        "*",
        "\n",
        "action",
        "action ",
        "action\n",
        "thought ",
        "1",
        "0 ",
        ":",
        "<",
        "<think>",
        "</think>",
        "<action>",
        "<search>",
        "</search>",
        "</answer",
        "[",
        "İ",
        "\x00",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(UNITS, st.sampled_from([1, 2, 100_000])), min_size=1, max_size=4))
def test_adversarial_replies_take_linear_time(parts: list[tuple[str, int]]) -> None:
    reply = "".join(unit * (count // len(unit) or 1) for unit, count in parts)
    start = time.process_time()
    parse_reply(reply)
    # A quadratic expression takes seconds here; a linear one a few milliseconds.
    assert time.process_time() - start < 0.5, [(unit, count) for unit, count in parts]


@pytest.mark.parametrize("cue", ["action", "thought", "**action**", " action", "action 1"])
def test_long_rows_of_spaces_after_a_cue(cue: str) -> None:
    for filler in (" ", "\t", "*", " *", "1"):
        start = time.process_time()
        parse_reply(cue + filler * (100_000 // len(filler)))
        assert time.process_time() - start < 0.5, filler


def test_match_action() -> None:
    assert match_action("GO  to Desk 1 ", ["look", "go to desk 1"]) == "go to desk 1"
    assert match_action("go to desk", ["go to desk 1"]) is None
    assert match_action("", []) is None


def test_what_an_answer_held() -> None:
    for content in ("Up || Down", "finish[Up]", "a]", ""):
        parsed = parse_reply(f"<answer>{content}</answer>")
        assert parsed.cue == "answer" and answer_content(parsed.action) == content
