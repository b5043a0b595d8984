"""The cognitive tree itself: merged nodes with values, and what can be asked of them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tstar_train.algorithms.advantages import reward_moments
from tstar_train.tree.backup import Baseline, Credit, gained_advantages, step_advantages
from tstar_train.tree.divergence import Divergence, find_divergences
from tstar_train.tree.equivalence import PairCounts
from tstar_train.tree.node import Member, Node

Nodes = Literal["depth", "state"]


@dataclass(frozen=True, eq=False)
class Tree:
    """M trajectories of one task with equal decisions merged, and the values of what came of them.

    By depth the graph is layered and acyclic. It is a tree in the strict sense only with `same_parent=True`:
    otherwise trajectories that part and meet again share the later node. By state it may hold cycles.

    Attributes:
        nodes: the root first, then by depth and by lowest trajectory.
        rewards: terminal reward of each trajectory.
        gamma: discount per step.
        pairs: what was asked of `kl`, and what was saved.
        by: what makes a node, "depth" (equal decisions at one depth) or "state".
    """

    nodes: tuple[Node, ...]
    rewards: tuple[float, ...]
    gamma: float
    pairs: PairCounts
    _node_of: dict[Member, Node] = field(repr=False)
    _lengths: tuple[int, ...] = field(repr=False)
    by: Nodes = "depth"

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

    def advantages(
        self, eps: float = 1e-6, baseline: Baseline = "group", credit: Credit = "value"
    ) -> list[NDArray[np.float64]]:
        """The advantage of every step, one array [T_i] per trajectory.

        Args:
            eps: added to the sample standard deviation of the rewards.
            baseline: what "value" subtracts by depth; see `backup.step_advantages`. By state it is V(start).
            credit: "value" credits a step with what it leads to, "transition" with what it gained: that less the value of where
                it was taken.

        Raises:
            ValueError: an unknown baseline or credit.
        """
        for name, value, valid in (("baseline", baseline, Baseline), ("credit", credit, Credit)):
            if value not in get_args(valid):
                raise ValueError(f"{name} is {value!r}: choose one of {', '.join(get_args(valid))}")
        values = [
            [self._node_of[i, t].value for t in range(-1, length)] for i, length in enumerate(self._lengths)
        ]
        after = [row[1:] for row in values]
        if credit == "transition":
            return gained_advantages([row[:-1] for row in values], after, self.rewards, eps)
        if self.by == "state":
            return gained_advantages([row[:1] * (len(row) - 1) for row in values], after, self.rewards, eps)
        return step_advantages(after, self.rewards, self.gamma, eps, baseline)

    def divergences(self, delta: float = 0.3, shrink: float = 0.0) -> list[Divergence]:
        """The nodes whose children differ in value by more than `delta`; see `find_divergences`."""
        return find_divergences(self.nodes, self.rewards, delta, shrink, self._passage)

    def _passage(self, node: Node, child: Node, i: int) -> int:
        """The step by which trajectory i first went from a node to its child."""
        left = sorted(t for j, t in node.members if j == i)
        return next(t + 1 for t in left if self._node_of[i, t + 1] is child)

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
