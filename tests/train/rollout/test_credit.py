"""Progress credit: what is recorded is what Gymnasium's environment says of the same turns."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

import tstar_envs  # noqa: F401  (registers the ids)
from tstar_envs import find_entry
from tstar_train.engines.local import LocalEngine
from tstar_train.learner.rows import progress_made
from tstar_train.policy.model import load_policy
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.player import Sampling
from tstar_train.types import Turn

CASES = {
    "sokoban-medium": (
        {"observation": "grid_coords", "multi_action": True, "horizon": 12, "end_when_lost": True},
        "sokoban_harder",
    ),
    "blocksworld-stack": ({"observation": "compact", "horizon": 25}, "blocksworld"),
}


@pytest.fixture(
    scope="module", params=["sokoban-medium", pytest.param("blocksworld-stack", marks=pytest.mark.slow)]
)
def played(request):
    torch.set_num_threads(1)
    options, weights = CASES[request.param]
    policy = load_policy("tiny", weights)
    env = gym.make(find_entry(request.param).id, split="train", **options).unwrapped
    sampling = Sampling(max_tokens=96, context="step", history=0, progress=True)
    tasks = env.task_ids("train")[:4]
    return env, collect(
        EnvSpec(request.param, options),
        LocalEngine(policy),
        policy.codec,
        tasks,
        size=4,
        split="train",
        seed="credit",
        sampling=sampling,
    )


def test_every_turn_has_the_progress_that_the_environment_tells(played):
    env, trajectories = played
    ends = set()
    for t in trajectories:
        env.reset(options={"task": t.episode.task})
        assert env.progress() == 0.0
        progress = []
        for step in t.steps:
            *_, terminated, truncated, info = env.step(step.reply)
            progress.append(float(info["success"]) if terminated or truncated else env.progress())
        assert [turn.progress for turn in t.turns] == progress
        made = progress_made(t.turns)
        assert made.sum() == pytest.approx(float(t.episode.success), abs=1e-12)
        np.testing.assert_allclose(np.cumsum(made), progress, atol=1e-12)
        ends.add((t.episode.ended, t.episode.success))
    assert ("terminated", True) in ends and any(not success for _, success in ends), (
        "episodes that win and that do not"
    )


def test_the_turn_that_loses_gives_back_what_was_made():
    turns = [Turn([], [], [], 0, progress=p) for p in (0.25, 0.125, 0.75, 0.0)]
    np.testing.assert_array_equal(progress_made(turns), [0.25, -0.125, 0.625, -0.75])


def test_progress_is_asked_for_only_where_it_is_wanted():
    policy = load_policy("tiny", "sokoban")
    options = {"observation": "grid_coords", "horizon": 4}
    tasks = gym.make("tstar/Sokoban-easy", split="train").unwrapped.task_ids("train")[:1]
    (one,) = collect(
        EnvSpec("sokoban-easy", options),
        LocalEngine(policy),
        policy.codec,
        tasks,
        size=1,
        split="train",
        seed="s",
        sampling=Sampling(context="step", history=0),
    )
    assert [turn.progress for turn in one.turns] == [None] * len(one.turns)
    with pytest.raises(ValueError, match=r"turn 0 has no progress: collect .* Sampling\(progress=True\)"):
        progress_made(one.turns)
