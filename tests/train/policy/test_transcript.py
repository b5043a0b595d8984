"""Contexts of the policy: whole transcripts, and steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import tokenizer

from tstar_envs.utils import with_actions
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.kv import ContextTooLong
from tstar_train.rollout.player import Transcript

CODEC = PlainCodec(tokenizer(), with_prompt=True)
TEXTS = st.lists(st.tuples(st.text("abc Thought:\n", min_size=1), st.text("xyz 1")), max_size=5)


def begun(kind, history, turns):
    transcript = Transcript(CODEC, "rules", "the goal", "first", kind, history)
    for reply, observation in turns:
        transcript.add(CODEC.reply(reply), observation)
    return transcript.context()


@given(TEXTS)
def test_concat_is_everything(turns):
    expected = CODEC.start("rules", "first") + [
        i for a, b in turns for i in (*CODEC.reply(a), *CODEC.observation(b))
    ]
    assert begun("concat", 0, turns) == expected


@given(TEXTS, st.integers(0, 3))
def test_step_is_the_last_turns_and_the_goal(turns, history):
    kept = turns[max(0, len(turns) - history) :]
    before = ["first", *(b for _, b in turns)][len(turns) - len(kept)]
    expected = CODEC.start("rules", f"the goal\n{before}") + [
        i for a, b in kept for i in (*CODEC.reply(a), *CODEC.observation(b))
    ]
    assert begun("step", history, turns) == expected


@given(TEXTS, st.integers(0, 3))
def test_steps_list_the_admissible_actions_of_the_current_observation_alone(turns, history):
    listed = [(reply, with_actions(observation, ["Up", "Down"])) for reply, observation in turns]
    earlier = [(reply, observation) for reply, observation in turns[:-1]]
    transcript = Transcript(CODEC, "rules", "the goal", with_actions("first", ["Up"]), "step", history)
    for reply, observation in listed:
        transcript.add(CODEC.reply(reply), observation)
    if not turns:
        assert transcript.context() == CODEC.start("rules", "the goal\nfirst\nAdmissible actions: Up")
    elif history:
        assert transcript.context() == begun("step", history, [*earlier, listed[-1]])
    else:
        assert transcript.context() == CODEC.start("rules", f"the goal\n{listed[-1][1]}")


def test_an_observation_that_states_the_goal_is_left_alone():
    assert Transcript(CODEC, "", "the goal", "Question: the goal?", "step", 0).context() == CODEC.start(
        "", "Question: the goal?"
    )


def test_a_reply_that_was_cut_gets_its_end():
    cut = CODEC.reply("Thought: and so")[:-1]
    transcript = Transcript(CODEC, "", "", "first")
    transcript.add(cut, "second")
    assert transcript.context() == [*CODEC.start("", "first"), *cut, CODEC.end, *CODEC.observation("second")]


@given(TEXTS, st.sampled_from(["concat", "step"]), st.integers(0, 3), st.integers(0, 120))
def test_where_it_is_too_long_the_oldest_turns_are_left_out_and_no_more_than_that(turns, kind, history, room):
    """``concat`` keeps its start and the last turn, ``step`` the goal and the current observation."""
    transcript = Transcript(CODEC, "rules", "the goal", "first", kind, history)
    for reply, observation in turns:
        transcript.add(CODEC.reply(reply), observation)
    tokens = [i for a, b in turns for i in (*CODEC.reply(a), *CODEC.observation(b))]
    lengths = [len(CODEC.reply(a)) + len(CODEC.observation(b)) for a, b in turns]
    if kind == "concat":
        start = CODEC.start("rules", "first")
        shorter = [start + tokens[sum(lengths[:first]) :] for first in range(max(1, len(turns)))]
    else:
        seen = ["first", *(b for _, b in turns)]
        firsts = range(max(0, len(turns) - history), len(turns) + 1)
        shorter = [
            CODEC.start("rules", f"the goal\n{seen[first]}") + tokens[sum(lengths[:first]) :]
            for first in firsts
        ]
    fitting = [ids for ids in shorter if len(ids) <= room]
    if fitting:
        assert transcript.context(room) == fitting[0]
    else:
        with pytest.raises(
            ContextTooLong, match=f"has {len(shorter[-1])} tokens, and there is room for {room}"
        ):
            transcript.context(room)


def test_lists_within_an_observation_of_ones_own_stay():
    """Only a last line is the option's."""
    shown = "Lamp off.\nAdmissible actions: on; off\nInventory: a key"
    transcript = Transcript(CODEC, "", "the goal", shown, "step", 1)
    transcript.add(CODEC.reply("Action: on"), "Lamp on.")
    assert transcript.context() == [
        *CODEC.start("", f"the goal\n{shown}"),
        *CODEC.reply("Action: on"),
        *CODEC.observation("Lamp on."),
    ]
