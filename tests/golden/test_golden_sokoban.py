"""Recorded Sokoban episodes are replayed exactly: text, keys, rewards. What differs here breaks everybody's comparisons."""

from pathlib import Path

import golden_regenerate_sokoban
import pytest
from test_golden_episodes import replay_exactly

from tstar_envs import Episode, read_episodes

EPISODES = list(read_episodes(Path(__file__).with_name("sokoban.jsonl")))
NAMES = [e.agent for e in EPISODES]


def test_there_are_enough() -> None:
    assert len(EPISODES) == 12 and len({e.task for e in EPISODES}) == 12 and len({e.env for e in EPISODES}) == 3
    assert {e.ended for e in EPISODES} == {"terminated", "truncated"} and {e.reward for e in EPISODES} == {0.0, 1.0}
    assert {e.split for e in EPISODES} == {"train", "valid", "test"}


@pytest.mark.parametrize("episode", EPISODES, ids=NAMES)
def test_replay_of_sokoban(episode: Episode) -> None:
    replay_exactly(episode)


@pytest.mark.parametrize("number", range(len(EPISODES)), ids=NAMES)
def test_recording_anew_gives_the_same(number: int) -> None:
    """The expert says and does what it did: policies were trained on its words."""
    assert golden_regenerate_sokoban.record(*golden_regenerate_sokoban.PLANS[number]) == EPISODES[number]
