"""ALFWorld with ``commands="put"``: the words of games before release 0.4, for agents and prompts that learnt them."""

from typing import Any

import gymnasium as gym
import pytest

from tstar_envs import Episode, TextEnv, UnknownOption, parse_reply
from tstar_envs.envs.alfworld.env import ALFWorldEnv

TASK = "alfworld-mini-test-0001"  # of ALFWorld-pick: put a creditcard in armchair
GOLDEN = [
    (
        "go to sidetable 2",
        "You arrive at sidetable 2. On the sidetable 2, you see a box 2, a creditcard 2, and a vase 3.",
    ),
    ("take creditcard 2 from sidetable 2", "You pick up the creditcard 2 from the sidetable 2."),
    ("go to armchair 1", "You arrive at armchair 1. On the armchair 1, you see nothing."),
    ("put creditcard 2 in/on armchair 1", "You put the creditcard 2 in/on the armchair 1."),
]
PROMPT = """\
You are in a room of a house and carry out a household task by commands. Receptacles (cabinets, tables, a fridge, ...) hold objects; you \
hold at most one object. What is in a closed receptacle shows only after you open it.
In each turn write one thought and one action:
Thought: what you know and what you do next
Action: one of
  go to R: walk to receptacle R; you see what is in or on it
  open R, close R: a receptacle at hand
  take O from R: object O, from an open receptacle at hand, with an empty hand
  put O in/on R: the object that you hold
  clean O with sinkbasin N, heat O with microwave N, cool O with fridge N: an object that you hold, at that receptacle
  slice O with K: an object at hand with a knife K that you hold
  use O: turn on a lamp at hand
  examine X, look, inventory: look at things again; they change nothing
Things are called by kind and number: mug 2, cabinet 1. A command that is not possible is answered by "Nothing happens." and costs a \
turn. You have 30 turns."""


def make(**options: Any) -> TextEnv[Any, Any]:
    env = gym.make("tstar/ALFWorld-pick", data="mini", **options).unwrapped
    assert isinstance(env, TextEnv)
    return env


def holding(env: TextEnv[Any, Any]) -> None:
    """Stand before the armchair with the card in the hand."""
    env.reset(options={"task": 1})
    for command, answer in GOLDEN[:3]:
        assert env.step(command)[0] == answer


def test_the_rules_say_put() -> None:
    assert make(commands="put").prompt() == PROMPT
    assert "move" not in make(commands="put").prompt("tags")
    assert make().prompt() == PROMPT.replace(
        "put O in/on R: the object that you hold",
        "move O to R: put the object that you hold in or on R (the same as: put O in/on R)",
    )


def test_the_tool_says_put_and_that_of_new_games_stays() -> None:
    assert make(commands="put").tools[0].parameters["command"].endswith("put mug 2 in/on shelf 1")
    assert make().tools == ALFWorldEnv.tools


@pytest.mark.parametrize("kind", ["expert", "search"])
def test_an_episode_of_the_expert_word_for_word(kind: str) -> None:
    env = make(commands="put")
    _, info = env.reset(options={"task": 1})
    assert info["commands"] == "put"
    seen, over = [], False
    while not over:
        reply = env.oracle(kind=kind)
        observation, reward, over, _, info = env.step(reply)
        seen.append((parse_reply(reply).action, observation))
    assert reward == 1 and info["success"]
    assert seen == GOLDEN if kind == "expert" else seen[-1][0].startswith("put creditcard 1 in/on armchair ")


def test_only_the_words_differ_from_new_games() -> None:
    old, new = make(commands="put"), make()
    for task in range(6):
        observation, info = old.reset(options={"task": task})
        again, other = new.reset(options={"task": task})
        assert observation == again and {**other, "commands": "put"} == info
        over = False
        while not over:
            ours, theirs = old.oracle(), new.oracle()
            assert ours.replace("\nAction: put ", "\nAction: move ").replace(" in/on ", " to ") == theirs
            observation, reward, over, _, info = old.step(ours)
            again, *rest, other = new.step(theirs)
            assert observation.replace("You put ", "You move ").replace(" in/on ", " to ") == again
            assert [reward, over, False] == rest
            for key in ("state_key", "effect_key", "modifies_state", "success"):
                assert info[key] == other[key]
    assert [old.task_digest(task) for task in old.task_ids()[:6]] == [
        new.task_digest(task) for task in new.task_ids()[:6]
    ]


def test_admissible_actions_say_put() -> None:
    env, new = make(commands="put"), make()
    for one in (env, new):
        holding(one)
    shown, plain = (one.restore(one.snapshot())[1]["admissible_actions"] for one in (env, new))
    assert "put creditcard 2 in/on armchair 1" in shown and not any(
        action.startswith("move") for action in shown
    )
    assert sorted(
        action.replace("move", "put").replace(" to armchair", " in/on armchair")
        if "move" in action
        else action
        for action in plain
    ) == sorted(shown)


@pytest.mark.parametrize(
    ("typed", "options", "understood"),
    [
        ("put creditcard 2 in/on armchair 1", {}, True),
        ("Put creditcard 2 on armchair 1", {}, True),
        ("move creditcard 2 to armchair 1", {}, True),
        ("put creditcard 2 in/on armchair 1", {"strict": True}, True),
        ("move creditcard 2 to armchair 1", {"strict": True}, False),
        ("put creditcard 2 on armchair 1", {"strict": True}, False),
    ],
)
def test_what_is_understood(typed: str, options: dict[str, Any], understood: bool) -> None:
    env = make(commands="put", **options)
    holding(env)
    observation, _, _, _, info = env.step(typed)
    assert info["action"] == ("put creditcard 2 in/on armchair 1" if understood else "")
    assert (observation == GOLDEN[3][1]) is understood is info["success"] is info["action_valid"]


def test_a_refusal_lists_put() -> None:
    env = make(commands="put")
    env.reset(options={"task": 1})
    assert ", put O in/on R, " in env.step("dance")[4]["invalid_reason"]
    plain = make()
    plain.reset(options={"task": 1})
    assert ", move O to R, " in plain.step("dance")[4]["invalid_reason"]


def test_records_name_it() -> None:
    infos = [make(**options).reset(options={"task": 1})[1] for options in ({"commands": "put"}, {})]
    assert [Episode.facts(info).get("commands") for info in infos] == ["put", None]


def test_a_snapshot_may_be_continued_in_the_other_words() -> None:
    env, other = make(), make(commands="put")
    holding(env)
    other.restore(env.snapshot())
    assert other.step("put creditcard 2 in/on armchair 1")[2]


def test_wrong_values_are_refused() -> None:
    with pytest.raises(UnknownOption, match=r"commands.*'game'.*'put'"):
        make(commands="move")
    with pytest.raises(UnknownOption, match="backend"):
        make(commands="put", backend="textworld")
