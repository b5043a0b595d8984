"""Progress credit: what is recorded is what Gymnasium's environment says of the same turns, and the gradient is linear in its weight."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch

import tstar_envs  # noqa: F401  (registers the ids)
from tstar_envs import find_entry
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.rollout.collect import EnvSpec, Sampling, collect
from tstar_train.rollout.credit import progress_made
from tstar_train.rollout.local import LocalEngine
from tstar_train.rollout.team import Team
from tstar_train.rollout.types import Turn
from tstar_train.run import make_env

CASES = {
    "sokoban-medium": ({"observation": "grid_coords", "multi_action": True, "horizon": 12, "end_when_lost": True}, "sokoban_harder"),
    "blocksworld-stack": ({"observation": "compact", "horizon": 25}, "blocksworld"),
}


@pytest.fixture(scope="module", params=CASES)
def played(request):
    torch.set_num_threads(1)
    options, weights = CASES[request.param]
    policy = load_policy("tiny", weights)
    env = gym.make(find_entry(request.param).id, split="train", **options).unwrapped
    sampling = Sampling(max_tokens=96, context="step", history=0, progress=True)
    tasks = env.task_ids("train")[:6]
    return env, collect(
        EnvSpec(request.param, options), LocalEngine(policy), policy.codec, tasks, size=4, split="train", seed="credit", sampling=sampling
    )


def test_every_turn_has_the_progress_that_the_environment_tells(played):
    env, trajectories = played
    ends = set()
    for t in trajectories:
        env.reset(options={"task": t.episode.task})
        assert env.progress() == 0.0
        told = []
        for step in t.steps:
            *_, terminated, truncated, info = env.step(step.reply)
            told.append(float(info["success"]) if terminated or truncated else env.progress())
        assert [turn.progress for turn in t.turns] == told
        made = progress_made(t.turns)
        assert made.sum() == pytest.approx(float(t.episode.success), abs=1e-12)
        np.testing.assert_allclose(np.cumsum(made), told, atol=1e-12)
        ends.add((t.episode.ended, t.episode.success))
    assert ("terminated", True) in ends and any(not success for _, success in ends), "episodes that win and that do not"


def test_the_turn_that_loses_gives_back_what_was_made():
    turns = [Turn([], [], [], 0, progress=p) for p in (0.25, 0.125, 0.75, 0.0)]
    np.testing.assert_array_equal(progress_made(turns), [0.25, -0.125, 0.625, -0.75])


def test_progress_is_asked_for_only_where_it_is_wanted():
    policy = load_policy("tiny", "sokoban")
    options = {"observation": "grid_coords", "horizon": 4}
    tasks = gym.make("tstar/Sokoban-easy", split="train").unwrapped.task_ids("train")[:1]
    (one,) = collect(
        EnvSpec("sokoban-easy", options), LocalEngine(policy), policy.codec, tasks, size=1, split="train", seed="s",
        sampling=Sampling(context="step", history=0),
    )  # fmt: skip
    assert [turn.progress for turn in one.turns] == [None] * len(one.turns)
    with pytest.raises(ValueError, match=r"turn 0 has no progress: collect .* Sampling\(progress=True\)"):
        progress_made(one.turns)


def gradient(credit: float, negative_weight: float) -> torch.Tensor:
    """Of the base loss, after the same rollouts whatever is asked for."""
    easy = find_entry("tstar/Sokoban-easy")
    preset = tiny(easy)
    rollout = dataclasses.replace(preset.rollout, tasks=4, group=4, horizon=8, progress_credit=credit)
    optim = dataclasses.replace(preset.optim, updates=1, negative_weight=negative_weight)
    config = dataclasses.replace(preset, processes=1, rollout=rollout, optim=optim, graft=dataclasses.replace(preset.graft, enabled=False))
    team = Team(load_policy("tiny", "sokoban"), None, config, EnvSpec(config.env, dict(config.env_options)), 1)
    team.play(make_env(config).task_ids("train")[:4], 0)
    return team.gradient("base", 0, 16.0)[0]


def test_the_gradient_is_linear_in_the_credit_and_what_is_below_zero_is_weighed():
    torch.set_num_threads(1)
    without, one, three = (gradient(credit, 1.0) for credit in (0.0, 1.0, 3.0))
    assert (one - without).norm() > 0
    torch.testing.assert_close(three - without, 3 * (one - without), rtol=1e-3, atol=1e-5)
    good_without, good = (gradient(credit, 0.0) for credit in (0.0, 1.0))
    half_without, half = (gradient(credit, 0.5) for credit in (0.0, 1.0))
    whole, positive = one - without, good - good_without
    assert (whole - positive).norm() > 0
    torch.testing.assert_close(half - half_without, 0.5 * (whole + positive), rtol=1e-3, atol=1e-5)
