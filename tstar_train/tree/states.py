"""The graph of a group by state (docs/tstar.md): a node is a state, whatever the depth at which it was met.

A visit is the moment before a step. The state that an ending step reaches is no visit: its leaf is the trajectory's own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from tstar_train.tree.node import Member, Node, TrajectoryLike


def state_nodes(
    group: Sequence[TrajectoryLike], rewards: Sequence[float], gamma: float, start_key: str | None
) -> tuple[tuple[Node, ...], dict[Member, Node]]:
    """The nodes of a group by state, and where each step leads.

    V(s) is the mean over all visits of s, in all trajectories, of gamma^(steps left) R; a leaf's value is its trajectory's own R. The
    graph may hold cycles, so nothing is backed up along its edges.

    Args:
        group: the trajectories.
        rewards: their terminal rewards.
        gamma: discount per step.
        start_key: the start's state key; a trajectory that comes back to it visits the root again. None: nobody returns to the root.

    Returns:
        The nodes, the root first, then by earliest visit, lowest trajectory and step; and the node of each member (i, t), which is the
        state after step t, (i, -1) for the start.

    Raises:
        ValueError: a step without a state key, which would be one with all others.
    """
    visits: defaultdict[str | None, list[Member]] = defaultdict(list)
    for i, trajectory in enumerate(group):
        for t, step in enumerate(trajectory.steps):
            if not step.state_key:
                raise ValueError(
                    f"step {t} of trajectory {i} has no state_key: give one or use nodes='depth'"
                )
        visits[start_key] += [(i, -1)]
        for t, step in enumerate(trajectory.steps[:-1]):
            visits[step.state_key].append((i, t))
    lengths = [len(trajectory.steps) for trajectory in group]
    children: dict[Node, dict[Node, frozenset[int]]] = {}

    def add(members: Sequence[Member], value: float, ending: bool) -> None:
        into: dict[Node, frozenset[int]] = {}
        children[Node(min(t for _, t in members) + 1, frozenset(members), into, value, ending)] = into

    for members in visits.values():
        worth = [gamma ** (lengths[i] - t - 1) * rewards[i] for i, t in members]
        add(members, math.fsum(worth) / len(worth), ending=False)
    for i, length in enumerate(lengths):
        add([(i, length - 1)], rewards[i], ending=True)
    nodes = tuple(sorted(children, key=lambda node: (node.depth, node.first)))
    node_of = {member: node for node in nodes for member in node.members}
    for node in nodes:  # only now, since a cycle's nodes are each other's children
        children[node].update(_children(node, node_of))
    return nodes, node_of


def _children(node: Node, node_of: dict[Member, Node]) -> dict[Node, frozenset[int]]:
    """The states that a node's transitions lead to, itself left out, each with the trajectories that went there at least once."""
    through: defaultdict[Node, set[int]] = defaultdict(set)
    for i, t in node.members:
        child = node_of.get((i, t + 1))
        if child is not None and child is not node:
            through[child].add(i)
    ordered = sorted(through, key=lambda child: (child.depth, child.first))
    return {child: frozenset(through[child]) for child in ordered}
