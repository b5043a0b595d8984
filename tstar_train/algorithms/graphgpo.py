"""GraphGPO (arXiv 2605.26684): steps along the shortest known way."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tstar_train.advantages import graphgpo_step, grpo
from tstar_train.algorithms.base import Advantages, Algorithm, whole_episode

if TYPE_CHECKING:
    from tstar_train.types import Trajectory

# Outcomes of the last step of an episode; state keys are texts, so no state is one of these.
WON, LOST = ("won",), ("lost",)


class GraphGPO(Algorithm):
    """GraphGPO (Cheng et al. 2026): an episode-level advantage plus one by distance to success.

    All transitions of the group form one graph, in which the last step of a successful episode leads to the goal. A turn is compared with
    all turns from its state by how near to the goal it led (``advantages.graphgpo_step``). The episode-level term is GRPO's. A group
    without a success has that term alone.

    Choice: an episode that the rules ended without success leads to a state of its own that nobody leaves. The recipe takes the last
    observation, which may equal one that others left. A cut-off episode leads to the state it reached.
    """

    def episode_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        return whole_episode(group, grpo([t.reward for t in group], [0] * len(group)))

    def step_advantages(self, group: Sequence[Trajectory]) -> Advantages:
        """See ``Algorithm``."""
        options = self.config.graphgpo
        before = [state for t in group for state in t.states_before]
        after = [state for t in group for state in states_after(t)]
        flat = graphgpo_step(before, after, WON, options.decay)
        ends = np.cumsum([len(t.turns) for t in group])[:-1]
        return [options.step_weight * part for part in np.split(flat, ends)]


def states_after(trajectory: Trajectory) -> list[Hashable]:
    """List the state that each turn led to, with ``WON`` or ``LOST`` where the rules ended the episode."""
    states: list[Hashable] = [step.state_key for step in trajectory.steps[: len(trajectory.turns)]]
    if trajectory.episode.success:
        states[-1] = WON
    elif trajectory.episode.ended == "terminated":
        states[-1] = LOST
    return states
