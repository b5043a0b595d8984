"""HGPO (arXiv 2602.22817): groups within groups, by the states that led to a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tstar_train.advantages import discounted_returns, grpo, hgpo_step
from tstar_train.algorithms.base import Advantages, Algorithm, whole_episode
from tstar_train.algorithms.gigpo import actions_taken, turn_rewards

if TYPE_CHECKING:
    from tstar_train.types import Trajectory


class HGPO(Algorithm):
    """HGPO (He et al. 2026): GiGPO's step-level advantage at several levels of agreement (``advantages.hgpo_step``).

    The coarsest level compares a turn's discounted return with those of all turns that began in the same state; each finer level asks
    for one more equal earlier state, up to ``history``. Finer levels weigh more (``weight_power``). The published runs have no
    episode-level term, so ``episode_weight`` is 0. Their switch that makes it a level of its own (``base_group``) is not offered, since
    T-STAR could not replace it.
    """

    def episode_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        options = self.config.hgpo
        scale = options.mode == "mean_std_norm"
        credit = grpo([t.reward for t in group], [0] * len(group), scale=scale)
        return whole_episode(group, options.episode_weight * credit)

    def step_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        options = self.config.hgpo
        returns = [discounted_returns(turn_rewards(t), options.gamma) for t in group]
        contexts = [
            before[max(0, turn - options.history) : turn + 1]
            for before in (t.states_before for t in group)
            for turn in range(len(before))
        ]
        flat = hgpo_step(
            np.concatenate(returns),
            contexts,
            options.weight_power,
            options.mode,
            actions=actions_taken(group),
            shrink=options.shrink,
            gate=options.gate,
        )
        ends = np.cumsum([len(r) for r in returns])[:-1]
        return [options.step_weight * part for part in np.split(flat, ends)]
