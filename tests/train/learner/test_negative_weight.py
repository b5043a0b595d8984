"""Negative advantages and credits weighed: the gradient is linear in the weight and in the credit, and penalties are not touched."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch
from policies import trainer

from tstar_envs import find_entry
from tstar_train.build import make_env
from tstar_train.learner.base import Norms
from tstar_train.loop import iterate
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny

EASY = find_entry("tstar/Sokoban-easy")


@cache
def gradient(weight: float, *, penalised: bool, progress_credit: float) -> torch.Tensor:
    """Of the base loss, after the same rollouts whatever is asked for."""
    preset = tiny(EASY)
    rollout = dataclasses.replace(
        preset.rollout, tasks_per_iteration=2, group_size=4, horizon=6, progress_credit=progress_credit
    )
    if not penalised:
        rollout = dataclasses.replace(rollout, invalid_penalty=0.0, revisit_penalty=0.0)
    optim = dataclasses.replace(preset.optim, num_minibatches=1, negative_weight=weight)
    config = dataclasses.replace(
        preset,
        processes=1,
        rollout=rollout,
        optim=optim,
        graft=dataclasses.replace(preset.graft, enabled=False),
    )
    one = trainer(config, load_policy("tiny", "sokoban"), make_env(config).task_ids("train")[:2])
    kept = []
    one.learner.apply = lambda factor: kept.append(one.learner.gradient) or Norms(0.0, {})
    iterate(one, 0)
    return kept[0]


@pytest.mark.slow
def test_the_gradient_is_linear_in_the_weight_and_penalties_are_not_weighed():
    torch.set_num_threads(1)
    none, half, whole = (gradient(weight, penalised=False, progress_credit=0.0) for weight in (0.0, 0.5, 1.0))
    positive, negative = none, whole - none
    assert positive.norm() > 0 and negative.norm() > 0
    torch.testing.assert_close(half, positive + 0.5 * negative, rtol=1e-3, atol=1e-5)
    penalised_none, penalised_whole = (
        gradient(weight, penalised=True, progress_credit=0.0) for weight in (0.0, 1.0)
    )
    assert (penalised_none - none).norm() > 0
    torch.testing.assert_close(penalised_whole - penalised_none, negative, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_gradient_is_linear_in_the_progress_credit_and_what_is_below_zero_is_weighed():
    torch.set_num_threads(1)
    without, one, three = (
        gradient(1.0, penalised=False, progress_credit=credit) for credit in (0.0, 1.0, 3.0)
    )
    assert (one - without).norm() > 0
    torch.testing.assert_close(three - without, 3 * (one - without), rtol=1e-3, atol=1e-5)
    good_without, good = (gradient(0.0, penalised=False, progress_credit=credit) for credit in (0.0, 1.0))
    half_without, half = (gradient(0.5, penalised=False, progress_credit=credit) for credit in (0.0, 1.0))
    whole, positive = one - without, good - good_without
    assert (whole - positive).norm() > 0
    torch.testing.assert_close(half - half_without, 0.5 * (whole + positive), rtol=1e-3, atol=1e-5)
