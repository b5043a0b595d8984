"""Where trajectories part for better and worse: the steps at which a thought is worth grafting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tstar_train.algorithms.advantages import reward_moments
from tstar_train.tree.node import Member, Node


@dataclass(frozen=True, eq=False, slots=True)
class Divergence:
    """A node whose children's values lie far apart.

    Attributes:
        node: v, where the ways part.
        spread: the difference of the best and the worst child's value, after shrinking if that is on.
        best: v+; `len(best.members)` says how much evidence its value rests on.
        worst: v-.
        best_step: the member `(i, t)` of v+ with the highest return: z+, a+, o+.
        worst_step: the member of v- with the lowest return: z-, a-, o-, and the context s that a graft is
            trained in.
    """

    node: Node
    spread: float
    best: Node
    worst: Node
    best_step: Member
    worst_step: Member


def find_divergences(
    nodes: Sequence[Node], rewards: Sequence[float], delta: float, shrink: float
) -> list[Divergence]:
    """Every divergent node (`eq:divergence`), in the order of `nodes`.

    A node is divergent when its children's values differ by more than `delta` and the members of the best
    child earned more on average than those of the worst: two winners of very different length differ by
    discount alone. Ties go to the child with more members, then to the lowest trajectory.

    Args:
        nodes: the nodes to look at, with their values.
        rewards: terminal reward of each trajectory.
        delta: the spread that must be exceeded, in units of reward.
        shrink: pseudo-count k that pulls each child's value towards its parent's before they are compared,
            (n Q(child) + k Q(parent)) / (n + k) with n members: one lucky winner is weak evidence. 0 is off.

    Returns:
        The divergences; none in a group whose rewards are all equal.

    Raises:
        ValueError: `delta` or `shrink` is negative or not a number.
    """
    for name, value in (("delta", delta), ("shrink", shrink)):
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} is {value}: it must be a finite number, 0 or more")
    if reward_moments(rewards)[1] == 0:
        return []

    found = []
    for node in nodes:
        if len(node.children) < 2:
            continue
        values = {child: _shrunk(child, node, shrink) for child in node.children}
        best = min(values, key=lambda child: (-values[child], *_preference(child)))
        worst = min(values, key=lambda child: (values[child], *_preference(child)))
        spread = values[best] - values[worst]
        if spread > delta and _mean_reward(best, rewards) > _mean_reward(worst, rewards):
            best_step = min(best.members, key=lambda member: (-rewards[member[0]], member))
            worst_step = min(worst.members, key=lambda member: (rewards[member[0]], member))
            found.append(Divergence(node, spread, best, worst, best_step, worst_step))
    return found


def _preference(child: Node) -> tuple[int, Member]:
    return -len(child.members), child.first


def _shrunk(child: Node, parent: Node, shrink: float) -> float:
    if shrink == 0:
        return child.value
    count = len(child.members)
    return (count * child.value + shrink * parent.value) / (count + shrink)


def _mean_reward(node: Node, rewards: Sequence[float]) -> float:
    return math.fsum(rewards[i] for i, _ in node.members) / len(node.members)
