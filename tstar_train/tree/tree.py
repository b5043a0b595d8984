"""The cognitive tree itself: merged nodes with values, and what can be asked of them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tstar_train.algorithms.advantages import reward_moments
from tstar_train.tree.backup import Baseline, step_advantages
from tstar_train.tree.divergence import Divergence, find_divergences
from tstar_train.tree.equivalence import PairCounts
from tstar_train.tree.node import Member, Node


@dataclass(frozen=True, eq=False)
class Tree:
    """M trajectories of one task with equal decisions merged, and the values backed up through them.

    The graph is layered by depth and acyclic. It is a tree in the strict sense only with `same_parent=True`:
    otherwise trajectories that part and meet again share the later node.

    Attributes:
        nodes: the root first, then by depth and by lowest trajectory.
        rewards: terminal reward of each trajectory.
        gamma: discount per step.
        pairs: what was asked of `kl`, and what was saved.
    """

    nodes: tuple[Node, ...]
    rewards: tuple[float, ...]
    gamma: float
    pairs: PairCounts
    _node_of: dict[Member, Node] = field(repr=False)
    _lengths: tuple[int, ...] = field(repr=False)

    @property
    def root(self) -> Node:
        """The task prompt, shared by all trajectories."""
        return self.nodes[0]

    @property
    def zero_variance(self) -> bool:
        """Whether the rewards are all equal, so that nothing can be learnt from comparing them."""
        return reward_moments(self.rewards)[1] == 0

    def node_of(self, i: int, t: int) -> Node:
        """The node that step t of trajectory i was merged into; t = -1 is the root.

        Raises:
            IndexError: there is no such step.
        """
        try:
            return self._node_of[i, t]
        except KeyError:
            raise IndexError(
                f"no step {t} of trajectory {i}: the lengths are {list(self._lengths)}"
            ) from None

    def advantages(self, eps: float = 1e-6, baseline: Baseline = "group") -> list[NDArray[np.float64]]:
        """The advantage of every step, one array [T_i] per trajectory; see `backup.step_advantages`."""
        values = [
            [self._node_of[i, t].value for t in range(length)] for i, length in enumerate(self._lengths)
        ]
        return step_advantages(values, self.rewards, self.gamma, eps, baseline)

    def divergences(self, delta: float = 0.3, shrink: float = 0.0) -> list[Divergence]:
        """The nodes whose children differ in value by more than `delta`; see `find_divergences`."""
        return find_divergences(self.nodes, self.rewards, delta, shrink)

    def stats(self, delta: float = 0.3, shrink: float = 0.0) -> dict[str, float]:
        """The figures of one tree, as in the paper's table of tree statistics.

        Args:
            delta: as for `divergences`.
            shrink: as for `divergences`.

        Returns:
            Counts of nodes leave the root out, on both sides of merging. `p_div` is the share of
            `nodes_after` that is divergent (the root may be one of them), `mean_spread` the mean over
            divergent nodes (0 without any). `pairs_tested` counts pairs, `kl_calls` single directions;
            `pairs_possible` is the sum of `pairs_tested` and the three `pairs_skipped_*`, `pairs_compatible`
            that of tested and connected.
        """
        before, after = sum(self._lengths), len(self.nodes) - 1
        parents = Counter(child for node in self.nodes for child in node.children)
        divergences = self.divergences(delta, shrink)
        spreads = [divergence.spread for divergence in divergences]
        return {
            "nodes_before": before,
            "nodes_after": after,
            "merge_ratio": 1 - after / before,
            "edges": parents.total(),
            "depth": max(self._lengths),
            "multi_parent_nodes": sum(count > 1 for count in parents.values()),
            "zero_variance": int(self.zero_variance),
            "divergent_nodes": len(spreads),
            "p_div": len(spreads) / after,
            "mean_spread": math.fsum(spreads) / len(spreads) if spreads else 0.0,
            "pairs_possible": self.pairs.possible,
            "pairs_compatible": self.pairs.tested + self.pairs.skipped_connected,
            "pairs_tested": self.pairs.tested,
            "pairs_skipped_ending": self.pairs.skipped_ending,
            "pairs_skipped_history": self.pairs.skipped_history,
            "pairs_skipped_connected": self.pairs.skipped_connected,
            "kl_calls": self.pairs.kl_calls,
        }
