"""What a chat model is sent: messages, their bound, typed tools; and what of its answers is played."""

import json
from typing import Any

import pytest
from chat_server import Body, Raw, completion, serving

from tstar_envs import Episode, TextEnv, UnknownOption, find_entry, list_envs
from tstar_envs.agents import ModelOptions, load_agent
from tstar_envs.agents.base import ENDPOINT, bind_agent
from tstar_envs.agents.llm import Conversation
from tstar_envs.cli.console import make_env
from tstar_envs.evaluation.runner import play_episode
from tstar_envs.tools import BadCall, action_of

pytest.importorskip("aiohttp")
MOVE = "Thought: I go.\nAction: Up"


def play(
    url: str, env: str = "sokoban-easy", method: str = "chat", task: int = 0, horizon: int = 4, **model: Any
) -> Episode:
    entry = find_entry(env)
    played = make_env(entry, {"horizon": horizon})
    agent = load_agent(method, env_id=entry.id, seed=0, model=ModelOptions("m", url, **model))
    bind_agent(agent, played)
    return play_episode(played, entry, agent, name=method, task=played.task_ids()[task])


def test_rules_are_the_system_prompt_and_observations_user_turns() -> None:
    with serving(lambda body, number: MOVE) as served:
        episode = play(served.url)
    last = served.requests[-1]["messages"]
    assert [message["role"] for message in last] == ["system", "user", *["assistant", "user"] * 3]
    assert last[0]["content"] == make_env(find_entry("sokoban-easy"), {"horizon": 4}).prompt()
    assert [message["content"] for message in last[1::2]] == [
        episode.first_observation,
        *(s.observation for s in episode.steps[:3]),
    ]
    assert [message["content"] for message in last[2::2]] == [MOVE] * 3
    assert "tools" not in served.requests[0] and [step.reply for step in episode.steps] == [MOVE] * 4


def test_reasoning_in_a_field_of_its_own_is_a_thought_and_is_not_sent_back() -> None:
    with serving(
        lambda body, number: completion({"content": "Action: Up", "reasoning_content": "Action: Down? No."})
    ) as served:
        episode = play(served.url)
    assert episode.steps[0].action == "Up" and episode.steps[0].thought == "Action: Down? No."
    assert "Down?" not in json.dumps(served.requests[-1])


def test_the_oldest_turns_are_left_out_first() -> None:
    with serving(lambda body, number: f"Thought: turn {number}.\nAction: Up") as served:
        episode = play(served.url, horizon=12, context_tokens=280)
    dropped = [call.get("dropped", 0) for call in episode.calls]
    assert dropped == sorted(dropped) and dropped[0] == 0 and dropped[-1] > 3
    for number, (request, left_out) in enumerate(zip(served.requests, dropped, strict=True)):
        system, first, *turns = request["messages"]
        assert system["role"] == "system" and first["content"].startswith(episode.first_observation)
        assert ("left out here" in first["content"]) == bool(left_out) and (
            not left_out or str(left_out) in first["content"]
        )
        assert [turn["content"].partition("\n")[0] for turn in turns[::2]] == [
            f"Thought: turn {n}." for n in range(left_out, number)
        ]
        assert not turns or turns[-1]["content"] == episode.steps[number - 1].observation


def test_where_the_model_takes_less_turns_are_left_out_until_it_fits() -> None:
    refusal = Raw(
        400,
        b'{"error": {"message": "This model\'s maximum context length is 9 tokens", "code": "context_length_exceeded"}}',
    )

    def at_most(messages: int) -> Any:
        return lambda body, number: refusal if len(body["messages"]) > messages else MOVE

    with serving(at_most(6)) as served:
        episode = play(served.url, horizon=9)
        assert episode.ended == "truncated" and len(episode.steps) == 9 and episode.calls[-1]["dropped"] >= 6
        refused = [len(body["messages"]) for body in served.requests if len(body["messages"]) > 6]
        assert len(refused) <= 2, "a length that was refused is not tried in each turn again"
    with serving(at_most(1)) as served:
        episode = play(served.url)
        assert (
            episode.failure == ENDPOINT
            and "nothing is left to leave out" in episode.error
            and len(served.requests) == 1
        )


def test_a_conversation_always_keeps_its_opening_and_its_last_turn() -> None:
    conversation = Conversation([{"role": "user", "content": "x" * 900}])
    for letter in "abc":
        conversation.add({"role": "assistant", "content": letter * 300})
    messages, dropped = conversation.fitting(1)
    assert dropped == 2 and [message["content"][0] for message in messages] == ["x", "c"]
    turns = [{"role": "assistant", "content": letter * 300} for letter in "abc"]
    assert conversation.fitting(100_000) == ([{"role": "user", "content": "x" * 900}, *turns], 0)
    assert conversation.fitting(100_000, drop=1)[1] == 1
    conversation.counted([{"role": "user", "content": "x" * 1000}], 106)  # ten characters a token
    assert conversation.fitting(220)[1] == 0 and conversation.fitting(180)[1] == 1


def called(name: str, content: str | None = None, **arguments: Any) -> Raw:
    return completion({"content": content, "tool_calls": [_call("c1", name, json.dumps(arguments))]})


def _call(number: str, name: str, arguments: str) -> Body:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_typed_tools_are_offered_and_their_calls_played() -> None:
    with serving(lambda body, number: called("move", "I go up.", direction="Up")) as served:
        episode = play(served.url, tools=True)
    (tool,) = served.requests[0]["tools"]
    direction = tool["function"]["parameters"]["properties"]["direction"]
    assert tool["function"]["name"] == "move" and direction["enum"] == ["Up", "Down", "Left", "Right"]
    assert [(step.action, step.thought) for step in episode.steps] == [("Up", "I go up.")] * 4
    answer, result = served.requests[1]["messages"][2:4]
    assert answer["tool_calls"][0]["id"] == result["tool_call_id"] == "c1" and result["role"] == "tool"
    assert (
        result["content"] == episode.steps[0].observation
        and "Act by calling" in served.requests[0]["messages"][0]["content"]
    )


def test_calls_that_no_tool_takes_cost_a_turn_and_say_why() -> None:
    wrong = [
        called("fly", direction="Up"),
        called("move", direction="North"),
        called("move"),
        completion({"content": None, "tool_calls": [_call("1", "move", "{broken")]}),
    ]
    with serving(
        lambda body, number: wrong[number] if number < 4 else called("move", direction="Up")
    ) as served:
        episode = play(served.url, tools=True, horizon=5)
    assert [step.action_valid for step in episode.steps[:4]] == [False] * 4 and episode.steps[
        4
    ].action == "Up"
    answers = [message["content"] for message in served.requests[-1]["messages"] if message["role"] == "tool"]
    reasons = ("no tool 'fly'; valid: move", "must be one of Up, Down", "move takes direction", "no JSON")
    for content, message in zip(answers, reasons, strict=True):
        assert content.startswith("Error: ") and message in content
    roles = [message["role"] for message in served.requests[-1]["messages"]]
    assert roles == ["system", "user", *["assistant", "tool"] * 4], (
        "a user's turn after a tool's is refused by some templates: error and observation are both in the tool's answer"
    )
    for content, step in zip(answers, episode.steps, strict=False):
        assert content.endswith(f"\n\n{step.observation}")
    echoed = [
        m["tool_calls"][0]["function"]["arguments"]
        for m in served.requests[-1]["messages"]
        if m["role"] == "assistant"
    ]
    assert echoed[-1] == "{}" and "{broken" in answers[-1], (
        "no endpoint takes a call back whose arguments are no JSON"
    )


def test_of_several_calls_the_first_is_played_and_the_others_are_answered() -> None:
    calls = [_call("a", "move", '{"direction": "Up"}'), _call("b", "move", '{"direction": "Down"}')]
    two = completion({"content": None, "tool_calls": calls})
    with serving(lambda body, number: two) as served:
        episode = play(served.url, tools=True)
    assert {step.action for step in episode.steps} == {"Up"}
    answered = served.requests[1]["messages"][3:]
    assert [message["tool_call_id"] for message in answered] == ["a", "b"] and answered[1][
        "content"
    ].startswith("Not played")


@pytest.mark.parametrize("method", ["direct", "react", "reflexion", "search-o1"])
def test_methods_that_write_their_actions_take_no_tools(method: str) -> None:
    with pytest.raises(UnknownOption, match=f"--tools: {method} writes its actions as text"):
        load_agent(
            method, env_id="tstar/HotpotQA", seed=0, model=ModelOptions("m", "http://x/v1", tools=True)
        )


CALLS = {
    "sokoban": [("move", {"direction": "Up"}, "Up")],
    "search_qa": [
        ("search", {"query": "who [is] it"}, "search[who [is] it]"),
        ("finish", {"answer": "Paris"}, "finish[Paris]"),
    ],
    "webshop": [
        ("search", {"query": "red\nshoe"}, "search[red shoe]"),
        ("click", {"target": "buy now"}, "click[buy now]"),
    ],
    "alfworld": [("act", {"command": "go to bed 1"}, "go to bed 1")],
    "blocksworld": [
        ("pick_up", {"block": "red"}, "pick-up red"),
        ("put_down", {"block": "red"}, "put-down red"),
        ("stack", {"block": "red", "onto": "blue"}, "stack red blue"),
        ("unstack", {"block": "red", "off": "blue"}, "unstack red blue"),
    ],
}


@pytest.mark.parametrize("entry", list_envs(), ids=lambda entry: entry.name)
def test_each_tool_of_each_family_stands_for_an_action_that_it_reads(entry: Any) -> None:
    env = make_env(entry, {})
    assert [tool.name for tool in env.tools] == [name for name, _, _ in CALLS[entry.family]]
    env.reset(options={"task": 0})
    for name, arguments, action in CALLS[entry.family]:
        assert action_of(env.tools, name, json.dumps(arguments)) == action
        with pytest.raises(BadCall, match=f"{name} takes"):
            action_of(env.tools, name, json.dumps({**arguments, "more": "x"}))
        with pytest.raises(BadCall, match="must be a text"):
            action_of(env.tools, name, json.dumps(dict.fromkeys(arguments, 3)))
        snapshot = env.snapshot()
        read = env.step(f"Action: {action}")[4]["action"]
        assert read or entry.family in ("alfworld", "webshop", "blocksworld"), "these know what is there"
        env.restore(snapshot)


def test_the_experts_actions_can_all_be_said_by_tools() -> None:
    """Every action the expert plays is one that some call gives, so that an agent with tools can do what one with text can."""
    for entry in list_envs():
        env = make_env(entry, {})
        env.reset(options={"task": 0})
        over = False
        while not over:
            reply = env.oracle()
            assert reply is not None
            *_, terminated, truncated, info = env.step(reply)
            over = terminated or truncated
            assert any(_fits(tool.action, info["action"]) for tool in env.tools), (entry.id, info["action"])


def _fits(form: str, action: str) -> bool:
    start = form.partition("{")[0]
    return action.startswith(start)


def test_mystery_blocks_have_no_tools_that_give_their_verbs_away() -> None:
    env = make_env(find_entry("blocksworld-stack"), {"names": "mystery"})
    assert env.tools is TextEnv.tools
