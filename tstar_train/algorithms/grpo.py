"""GRPO: episodes of one task against one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tstar_train.advantages import grpo
from tstar_train.algorithms.base import Advantages, Algorithm, whole_episode

if TYPE_CHECKING:
    from tstar_train.types import Trajectory


class GRPO(Algorithm):
    """An episode's reward is compared with the mean of all episodes of the same task, in units of their standard deviation; every
    turn of the episode gets the result (``advantages.grpo``).
    """

    def episode_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        return whole_episode(group, grpo([t.reward for t in group], [0] * len(group)))
