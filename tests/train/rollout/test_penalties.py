"""Penalties of single turns, on episodes that the environment played."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import tstar_envs  # noqa: F401  (registers the ids)
from tstar_envs import Step
from tstar_train.config import RolloutConfig
from tstar_train.learner.rows import penalties

# A room with the player at the left end of a corridor of three, and the box out of its way.
LEVEL = "#######\n#@   ##\n###$###\n### ###\n###.###\n#######\n"


@pytest.fixture
def steps(tmp_path):
    """Plays actions and gives the turns."""
    path = tmp_path / "level.xsb"
    path.write_text(LEVEL)
    env = gym.make("tstar/Sokoban-easy", levels=str(path)).unwrapped

    def play(*actions: str) -> list[Step]:
        env.reset(options={"task": env.task_ids("test")[0]})
        turns = []
        for action in actions:
            observation, _, _, _, info = env.step(action)
            turns.append(Step.from_info(action, observation, info))
        return turns

    return play


def test_turns_that_lead_back_are_fined(steps):
    turns = steps("Right", "Right", "Left", "Up", "Right", "jump", "Left", "Right", "Down")
    both = penalties(turns, RolloutConfig(invalid_penalty=0.5, revisit_penalty=0.25))
    #                        new  new  back  bump  back  invalid back back, and the push is new
    np.testing.assert_array_equal(both, [0, 0, 0.25, 0.25, 0.25, 0.5, 0.25, 0.25, 0])
    np.testing.assert_array_equal(penalties(turns, RolloutConfig()), np.zeros(9))


def test_one_box_more_makes_another_state(steps):
    # To the same cell twice, with a push between.
    turns = steps("Right", "Right", "Down", "Up")
    np.testing.assert_array_equal(penalties(turns, RolloutConfig(revisit_penalty=1.0)), np.zeros(4))
