"""Gymnasium's own wrappers and vectors over this project's space of strings, as they work over ``spaces.Text``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import (
    DelayObservation,
    FrameStackObservation,
    OrderEnforcing,
    RecordEpisodeStatistics,
)

import tstar_envs
from tstar_envs.spaces import Unicode

ENV = "tstar/Sokoban-easy"


def test_frames_are_stacked_and_filled_with_empty_texts() -> None:
    env = FrameStackObservation(gym.make(ENV), 3, padding_type="zero")
    stacked, _ = env.reset(seed=0)
    assert stacked in env.observation_space and list(stacked)[:2] == ["", ""] and list(stacked)[2]
    after, *_ = env.step("Up")
    assert list(after)[1] == list(stacked)[2]


def test_observations_are_delayed() -> None:
    env = DelayObservation(gym.make(ENV), 2)
    first, _ = env.reset(seed=0)
    assert first == "" and env.step("Up")[0] == "" and env.step("Down")[0] != ""


@pytest.mark.parametrize("wrapper", [RecordEpisodeStatistics, OrderEnforcing])
def test_other_wrappers(wrapper: Any) -> None:
    env = wrapper(gym.make(ENV))
    env.reset(seed=1)
    assert isinstance(env.step("Up")[0], str)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_vector_of_differing_spaces(mode: str) -> None:
    kinds: dict[str, Any] = {"sync": gym.vector.SyncVectorEnv, "async": gym.vector.AsyncVectorEnv}
    more = {} if mode == "sync" else {"shared_memory": False}
    makers = [lambda name=name: gym.make(name) for name in (ENV, "tstar/Blocksworld-stack")]
    vector = kinds[mode](makers, observation_mode="different", **more)
    try:
        observations, _ = vector.reset(seed=3)
        assert len(observations) == 2 and observations in vector.observation_space
        assert all(isinstance(space, Unicode) for space in vector.observation_space)
        assert len(vector.step(["Up", "x"])[0]) == 2
    finally:
        vector.close()


def test_ids_are_registered() -> None:
    assert any(entry.id == ENV for entry in tstar_envs.list_envs())
