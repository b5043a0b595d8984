"""Replies as language models write them: every family reads them alike, and plays nothing that is only thought of."""

from typing import Any

import pytest
from contract_walk import FOR_EVERY_ENV, make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tstar_envs import EnvEntry, TextEnv, parse_reply
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.react import plain_action, read_reply

_made: dict[str, TextEnv[Any, Any]] = {}


def started(entry: EnvEntry) -> TextEnv[Any, Any]:
    """The environment at the start of its first task."""
    env = _made.setdefault(entry.id, make(entry.id))
    env.reset(options={"task": 0})
    return env


def two_actions(env: TextEnv[Any, Any]) -> tuple[str, str]:
    """The expert's action, and another one that does something else."""
    wanted = parse_reply(env.oracle() or "").action
    info = env.restore(env.snapshot())[1]
    others = [a for a in info["admissible_actions"] or [] if a != wanted] or ["search[another thing]"]
    return wanted, others[-1]


THOUGHT_OF = [  # {a} is to be played, {b} is only thought of
    "<think>If I answer <answer>{b}</answer> I am stuck.</think>\n<answer>{a}</answer>",
    "<think>Perhaps\nAction: {b}\nbut no</think>\nAction: {a}",
    "It could be <action>{b}</action>, no.</think><action>{a}</action>",
    "<think>\nAction: {b}\n</think>\n{a}",
    "<THINK>a</THINK> <think>or <action>{b}</action>?</think> <action>{a}</action>",
    "<thinking>Action: {b}</thinking>\n**Action:** {a}",
    "<reasoning><action>{b}</action></reasoning>Action: {a}",
    "[THINK]<action>{b}</action>[/THINK]<action>{a}</action>",
    "Thought: I could write <action>{b}</action> here.\nAction: {a}",
    "<think>x</think><action>{a}</action>\nObservation: fine\n<think>and <action>{b}</action></think><action>{b}</action>",
]
AROUND = [
    "Action: {a}.",
    "Action: `{a}`",
    "Action: **{a}**",
    'Action: "{a}"',
    "Action:\n```\n{a}\n```",
    "```text\n{a}\n```",
    "Action: {a}<|im_end|>",
    "1. Action: {a}",
    "<action> {a}. </action>",
    "Thought: x\nAction: {a}</s>",
    "{a}<|eot_id|>\n<|start_header_id|>user",
    "Thought：x\nAction：{a}",
    "- Action: {a}",
    "### Action\n: x\nAction: {a}",
    "> Action 1: {a}",
    '{{"action": "{a}"}}',
    '```json\n{{"thought": "hm", "action": "{a}"}}\n```',
    'Action: {{"action": "{a}"}}',
    "<action>\n```\n{a}\n```\n</action>",
    "Action: <action>{a}</action>",
    "Action: Action: {a}",
    "<action>{a}\nThis helps.",
    "\\boxed{{{a}}}",
    "Action: [{a}]",
    "({a})",
    "• {a}",
    "<think>x</think> Action: {a}",
    "Thought: x Action: {a}<end_of_turn>",
]


def played(env: TextEnv[Any, Any], reply: str) -> tuple[str, str, str]:
    start = env.snapshot()
    *_, info = env.step(reply)
    env.restore(start)
    return info["action"], info["state_key"], info["invalid_reason"]


@FOR_EVERY_ENV
def test_what_is_only_thought_of_is_not_played(entry: EnvEntry) -> None:
    env = started(entry)
    wanted, other = two_actions(env)
    plain = played(env, f"Action: {wanted}")
    for form in THOUGHT_OF:
        if "<answer>" in form and env.answers:
            continue
        assert played(env, form.replace("{a}", wanted).replace("{b}", other)) == plain, form


@FOR_EVERY_ENV
def test_what_stands_around_an_action_does_not_matter(entry: EnvEntry) -> None:
    env = started(entry)
    wanted, _ = two_actions(env)
    plain = played(env, f"Action: {wanted}")
    assert not plain[2]
    for form in AROUND:
        assert played(env, form.format(a=wanted)) == plain, form
    if not env.answers:
        assert played(env, f"<think>x</think><answer>{wanted}</answer>") == plain


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.text(max_size=40), inside=st.text(max_size=40), after=st.text(max_size=40))
def test_a_closed_thought_is_never_played(before: str, inside: str, after: str) -> None:
    for tag in ("think", "Thinking"):
        reply = f"<{tag}>{before}<action>never</action>\nAction: never\n<answer>never</answer>{inside}</{tag}>{after}<action>up</action>"
        assert "never" not in read_reply(reply).action, reply


def test_search_r1s_style_reads_closed_pairs_alone() -> None:
    env = SearchQAEnv(prompt_style="search_r1")
    env.reset(options={"task": 0})
    for wrong in (
        "<think>x</think><answer> Oslo",
        "<think>x</think><search>Oslo</answer>",
        "<think><answer>Oslo</answer></think>",
        "Action: search[Oslo]",
        "search[Oslo]",
        "<SEARCH>Oslo</SEARCH>",
        "<action>search[Oslo]</action>",
        "<search></search>",
        '{"action": "search[Oslo]"}',
    ):
        assert played(env, wrong)[2], wrong
    for right in (
        "<search> Oslo </search>",
        "<think>maybe <answer>B</answer>\n</think>\n<search>\nOslo</search><answer>B</answer>",
        "<answer>a <search>Oslo</search>",
    ):
        assert played(env, right)[0] == "search[Oslo]", right
    # As the expression of its code, which takes seconds here: no closing tag in twenty thousand.
    assert played(env, "<search>" * 20_000)[2]


@pytest.mark.parametrize(
    ("action", "read"),
    [
        ("finish[Oslo] (see Doc [1])", "finish[Oslo]"),
        ("search[A], search[B]", "search[A]"),
        ("search[A[1] and B] then finish[C]", "search[A[1] and B]"),
        ("search[never closed", ""),
        ("search[a [b]", "search[a [b]"),
        ("Finish [ x ]]", "finish[x]"),
        ("finish[]", ""),
    ],
)
def test_the_bracket_that_balances_ends_an_argument(action: str, read: str) -> None:
    env = SearchQAEnv()
    env.reset(options={"task": 0})
    assert played(env, f"Thought: x\nAction: {action}")[0] == read
    assert played(env, f"<think>x</think><action>{action}</action>")[0] == read


def test_webshop_and_alfworld_are_lenient_but_for_the_modes_of_their_originals() -> None:
    shop = make("tstar/WebShop")
    shop.reset(options={"task": 0})
    listed = shop.step("Action: Search[ Lamp  table ]. I look (see [1])")[4]
    assert listed["action"] == "search[lamp table]"
    product = listed["admissible_actions"][-1]
    code = product.removeprefix("click[").removesuffix("]")
    for form in (
        f"click[ {code} ]",
        f"CLICK[{code.upper()}]",
        f'click["{code}"] - it fits',
        f"`{product}`",
        f'{{"action": "{product}"}}',
    ):
        assert played(shop, form)[0] == product, form
    for form in ("click[no such thing]", "open[it]", "search[ ]", "click"):
        assert played(shop, form)[2], form
    exact = make("tstar/WebShop", observation="text")
    exact.reset(options={"task": 0})
    assert played(exact, "Search[lamp]")[2] and played(exact, "search[a]b] c")[0] == "search[a]b]"
    house = make("tstar/ALFWorld", strict=True)
    observation, info = house.reset(options={"task": 0})
    command = info["admissible_actions"][0]
    assert (
        played(house, f"Action: {command}.")[2]
        and played(house, f"`{command}`")[2]
        and not played(house, f"Action: {command}")[2]
    )


@FOR_EVERY_ENV
def test_an_option_tells_the_agent_why(entry: EnvEntry) -> None:
    quiet, explaining = started(entry), make(entry.id, explain_invalid=True, horizon=20)
    explaining.reset(options={"task": 0})
    for reply in ("go to nowhere 1", "search[", "click[nothing]", "Up Down", ""):
        before, (observation, *_, info) = quiet.snapshot(), quiet.step(reply)
        explained = explaining.step(reply)
        quiet.restore(before)
        assert explained[4] == {**info, "step": explained[4]["step"], "horizon": 20}
        assert not info["invalid_reason"] or (
            info["invalid_reason"] in explained[0] and observation in explained[0]
        )


@given(st.text())
def test_taking_off_is_done_once_and_for_all(text: str) -> None:
    assert (
        plain_action(plain_action(text)) == plain_action(text)
        or text.count("[") + text.count("(") + text.count("{") > 3
    )
