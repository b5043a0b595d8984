"""GiGPO (arXiv 2505.10978): groups within groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tstar_train.advantages import calibrated, discounted_returns, gigpo_step, grpo
from tstar_train.algorithms.base import Advantages, Algorithm, whole_episode

if TYPE_CHECKING:
    from tstar_train.types import Trajectory


class GiGPO(Algorithm):
    """GiGPO (Feng et al. 2025): an episode-level plus a step-level advantage (its equation 8).

    The episode-level term compares rewards within the group. The step-level term compares a turn's discounted return with those of all
    turns of the group that began in the same state, at any depth; it is weighted by ``step_weight``. ``mode`` decides for both whether to
    divide by the standard deviation. ``shrink`` and ``gate`` calibrate the step-level term by its evidence
    (ECPO, ``advantages.calibrated``).

    The T-STAR paper's "outer group size 4 and inner group size 2, 8 trajectories per task" does not exist in GiGPO, whose inner groups
    are as large as a state is common. We read it as ``rollout.group_size`` 8 = 4 x 2, and ``inner`` 2 as the minimum number of turns in a
    state that are compared.
    """

    def episode_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        scale = self.config.gigpo.mode == "mean_std_norm"
        return whole_episode(group, grpo([t.reward for t in group], [0] * len(group), scale=scale))

    def step_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        options = self.config.gigpo
        returns = [discounted_returns(turn_rewards(t), options.gamma) for t in group]
        anchors = [anchor for t in group for anchor in t.states_before]
        met = Counter(anchors)
        # A state that too few turns began in is nobody's equal: a name of its own leaves the turn uncompared.
        names = [
            anchor if met[anchor] >= options.inner else (anchor, place)
            for place, anchor in enumerate(anchors)
        ]
        flat = gigpo_step(np.concatenate(returns), names, [0] * len(names), options.mode)
        flat = calibrated(flat, names, actions_taken(group), options.shrink, options.gate)
        ends = np.cumsum([len(r) for r in returns])[:-1]
        return [options.step_weight * part for part in np.split(flat, ends)]


def turn_rewards(trajectory: Trajectory) -> list[float]:
    """Compute each turn's reward, shape (turns,): shaping on the way, the rest at the last turn."""
    rewards = [turn.shaping for turn in trajectory.turns]
    rewards[-1] += trajectory.reward - sum(rewards)
    return rewards


def actions_taken(group: Sequence[Trajectory]) -> list[Hashable]:
    """List each turn's action over all members, as they are told apart; all invalid ones are one, None."""
    return [step.action if step.action_valid else None for t in group for step in t.steps[: len(t.turns)]]
