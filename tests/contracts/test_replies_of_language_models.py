"""Replies as language models write them: every family reads them alike, and plays nothing that is only thought of."""

import json
from pathlib import Path
from typing import Any

import pytest
from contract_walk import FOR_EVERY_ENV, make
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tstar_envs import EnvEntry, TextEnv, find_entry, parse_reply
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.react import plain_action, read_reply
from tstar_envs.tools import call_of

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
    # Other models' marks: Kimi, Command A, gpt-oss (with and without its special tokens), Sky-T1, Seed, Apertus, and any with blanks.
    "\u25c1think\u25b7Perhaps\nAction: {b}\nno\u25c1/think\u25b7\nAction: {a}",
    "<|START_THINKING|>Perhaps\nAction: {b}\n<|END_THINKING|><|START_RESPONSE|>Action: {a}<|END_RESPONSE|>",
    "<|START_THINKING|>Perhaps <action>{b}</action><|END_THINKING|><|START_RESPONSE|>{a}<|END_RESPONSE|>",
    "<|channel|>analysis<|message|>Perhaps\nAction: {b}\nno<|end|><|start|>assistant<|channel|>final<|message|>Action: {a}<|return|>",
    "<|channel|>analysis<|message|>{b}<|end|><|start|>assistant<|channel|>commentary<|message|>Action: {b}<|end|>"
    "<|start|>assistant<|channel|>final <|constrain|>json<|message|>{a}<|return|>",
    "<|channel|>final<|message|>Action: {b}<|end|><|start|>assistant<|channel|>final<|message|>Action: {a}",
    "analysisPerhaps\nAction: {b}\nno.assistantfinalAction: {a}",
    "<|begin_of_thought|>\nAction: {b}\n<|end_of_thought|>\n<|begin_of_solution|>\nAction: {a}\n<|end_of_solution|>",
    "<|begin_of_thought|>\nAction: {b}\n<|end_of_thought|>\n<|begin_of_solution|>\n{a}\n<|end_of_solution|>",
    "<seed:think>Action: {b}</seed:think>\nAction: {a}",
    "<|inner_prefix|>Action: {b}<|inner_suffix|>Action: {a}",
    "<scratchpad>\nAction: {b}\n</scratchpad>\nAction: {a}",
    "<reflection>Action: {b}</reflection>Action: {a}",
    "<think >\nAction: {b}\n</think >\nAction: {a}",
    # With attributes, in words of a name, in frames of lines, and where the template has written the first mark or none is left.
    '<think time="3">\nAction: {b}\n</think>\nAction: {a}',
    "<thought_process>\nAction: {b}\n</thought_process>\nAction: {a}",
    "<chain_of_thought>\nAction: {b}\n</chain_of_thought>\nAction: {a}",
    "<planning>\nAction: {b}\n</planning>\n<action>{a}</action>",
    "<minimax:think>Action: {b}</minimax:think>Action: {a}",
    "<seed:think>\nAction: {b}\n<seed:cot_budget_reflect>x</seed:cot_budget_reflect>\n</seed:think>Action: {a}<seed:eos>",
    "Here is my thought process:\nPerhaps\nAction: {b}\n\nHere is my response:\nAction: {a}",
    '<details type="reasoning" done="true">\n<summary>x</summary>\n> Action: {b}\n</details>\nAction: {a}',
    "```thinking\nAction: {b}\n```\nAction: {a}",
    "assistantanalysisWe need\nAction: {b}assistantfinalAction: {a}",
    "analysisWe need\nAction: {b}assistantcommentaryI go\nAction: {b}assistantfinalAction: {a}",
    "analysis<|message|>We\nAction: {b}<|end|><|start|>assistant<|channel|>final<|message|>Action: {a}",
    "Action: <think>or {b}</think> {a}",
    # A thought behind the action is not waited for.
    "Action: {a}\n<think>fine, or Action: {b}</think>",
    "<action>{a}</action> <think>or\nAction: {b}</think>",
    "{a}\n<think>or Action: {b}</think>",
    "{a} <think>or {b}</think>",
    "<think>x</think>Action: {a} <think>or {b}</think>",
    "Action: {a}\n<think>\nor Action: {b}",
    "{a}\n<think>\nor Action: {b}",
]
CUT = [  # by the limit of tokens, within a thought: nothing may be played
    "<think>\nIf I wrote\nAction: {b}\nI would be stuck, so",
    "<think>{b}",
    "\n\n  <thinking>\n<action>{b}</action>",
    "<think>a</think>\n<think>or\nAction: {b}",
    "\u25c1think\u25b7Perhaps\nAction: {b}",
    "Well. <|START_THINKING|>Action: {b}",
    "<|begin_of_thought|>\n{b}\n",
    "[THINK]<action>{b}</action>",
    "<scratchpad>\nAction: {b}\n",
    '<thinking type="deep">\nAction: {b}',
    "Okay. <think>\nI\nAction: {b}\n",
    "<inner_thoughts>\nAction: {b}\n",
    "analysisWe need to move.\nAction: {b}\nHmm",
    "analysisWe need.assistantcommentary\nAction: {b}",
    "analysis<|message|>We need\nAction: {b}",
    "Here is my thought process:\nAction: {b}",
    "```thinking\nAction: {b}",
    "<|channel|>analysis<|message|>Perhaps\nAction: {b}\nno",
    "<|start|>assistant<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=act<|message|>Action: {b}",
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
    "Action: <|begin_of_box|>{a}<|end_of_box|>",
    "<|begin_of_box|>{a}<|end_of_box|>",
    "Action: \u201c{a}\u201d",
    "Action: \u00ab{a}\u00bb",
    "Action: \u300c{a}\u300d",
    "`Action: {a}`",
    '"Action: {a}"',
    "### Action\n{a}",
    "Thought: x\n**Action**\n\n{a}",
    "Action\n`{a}`",
    'I will do this.\n\n```json\n{{"action": "{a}"}}\n```',
    'I will do this:\n{{"thought": "hm", "action": "{a}"}}\nThat helps.',
    '{{"Action": "{a}"}}',
    '{{"THOUGHT": "x", "ACTION": "{a}"}}',
    "Thought: x Action: {a} Observation: z",
    "Action: {a} **Observation 1:** z",
    "<action>{a} Observation: z</action>",
    "\ufeffAction: {a}",
    "\u200b\ufeff{a}",
    "assistant\n{a}",
    "assistant: {a}",
    "<|im_start|>assistant\n<think>x</think>\n{a}<|im_end|>",
    "<|start_header_id|>assistant<|end_header_id|>\n\nAction: {a}",
    "<start_of_turn>model\n{a}<end_of_turn>",
    "<|assistant|>\n{a}",
    # Ends of turns and roles of DeepSeek, MiniMax, Command A, Seed, Nemotron, EXAONE, Llama 4, Apertus, Granite, Kimi.
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>Action: {a}<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>{a}",
    "{a}[e~[",
    "]~b]ai\n{a}[e~[",
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>{a}<|END_RESPONSE|>",
    "<seed:bos>assistant\n{a}<seed:eos>",
    "<think></think>{a}<SPECIAL_12>",
    "[|assistant|]{a}[|endofturn|]",
    "<|header_start|>assistant<|header_end|>\n\n{a}<|eot|>",
    "<|inner_prefix|>x<|inner_suffix|>{a}<|assistant_end|>",
    "<|start_of_role|>assistant<|end_of_role|>{a}<|end_of_text|>",
    "<|im_assistant|>assistant<|im_middle|>{a}<|im_end|>",
    "<think>x</think><response>\n{a}\n</response>",
    "<think>x</think><response>Action: {a}</response>",
    "__Thought:__ x\n__Action:__ {a}",
    "\u27a1\ufe0f Action: {a}",
    "\u2022 Action: {a}",
    "[Action]: {a}",
    "Action: $\\boxed{{\\text{{{a}}}}}$",
    '<action type="move">{a}</action>',
    "<action >{a}</action >",
    "<action>{a}</ action>",
    "<action>{a}</action",
    '[{{"action": "{a}"}}]',
    "Action: {a} <observation>fine</observation>",
    "Action: {a}<br>Observation: fine",
    "\u3000Action: {a}\u2026",
    "\u200eAction: {a}\u200e",
    "Action: <{a}>",
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
    before = env.state_key()
    for form in CUT:
        action, after, refused = played(env, form.replace("{b}", other))
        assert (action, after) == ("", before) and refused, form


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
        # Hunyuan's tags around all that is said.
        assert played(env, f"<think>x</think>\n<answer>\nThought: x\nAction: {wanted}\n</answer>") == plain


@FOR_EVERY_ENV
def test_calls_written_as_text_are_played(entry: EnvEntry) -> None:
    """As LangChain, CrewAI, Hermes and Qwen write them, whatever the tool: every tool of the environment that can say an action."""
    env = started(entry)
    wanted, _ = two_actions(env)
    named = call_of(env.tools, wanted)
    assert named is not None
    name, arguments = named
    plain = played(env, f"Action: {wanted}")
    values = list(arguments.values())
    one = len(values) == 1
    call = json.dumps({"name": name, "arguments": arguments})
    forms = [
        f"Action: {name}\nAction Input: {json.dumps(arguments)}",
        f"Thought: x\nAction: {name}\nAction Input: {json.dumps(arguments, indent=1)}\nObservation: z",
        f"<tool_call>\n{call}\n</tool_call>",
        f"I call it.\n<tool_call>{call}</tool_call>",
        json.dumps({"action": name, "action_input": arguments}),
        json.dumps({"type": "function", "function": {"name": name, "parameters": arguments}}),
        f"Action: {name}({', '.join(json.dumps(value) for value in values)})",
        f"Action: {name}({', '.join(values)})",
        f"Action: {name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})",
        f"Action: {name.capitalize()}({', '.join(f'{key}: {value}' for key, value in arguments.items())}).",
    ]
    if one:
        forms += [
            f"Action: {name}\nAction Input: {values[0]}",
            f"Action: `{name}`\n\nAction Input: {values[0]}\nObservation: z",
            json.dumps({"action": name, "action_input": values[0]}),
            json.dumps({"tool": name, "tool_input": values[0]}),
            f"Action: {name}\uff3b{values[0]}\uff3d",
            f"Action: {name}\uff08{values[0]}\uff09",
            f'Action: {name}["{values[0]}"]',
            f"Action: {name}[\u201c{values[0]}\u201d]",
        ]
    for form in forms:
        assert played(env, form) == plain, form


def test_a_final_answer_is_taken_out_of_its_box_and_quotes() -> None:
    env = SearchQAEnv()
    env.reset(options={"task": 0})
    for form in (
        "<answer>\\boxed{Oslo}</answer>",
        "<answer>\\boxed{\\text{Oslo}}</answer>",
        "Action: finish[\\boxed{Oslo}]",
        'Action: finish["Oslo"]',
        "finish(\u2018Oslo\u2019)",
        "<answer>Oslo</answer>",
    ):
        assert played(env, form)[0] == "finish[Oslo]", form
    for kept in ('finish["Oslo" and "Bergen"]', "search[a Observation: b]", 'search["A" "B"]'):
        assert played(env, kept)[0] == kept


def test_the_inputs_that_were_reported_are_read() -> None:
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "faults_3"
    if not folder.is_dir():
        pytest.skip("the reported replies are not beside this clone")
    for name, plays in (("thoughts_played", True), ("around_actions", False), ("search_dialects", False)):
        for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            reported = json.loads(line)
            searched = "Oslo" in reported["reply"]
            env = started(find_entry("hotpotqa" if searched else "sokoban-easy"))
            reply = reported["reply"].replace("{a}", "Up").replace("{b}", "Left")
            action = played(env, reply)[0]
            cut = plays and "{a}" not in reported["reply"]
            assert action == ("" if cut else action if searched else "Up"), reported
            assert not searched or action in ("search[Oslo]", "finish[Oslo]"), reported


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
