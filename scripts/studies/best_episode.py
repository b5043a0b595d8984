"""Baseline of the way: imitate the best single episode of each group (docs/results/algorithms.md).

    python -m tstar_train --env blocksworld-stack --algo scripts.studies.best_episode:BestEpisode

The best is the one with the highest reward, then with the fewest turns, then the first. Its turns get the extra advantage that
``--graft.source way`` gives to the way's: the best reward minus the group's mean. Groups of equal rewards get none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tstar_train.algorithms.grpo import GRPO
from tstar_train.distributed import Communicator
from tstar_train.types import Group


class BestEpisode(GRPO):
    """GRPO, or the tree's credit with T-STAR, and the imitation of each group's best episode."""

    def batch_advantages(self, groups: Sequence[Group], world: Communicator) -> None:
        """See ``Algorithm``."""
        for group in groups:
            rewards = [t.reward for t in group.trajectories]
            best = min(range(len(rewards)), key=lambda i: (-rewards[i], len(group.trajectories[i].turns), i))
            group.advantages[best] = group.advantages[best] + (rewards[best] - np.mean(rewards))
