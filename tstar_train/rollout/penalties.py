"""Penalties of single turns, beside the advantage that the end of their episode gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tstar_envs import Step
from tstar_train.config import RolloutConfig


def penalties(steps: Sequence[Step], rollout: RolloutConfig) -> NDArray[np.float64]:
    """What is subtracted from the advantage of each turn of an episode, shape (turns,).

    Args:
        steps: the turns.
        rollout: ``invalid_penalty`` for an invalid action, ``revisit_penalty`` for a valid one that leads to a state in which an
            earlier turn had left the environment already (``state_key``).
    """
    result = np.zeros(len(steps))
    seen: set[str] = set()
    for number, step in enumerate(steps):
        if not step.action_valid:
            result[number] = rollout.invalid_penalty
        elif step.state_key in seen:
            result[number] = rollout.revisit_penalty
        seen.add(step.state_key)
    return result
