"""Recorded episodes are replayed exactly: text, keys, rewards. What differs here breaks everybody's comparisons."""

import gymnasium as gym
import pytest
from golden_regenerate import FILES

from tstar_envs import Episode, Step, find_entry, read_episodes

BY_FILE = {file.name: list(read_episodes(file)) for file in FILES}
EPISODES = [episode for episodes in BY_FILE.values() for episode in episodes]
IDS = [f"{find_entry(e.env).family}: {e.agent}" for e in EPISODES]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("search_qa.jsonl", 12),
        ("nq.jsonl", 7),
        ("blocksworld.jsonl", 12),
        ("sokoban.jsonl", 14),
        ("alfworld.jsonl", 12),
        ("webshop.jsonl", 12),
        ("clues_and_tail.jsonl", 10),
        ("chains.jsonl", 13),
    ],
)
def test_there_are_enough(name: str, count: int) -> None:
    episodes = BY_FILE[name]
    assert len(episodes) == count and len({e.task for e in episodes}) == count
    assert {e.ended for e in episodes} == {"terminated", "truncated"} and {e.reward for e in episodes} >= {
        0.0,
        1.0,
    }
    assert {e.split for e in episodes} >= {"train", "valid", "test"}


@pytest.mark.parametrize("episode", EPISODES, ids=IDS)
def test_replay(episode: Episode) -> None:
    assert episode.rules_version == find_entry(episode.env).rules_version, (
        "the rules version has changed: record the golden episodes anew with `python tests/golden/golden_regenerate.py`"
    )
    env = gym.make(episode.env, **episode.extra["options"])
    observation, info = env.reset(options={"task": episode.task})
    assert (observation, info["instruction"], info["split"]) == (
        episode.first_observation,
        episode.instruction,
        episode.split,
    )
    ended = "running"
    for number, step in enumerate(episode.steps, start=1):
        assert ended == "running"
        observation, reward, terminated, truncated, info = env.step(step.reply)
        assert Step.from_info(step.reply, observation, info) == step, (
            f"step {number} differs; if that is meant, raise rules_version"
        )
        ended = "terminated" if terminated else "truncated" if truncated else "running"
    assert (ended, reward, info["success"]) == (episode.ended, episode.reward, episode.success)


RECORDERS = [(recorder, plan) for recorder, plans in FILES.values() for plan in plans]


@pytest.mark.parametrize("number", range(len(EPISODES)), ids=IDS)
def test_recording_anew_gives_the_same(number: int) -> None:
    """The expert says and does what it did: policies were trained on its words."""
    recorder, plan = RECORDERS[number]
    assert recorder(*plan) == EPISODES[number]
