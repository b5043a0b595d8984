"""Cognitive tree: built from a group, values backed up, credit of steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tstar_train.advantages import reward_moments
from tstar_train.tree.divergence import Divergence, find_divergences
from tstar_train.tree.merging import KL, History, PairCounts, Prefetch, Symmetry, equivalence_classes
from tstar_train.tree.node import Member, Node, TrajectoryLike
from tstar_train.tree.states import StateGraph, Values, Way, state_nodes

Baseline = Literal["group", "discounted"]
Credit = Literal["value", "transition"]


def node_value(rewards: Sequence[float], children: Mapping[Node, frozenset[int]], gamma: float) -> float:
    """Q(v): the members' mean reward at a leaf, gamma * sum_v' w(v -> v') Q(v') elsewhere (`eq:qtree`).

    A child's value averages over all who pass through it, also those who came from another parent: in a graph
    with such nodes Q is the mean over walks along the edge weights, not the mean of the members' own rewards.

    Args:
        rewards: the terminal rewards of the node's members.
        children: the next nodes, valued already, each with the trajectories that go there from here.
        gamma: discount per step.

    Returns:
        The value in units of reward. Sums are exactly rounded: the order of members never shows.
    """
    if not children:
        return math.fsum(rewards) / len(rewards)
    total = math.fsum(len(through) * child.value for child, through in children.items())
    return gamma * (total / len(rewards))


def step_advantages(
    values: Sequence[Sequence[float]], rewards: Sequence[float], gamma: float, eps: float, baseline: Baseline
) -> list[NDArray[np.float64]]:
    """A(v) = (Q(v) - baseline) / (std R + eps) for every step (`eq:tree_advantage`).

    Args:
        values: per trajectory, Q of each step's node, [T_i].
        rewards: the M terminal rewards.
        gamma: discount per step, for the "discounted" baseline.
        eps: added to the sample standard deviation.
        baseline: "group" subtracts mean R, as the paper does; "discounted" the mean over all M trajectories
            of gamma^(T_i - depth) R_i, which takes out the drift that gamma < 1 brings. The exponent is
            negative for a trajectory that ended above that depth: its reward is then compounded, so that at
            every depth the baseline is one and the same mean of gamma^(T_i) R_i, seen from there.

    Returns:
        Per trajectory, [T_i] float64; exactly 0 where the rewards are all equal or there is one trajectory.

    Raises:
        ValueError: an unknown baseline.
    """
    if baseline not in get_args(Baseline):
        raise ValueError(f"baseline is {baseline!r}: choose one of {', '.join(get_args(Baseline))}")
    mean, std = reward_moments(rewards)
    if std == 0:
        return [np.zeros(len(row)) for row in values]
    lengths = [len(row) for row in values]
    subtracted = np.full(max(lengths), mean)
    if baseline == "discounted":
        for t in range(max(lengths)):
            worth = [
                gamma ** (length - t - 1) * reward for length, reward in zip(lengths, rewards, strict=True)
            ]
            subtracted[t] = math.fsum(worth) / len(worth)
    return [(np.asarray(row, dtype=np.float64) - subtracted[: len(row)]) / (std + eps) for row in values]


def gained_advantages(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], scale: float
) -> list[NDArray[np.float64]]:
    """A(t) = (value after step t - value before) / scale for every step (docs/tstar.md).

    Args:
        before: per trajectory, what each step is compared with, [T_i]: the value of where it was taken, or of the start.
        after: per trajectory, the value of where each step leads, [T_i].
        scale: divisor, the spread of the rewards; 0 if they are all equal.

    Returns:
        Per trajectory, [T_i] float64; exactly 0 if the scale is 0.
    """
    rows = [np.subtract(*map(np.asarray, pair), dtype=np.float64) for pair in zip(after, before, strict=True)]
    return [row / scale if scale else np.zeros(len(row)) for row in rows]


_DIGITS = 9  # of solved values that are compared
FORKED_EPS = 0.1  # added to the standard deviation of rewards that was computed on the graph


Nodes = Literal["depth", "state"]


@dataclass(frozen=True, eq=False)
class Tree:
    """Cognitive tree: M trajectories of one task with equal decisions merged, and their values.

    By depth the graph is layered and acyclic. It is a tree in the strict sense only with `same_parent=True`:
    otherwise trajectories that part and meet again share the later node. By state it may hold cycles.

    Attributes:
        nodes: the root first, then by depth and by lowest trajectory.
        rewards: terminal reward of each trajectory.
        gamma: discount per step.
        pairs: what was asked of `kl`, and what was saved.
        by: what makes a node, "depth" (equal decisions at one depth) or "state".
        graph: the states and the steps between them; None by depth.
        solved: True if the values were solved on the graph.
    """

    nodes: tuple[Node, ...]
    rewards: tuple[float, ...]
    gamma: float
    pairs: PairCounts
    _node_of: dict[Member, Node] = field(repr=False)
    _lengths: tuple[int, ...] = field(repr=False)
    by: Nodes = "depth"
    graph: StateGraph | None = field(default=None, repr=False)
    solved: bool = False

    @property
    def root(self) -> Node:
        """The task prompt, shared by all trajectories."""
        return self.nodes[0]

    @property
    def zero_variance(self) -> bool:
        """True if all known rewards are equal, so that comparing them teaches nothing."""
        known = self.rewards if self.graph is None else self.graph.endings
        return reward_moments(known)[1] == 0

    @property
    def mean_reward(self) -> float:
        """Mean reward of the group; with forks, of an episode on the graph (undiscounted)."""
        if self.graph is not None and self.graph.forked:
            return self.graph.moments()[0]
        return reward_moments(self.rewards)[0]

    def way(self) -> Way | None:
        """Find the shortest way through the states to the best ending; None by depth, or if all known endings are equal.

        See `StateGraph.way` for the ties.
        """
        return None if self.graph is None else self.graph.way()

    def node_of(self, i: int, t: int) -> Node:
        """Return the node that step t of trajectory i was merged into; t = -1 is the root.

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
        """Compute the advantage of every step, one array [T_i] per trajectory.

        Args:
            eps: added to the sample standard deviation of the rewards. With forks mean and standard deviation are those of an
                episode on the graph, and .1 is added instead.
            baseline: what "value" subtracts by depth; see `step_advantages`. By state it is V(start).
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
        if credit == "value" and self.by == "depth":
            return step_advantages(after, self.rewards, self.gamma, eps, baseline)
        if credit == "transition":
            before = [row[:-1] for row in values]
        else:
            before = [[self.root.value] * (len(row) - 1) for row in values]
        gained = gained_advantages(before, after, self._scale(eps))
        if self.graph is not None:
            for step in self.graph.passages:
                if not step.own:
                    gained[step.member[0]][step.member[1]] = 0.0
        return gained

    def way_advantages(self, way: Way, weight: float = 1.0) -> list[NDArray[np.float64]]:
        """Compute what imitating a way adds to the advantages, one array [T_i] per trajectory.

        A step of the way gets `weight` times the way's reward less the mean reward, all others 0. With shaping or penalties the
        way's reward may be below the mean: then nothing is added, as that is no reason to do otherwise.

        Args:
            way: of this tree.
            weight: factor on the difference.
        """
        added = [np.zeros(length) for length in self._lengths]
        for i, t in way.steps:
            added[i][t] = weight * max(0.0, way.reward - self.mean_reward)
        return added

    def _scale(self, eps: float) -> float:
        """Return the divisor of what steps gained; 0 if the rewards that the policy's own steps led to are all equal."""
        if self.graph is None or not self.graph.forked:
            std = reward_moments(self.rewards)[1]
            return std + eps if std else 0.0
        return self.graph.moments()[1] + FORKED_EPS if self.graph.compares else 0.0

    def divergences(self, delta: float = 0.3, shrink: float = 0.0) -> list[Divergence]:
        """Find the nodes whose children differ in value by more than `delta`; see `find_divergences`."""
        graph = self.graph
        stopped = (
            frozenset()
            if graph is None
            else frozenset(i for i in range(len(self.rewards)) if graph.stopped(i))
        )
        return find_divergences(
            self.nodes, self.rewards, delta, shrink, self._passage, stopped, _DIGITS if self.solved else None
        )

    def contrasts(self, way: Way, delta: float = 0.3) -> list[Divergence]:
        """Find where a worse action than the way's was tried, in the form of divergences; see `StateGraph.contrasts`."""
        if self.graph is None:
            return []
        visits = self.graph.first_visits()
        values = np.array([self._node_of[i, t - 1].value for _, (i, t) in sorted(visits.items())])
        return [
            Divergence(
                self._node_of[c.best[0], c.best[1] - 1],
                c.spread,
                self._node_of[c.best],
                self._node_of[c.worst],
                c.best,
                c.worst,
                c.best_count,
                c.worst_count,
            )
            for c in self.graph.contrasts(way, values, delta)
        ]

    def _passage(self, node: Node, child: Node, i: int) -> int:
        """Return the step by which trajectory i first went from a node to its child."""
        left = sorted(t for j, t in node.members if j == i)
        return next(t + 1 for t in left if self._node_of.get((i, t + 1)) is child)

    def stats(self, delta: float = 0.3, shrink: float = 0.0) -> dict[str, float]:
        """Compute the tree's statistics, as in the paper's table.

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
        depths = self._lengths
        if self.graph is not None:  # a fork begins below the start
            depths = tuple(self.graph.depth((i, length - 1)) for i, length in enumerate(depths))
        return {
            "nodes_before": before,
            "nodes_after": after,
            "merge_ratio": 1 - after / before,
            "edges": parents.total(),
            "depth": max(depths),
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


GAMMA = {"depth": 0.99, "state": 0.95}  # where none is given


def build_tree(
    group: Sequence[TrajectoryLike],
    kl: KL | None,
    eps_kl: float = 0.25,
    gamma: float | None = None,
    same_parent: bool = False,
    kl_symmetry: Symmetry = "max",
    history: History = "sequence",
    nodes: Nodes = "depth",
    start_key: str | None = None,
    values: Values = "mean",
) -> Tree:
    """Merge the equal decisions of a group's trajectories and value the result (docs/tstar.md).

    By state no model is asked: the environment's state keys decide.

    Every group is built, and `kl` is asked about every compatible pair that is not connected yet: skipping
    groups without variance and knowing which contexts are identical belong to the caller and to `kl`.

    Args:
        group: M trajectories of one task from one start state.
        kl: `kl(t, i, j)`, the divergence in nats between the policies of trajectories i and j after step t.
            An object that also has `prefetch` (see `BatchedKL`) receives each batch of calls before they
            are made. By state it is never asked, and may be None; `eps_kl`, `same_parent`, `kl_symmetry` and
            `history` are then not used.
        eps_kl: two steps with compatible histories merge below this divergence.
        gamma: discount per step; 1 makes Lemma 1 exact in a strict tree. None is .99 by depth and .95 by state.
        same_parent: intersect every component with its parent's, which gives a strict tree.
        kl_symmetry: "max", "mean" or "forward"; see `merging.equivalence_classes`.
        history: "sequence" or "state"; see `merging.history_keys`.
        nodes: "depth", the paper's, or "state": a node is a state, at whatever depth (see `state_nodes`).
        start_key: key of the state that all start from; by state, a trajectory that comes back to it visits the
            root again.
        values: values of states: "mean" of the discounted returns of all visits, or "bellman", solved on the graph (see
            `StateGraph.values`). By "bellman" the last step of a trajectory whose attribute `truncated` is True (absent: False), since the
            horizon cut it off, leads to the state after it if somebody left that state.

    Returns:
        The tree; it keeps no reference to the steps.

    Raises:
        ValueError: an option out of its range, no trajectories, one without steps, or a reward that is not
            finite.
    """
    start_keys = [start_key]
    return build_trees(
        [group], [kl], eps_kl, gamma, same_parent, kl_symmetry, history, nodes, values, start_keys=start_keys
    )[0]


def build_trees(
    groups: Sequence[Sequence[TrajectoryLike]],
    kls: Sequence[KL | None],
    eps_kl: float = 0.25,
    gamma: float | None = None,
    same_parent: bool = False,
    kl_symmetry: Symmetry = "max",
    history: History = "sequence",
    nodes: Nodes = "depth",
    values: Values = "mean",
    *,
    start_keys: Sequence[str | None],
    prefetch: Prefetch | None = None,
) -> list[Tree]:
    """`build_tree` of several groups, which ask in the same rounds.

    Args:
        groups: see `group` of `build_tree`; so are those that follow.
        kls: one for each group.
        eps_kl: as there.
        gamma: as there.
        same_parent: as there.
        kl_symmetry: as there.
        history: as there.
        nodes: as there.
        values: as there.
        start_keys: one for each group.
        prefetch: receives the calls of all groups in a round, instead of each `kl` receiving its own.

    Returns:
        One for each group.

    Raises:
        ValueError: see `build_tree`.
    """
    if not eps_kl >= 0:
        raise ValueError(f"eps_kl is {eps_kl}: it must be 0 or more")
    choices: list[tuple[str, str, Any]] = [
        ("kl_symmetry", kl_symmetry, Symmetry),
        ("history", history, History),
        ("nodes", nodes, Nodes),
        ("values", values, Values),
    ]
    for name, value, valid in choices:
        if value not in get_args(valid):
            raise ValueError(f"{name} is {value!r}: choose one of {', '.join(get_args(valid))}")
    gamma = GAMMA[nodes] if gamma is None else gamma
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma is {gamma}: it must lie in (0, 1]")
    rewards = [_rewards(group) for group in groups]
    lengths = [tuple(len(trajectory.steps) for trajectory in group) for group in groups]
    if nodes == "state":
        trees = []
        for group, earned, length, start_key in zip(groups, rewards, lengths, start_keys, strict=True):
            graph = StateGraph(group, start_key)
            if values == "mean" and graph.forked:
                raise ValueError(
                    "values is 'mean': a group with forks needs 'bellman', since some have no reward of their own"
                )
            found, node_of = state_nodes(graph, gamma, values)
            earned, solved = graph.expected(earned), values == "bellman"
            trees.append(Tree(found, earned, gamma, PairCounts(), node_of, length, "state", graph, solved))
        return trees
    asked = [kl for kl in kls if kl is not None]
    if len(asked) < len(groups):
        raise ValueError(
            "by depth a tree needs `kl`, the divergence between two steps' policies; nodes='state' needs none"
        )
    trees = []
    classes_of_groups = equivalence_classes(groups, asked, eps_kl, kl_symmetry, history, prefetch)
    for (classes, pairs), earned, length in zip(classes_of_groups, rewards, lengths, strict=True):
        trees.append(
            _assemble(_split_by_parent(classes) if same_parent else classes, earned, length, gamma, pairs)
        )
    return trees


def _rewards(group: Sequence[TrajectoryLike]) -> tuple[float, ...]:
    """Return the rewards of a group's trajectories.

    Raises:
        ValueError: no trajectories, one without steps, or a reward that is not finite; before any model call is spent.
    """
    if not group:
        raise ValueError("a tree needs at least one trajectory, got an empty group")
    for i, trajectory in enumerate(group):
        if not trajectory.steps:
            raise ValueError(
                f"trajectory {i} has no steps: leave episodes that never started out of the group"
            )
    rewards = tuple(float(trajectory.reward) for trajectory in group)
    reward_moments(rewards)
    return rewards


def _split_by_parent(classes: list[list[list[int]]]) -> list[list[list[int]]]:
    """Refine each depth's classes by those above, so that every class has one parent."""
    refined: list[list[list[int]]] = []
    parent: dict[int, int] = defaultdict(int)
    for at_depth in classes:
        parts: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, members in enumerate(at_depth):
            for i in members:
                parts[parent[i], index].append(i)
        refined.append(sorted(parts.values()))
        parent = {i: index for index, members in enumerate(refined[-1]) for i in members}
    return refined


def _assemble(
    classes: list[list[list[int]]],
    rewards: tuple[float, ...],
    lengths: tuple[int, ...],
    gamma: float,
    pairs: PairCounts,
) -> Tree:
    """Make the nodes from the deepest layer up, since a node's value needs its children's."""
    node_of: dict[Member, Node] = {}
    layers: list[list[Node]] = []
    everyone = list(range(len(rewards)))
    for t in range(len(classes) - 1, -2, -1):
        layer = []
        for members in classes[t] if t >= 0 else [everyone]:
            through: defaultdict[Node, set[int]] = defaultdict(set)
            for i in members:
                if t + 1 < lengths[i]:
                    through[node_of[i, t + 1]].add(i)
            children = {child: frozenset(trajectories) for child, trajectories in through.items()}
            value = node_value([rewards[i] for i in members], children, gamma)
            steps = frozenset((i, t) for i in members)
            layer.append(Node(t + 1, steps, children, value, ending=not children))
            node_of.update((step, layer[-1]) for step in steps)
        layers.append(layer)
    nodes = tuple(node for layer in reversed(layers) for node in layer)
    return Tree(nodes, rewards, gamma, pairs, node_of, lengths)
