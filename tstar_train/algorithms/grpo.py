"""GRPO: episodes of one task against one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tstar_train.advantages import grpo
from tstar_train.algorithms.base import Advantages, Algorithm, whole_episode

if TYPE_CHECKING:
    from tstar_train.types import Trajectory


class GRPO(Algorithm):
    """GRPO: an episode's reward minus the group's mean, divided by its standard deviation.

    Every turn of the episode gets this advantage (``advantages.grpo``).
    """

    def episode_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        return whole_episode(group, grpo([t.reward for t in group], [0] * len(group)))
