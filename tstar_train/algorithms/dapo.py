"""DAPO (arXiv 2503.14476), and what the T-STAR paper says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tstar_train.advantages import soft_overlong
from tstar_train.algorithms.grpo import GRPO

if TYPE_CHECKING:
    from tstar_train.types import Trajectory

# Where temperature annealing ends, as the T-STAR paper has it.
LAST_TEMPERATURE = 0.5


class DAPO(GRPO):
    """DAPO (Yu et al. 2025): GRPO with dynamic sampling and a length penalty.

    Groups without both successes and failures are replaced by further tasks. Rewards lose a penalty for replies near the length limit.
    Its default options clip the ratio at .2 below and .28 above and give every token equal weight.
    """

    def shape_rewards(self, trajectories: Sequence[Trajectory]) -> None:
        """Apply the soft overlong penalty; the longest reply of an episode decides, since the limit is per reply."""
        dapo, most = self.config.dapo, self.config.rollout.max_tokens
        for trajectory in trajectories:
            longest = max((len(turn.reply) for turn in trajectory.turns), default=0)
            trajectory.penalty = -soft_overlong(
                longest, most, round(dapo.overlong_buffer * most), dapo.overlong_factor
            )

    def filter_group(self, group: Sequence[Trajectory]) -> bool:
        """Dynamic sampling: whether some members succeeded and others did not.

        By success and never by what the members are compared by: groups that all failed but differ in a shaped reward would survive,
        and have destroyed policies (notes of verl's recipe).
        """
        return len({t.episode.success for t in group}) > 1


class DAPOPaper(DAPO):
    """DAPO as the T-STAR paper describes it: ratio clipped to [0.8, 1.2], sampling temperature falling from 1.0 to 0.5.

    Its "dynamic advantage scaling" is not defined there; here it is the standard deviation of the group, by which GRPO's advantage is
    divided.
    """

    def temperature(self, done: float) -> float:
        """Linear from ``rollout.temperature`` to half of it (1.0 to 0.5): T (1 - done / 2)."""
        start = self.config.rollout.temperature
        return start + (LAST_TEMPERATURE * start - start) * min(max(done, 0.0), 1.0)
