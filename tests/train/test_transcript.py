"""Contexts of the policy: whole transcripts, and steps."""

from hypothesis import given
from hypothesis import strategies as st
from policies import tokenizer

from tstar_train.policy.codec import PlainCodec
from tstar_train.rollout.transcript import Transcript

CODEC = PlainCodec(tokenizer(), with_prompt=True)
TEXTS = st.lists(st.tuples(st.text("abc Thought:\n", min_size=1), st.text("xyz 1")), max_size=5)


def begun(kind, history, turns):
    transcript = Transcript(CODEC, "rules", "the goal", "first", kind, history)
    for reply, observation in turns:
        transcript.add(CODEC.reply(reply), observation)
    return transcript.context()


@given(TEXTS)
def test_concat_is_everything(turns):
    expected = CODEC.start("rules", "first") + [i for a, b in turns for i in (*CODEC.reply(a), *CODEC.observation(b))]
    assert begun("concat", 0, turns) == expected


@given(TEXTS, st.integers(0, 3))
def test_step_is_the_last_turns_and_the_goal(turns, history):
    kept = turns[max(0, len(turns) - history) :]
    before = ["first", *(b for _, b in turns)][len(turns) - len(kept)]
    expected = CODEC.start("rules", f"the goal\n{before}") + [i for a, b in kept for i in (*CODEC.reply(a), *CODEC.observation(b))]
    assert begun("step", history, turns) == expected


def test_an_observation_that_states_the_goal_is_left_alone():
    assert Transcript(CODEC, "", "the goal", "Question: the goal?", "step", 0).context() == CODEC.start("", "Question: the goal?")


def test_a_reply_that_was_cut_gets_its_end():
    cut = CODEC.reply("Thought: and so")[:-1]
    transcript = Transcript(CODEC, "", "", "first")
    transcript.add(cut, "second")
    assert transcript.context() == [*CODEC.start("", "first"), *cut, CODEC.end, *CODEC.observation("second")]
