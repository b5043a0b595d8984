"""Negative advantages weighed: the gradient is linear in the weight, and fines are not touched."""

from __future__ import annotations

import dataclasses

import torch

from tstar_envs import find_entry
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.team import Team
from tstar_train.run import make_env

EASY = find_entry("tstar/Sokoban-easy")


def gradient(weight: float, fined: bool) -> torch.Tensor:
    """Of the base loss, after the same rollouts whatever is asked for."""
    preset = tiny(EASY)
    rollout = dataclasses.replace(preset.rollout, tasks=4, group=4, horizon=8)
    if not fined:
        rollout = dataclasses.replace(rollout, invalid_penalty=0.0, revisit_penalty=0.0)
    optim = dataclasses.replace(preset.optim, updates=1, negative_weight=weight)
    config = dataclasses.replace(preset, processes=1, rollout=rollout, optim=optim, graft=dataclasses.replace(preset.graft, enabled=False))
    team = Team(load_policy("tiny", "sokoban"), None, config, EnvSpec(config.env, dict(config.env_options)), 1)
    team.play(make_env(config).task_ids("train")[:4], 0)
    return team.gradient("base", 0, 16.0)[0]


def test_the_gradient_is_linear_in_the_weight_and_fines_are_not_weighed():
    torch.set_num_threads(1)
    none, half, whole = (gradient(weight, fined=False) for weight in (0.0, 0.5, 1.0))
    positive, negative = none, whole - none
    assert positive.norm() > 0 and negative.norm() > 0
    torch.testing.assert_close(half, positive + 0.5 * negative, rtol=1e-3, atol=1e-5)
    fined_none, fined_whole = (gradient(weight, fined=True) for weight in (0.0, 1.0))
    assert (fined_none - none).norm() > 0
    torch.testing.assert_close(fined_whole - fined_none, negative, rtol=1e-3, atol=1e-5)
