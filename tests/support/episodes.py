"""Made-up episodes through named states, and the algorithms that credit them."""

from __future__ import annotations

import dataclasses

from tstar_envs import Episode, Step
from tstar_train.algorithms import algorithm_class
from tstar_train.config import Config
from tstar_train.presets import with_algorithm
from tstar_train.types import Trajectory, Turn


def episode_of(keys, reward, *, success=None, start="start", replies=None, member=0):
    """A trajectory through states named by their keys; ``replies`` are the lengths of its turns."""
    won = reward == 1.0 if success is None else success
    record = Episode(
        "e", "t", "task", "train", "1", "n", "", "", reward=reward, success=won, ended="terminated"
    )
    for key in keys:
        facts = {
            "thought": "",
            "action": "a",
            "action_valid": True,
            "invalid_reason": "",
            "modifies_state": False,
            "effect_key": "",
        }
        record.steps.append(Step(reply="r", observation="o", **facts, state_key=key))
    lengths = replies or [1] * len(keys)
    turns, context = [], [1]
    for number, length in enumerate(lengths):
        reply = [10 + number] * length
        turns.append(Turn(list(context), reply, [-0.5] * length, 0))
        context += [*reply, 2, 3]
    return Trajectory(0, member, record, turns, start_key=start)


def made(name, **parts):
    """An algorithm with options: ``made("gigpo", gigpo=GiGPOConfig(...))``."""
    return algorithm_class(name)(dataclasses.replace(with_algorithm(Config(env="hotpotqa"), name), **parts))
