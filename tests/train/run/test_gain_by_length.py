"""Gain against the length of a task (``scripts/studies/gain_by_length.py``)."""

import gymnasium as gym
import numpy as np
import pytest

from scripts.studies import gain_by_length as script
from tstar_envs import UnknownOption
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_train.build import task_ids_of


def line(method, seed, outcomes):
    measured = {"sampled": outcomes, "greedy": outcomes}
    return {"group": "g", "method": method, "seed": seed, "samples": 1, "before": measured, "after": measured}


def test_gains_are_means_of_the_tasks_of_each_length():
    lengths = np.array([9] * 30 + [10] * 25 + [15] * 5 + [16] * 10)
    base = [line("grpo", seed, [0.0] * 70) for seed in (0, 1)]
    ours = [
        line("tstar-grpo", 0, [1.0] * 30 + [0.0] * 40),
        line("tstar-grpo", 1, [0.0] * 30 + [1.0] * 40),
        line("tstar-grpo", 2, [1.0] * 70),  # a seed that the base lacks does not count
    ]
    pairs = [("tstar-grpo", "grpo"), ("bellman", "grpo")]
    [row] = script.rows(base + ours, "g", pairs, lengths)
    assert row == (
        "| g: tstar-grpo - grpo | 2 | +0.500 (+0.500 to +0.500), 30 | +0.500 (+0.500 to +0.500), 30 | (10) | "
        "+0.000 (+0.000 to +0.000) |"
    )


def test_a_group_of_one_length_has_no_difference_of_lengths():
    lines = [line("grpo", 0, [0.0] * 30), line("tstar-grpo", 0, [1.0] * 30)]
    [row] = script.rows(lines, "g", [("tstar-grpo", "grpo")], np.array([5] * 20 + [12] * 10))
    assert row == "| g: tstar-grpo - grpo | 1 | +1.000 (+1.000 to +1.000), 20 | (10) | (0) |  |"
    assert not [*script.rows(lines, "g", [("tstar-grpo", "grpo")], np.array([5] * 15 + [12] * 15))], (
        "too few of each"
    )


def test_the_difference_of_two_lengths_has_the_interval_of_two_means():
    rng = np.random.default_rng(1)
    longer, shorter = rng.normal(0.1, 1, 400), rng.normal(0.0, 1, 400)
    found, low, high = (
        float(part.strip("()to")) for part in script.unpaired(longer, shorter).split() if part != "to"
    )
    assert found == pytest.approx(longer.mean() - shorter.mean(), abs=1e-3)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(2 / 400), rel=0.1)


@pytest.mark.parametrize("difficulty", ["easy", "medium"])
def test_a_task_is_as_long_as_its_shortest_solution(difficulty):
    """In moves, however many of them a turn may hold."""
    env = SokobanEnv(difficulty=difficulty, horizon=200, split="valid")
    several = SokobanEnv(difficulty=difficulty, horizon=200, split="valid", multi_action=True)
    for task in task_ids_of(env, "valid")[:4]:
        env.reset(options={"task": task})
        moves, done = 0, False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.oracle())
            moves, done = moves + 1, terminated or truncated
        assert script.length_of(env, task) == script.length_of(several, task) == moves


def test_a_task_without_an_optimum_is_as_long_as_the_experts_episode():
    env = gym.make("tstar/HotpotQA", split="valid").unwrapped
    task = task_ids_of(env, "valid")[0]
    assert script.length_of(env, task) == 3
    short = gym.make("tstar/HotpotQA", split="valid", horizon=1).unwrapped
    with pytest.raises(UnknownOption, match="does not solve"):
        script.length_of(short, task)
