"""Recorded episodes are replayed exactly: text, keys, rewards. What differs here breaks everybody's comparisons."""

from pathlib import Path

import golden_regenerate
import gymnasium as gym
import pytest

from tstar_envs import Episode, Step, find_entry, read_episodes

EPISODES = list(read_episodes(Path(__file__).with_name("search_qa.jsonl")))


def test_there_are_enough() -> None:
    assert len(EPISODES) == 12 and len({e.task for e in EPISODES}) == 12
    assert {e.ended for e in EPISODES} == {"terminated", "truncated"} and {e.reward for e in EPISODES} == {0.0, 1.0}
    assert {e.split for e in EPISODES} == {"train", "valid", "test"}


def replay_exactly(episode: Episode) -> None:
    assert episode.rules_version == find_entry(episode.env).rules_version, (
        "the rules version has changed: record the golden episodes anew with `python tests/golden/golden_regenerate*.py`"
    )
    env = gym.make(episode.env, **episode.extra["options"])
    observation, info = env.reset(options={"task": episode.task})
    assert (observation, info["instruction"], info["split"]) == (episode.first_observation, episode.instruction, episode.split)
    ended = "running"
    for number, step in enumerate(episode.steps, start=1):
        assert ended == "running"
        observation, reward, terminated, truncated, info = env.step(step.reply)
        assert Step.from_info(step.reply, observation, info) == step, f"step {number} differs; if that is meant, raise rules_version"
        ended = "terminated" if terminated else "truncated" if truncated else "running"
    assert (ended, reward, info["success"]) == (episode.ended, episode.reward, episode.success)


@pytest.mark.parametrize("episode", EPISODES, ids=[e.agent for e in EPISODES])
def test_replay(episode: Episode) -> None:
    replay_exactly(episode)


@pytest.mark.parametrize("number", range(len(EPISODES)), ids=[e.agent for e in EPISODES])
def test_recording_anew_gives_the_same(number: int) -> None:
    """The expert says and does what it did: policies were trained on its words."""
    assert golden_regenerate.record(*golden_regenerate.PLANS[number]) == EPISODES[number]
