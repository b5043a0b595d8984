"""Parts of a policy gradient at fixed weights (``scripts/studies/measure_gradients.py``)."""

import dataclasses

import pytest
import torch

from scripts.studies import measure_gradients as script
from tstar_envs import find_entry
from tstar_train.policy.files import settings_name
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny


def test_only_the_number_of_tasks_differs_from_the_preset():
    own = tiny(find_entry("alfworld"), "tiny")
    assert script.preset("alfworld", "tiny", None) == own
    fewer = script.preset("alfworld", "tiny", 8)
    assert fewer.rollout.tasks_per_iteration == 8 != own.rollout.tasks_per_iteration
    assert fewer == dataclasses.replace(own, rollout=dataclasses.replace(own.rollout, tasks_per_iteration=8))


def test_the_gain_is_the_mean_over_both_halves_of_a_step_along_the_other():
    directions = torch.tensor([[3.0, 4.0], [1.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    objective = torch.tensor([[1.0, 0.0], [0.0, 5.0], [1.0, 0.0], [0.0, 5.0]])
    # Along (.6, .8) the odd half's (0, 5) gains 4; along (1, 0) the even half's (1, 0) gains 1.
    assert script.gain(directions, objective) == pytest.approx(2.5)


@pytest.mark.slow
def test_the_parts_of_the_gradient_add_up_and_are_of_the_same_episodes(capsys):
    config = script.preset("sokoban-easy", "tiny", 2)
    policy = load_policy("tiny", settings_name("tiny", find_entry("sokoban-easy")))
    parts = script.base_gradients(policy, config, 2)
    weights = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert {part.shape for part in parts.values()} == {(2, weights)}
    torch.testing.assert_close(parts["above zero"] + parts["below zero"], parts["whole"])
    assert min(float(parts[name].norm()) for name in ("above zero", "below zero")) > 0
    torch.testing.assert_close(script.base_gradients(policy, config, 2)["whole"], parts["whole"])
