"""Divergences: steps where better and worse branches part and a thought is worth grafting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tstar_train.advantages import reward_moments
from tstar_train.tree.node import Member, Node


@dataclass(frozen=True, eq=False, slots=True)
class Divergence:
    """A node whose children's values lie far apart.

    Attributes:
        node: v, where the ways part.
        spread: the difference of the best and the worst child's value, after shrinking if that is on.
        best: v+. It may have members that came from elsewhere: evidence are those that went there from v alone.
        worst: v-.
        best_step: of those that went from v to v+, the one with the highest return, as `(i, t)`: z+, a+, o+.
        worst_step: of those that went from v to v-, the one with the lowest return: z-, a-, o-, and the context s that a
            graft is trained in.
        best_count: |T(v -> v+)|, the number of trajectories from the node to the best child.
        worst_count: |T(v -> v-)|.
    """

    node: Node
    spread: float
    best: Node
    worst: Node
    best_step: Member
    worst_step: Member
    best_count: int
    worst_count: int


def find_divergences(
    nodes: Sequence[Node],
    rewards: Sequence[float],
    delta: float,
    shrink: float,
    passage: Callable[[Node, Node, int], int],
    stopped: frozenset[int] = frozenset(),
    digits: int | None = None,
) -> list[Divergence]:
    """Every divergent node (`eq:divergence`), in the order of `nodes`.

    A node v is divergent when its children's values differ by more than `delta` and those that went from v to the best child
    earned more on average than those that went to the worst: two winners of very different length differ by discount alone.
    A child's other members, which never passed v, say nothing about the choice made there. Ties go to the child that more
    went to, then to the lowest trajectory among them.

    Args:
        nodes: the nodes to look at, with their values.
        rewards: terminal reward of each trajectory.
        delta: the spread that must be exceeded, in units of reward.
        shrink: pseudo-count k that pulls each child's value towards its parent's before they are compared,
            (n Q(child) + k Q(parent)) / (n + k) with n = |T(v -> child)|: one lucky winner is weak evidence. 0 is off.
        passage: the step by which a trajectory went from a node to its child, the first if there are several.
        stopped: trajectories whose reward is only expected (forks that stopped in a known state); they stand for a child last.
        digits: decimal places of the values that are compared, for values that were solved and carry rounding of their own; None: all.

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
        if digits is not None:
            values = {child: round(value, digits) for child, value in values.items()}
        best = min(values, key=lambda child: (-values[child], *_preference(node, child)))
        worst = min(values, key=lambda child: (values[child], *_preference(node, child)))
        spread = values[best] - values[worst]
        if digits is not None:
            spread = round(spread, digits)  # 1 - .7 is more than .3
        to_best, to_worst = node.children[best], node.children[worst]
        if spread > delta and _mean_reward(to_best, rewards) > _mean_reward(to_worst, rewards):
            winner = min(to_best, key=lambda i: (i in stopped, -rewards[i], i))
            loser = min(to_worst, key=lambda i: (i in stopped, rewards[i], i))
            won, lost = passage(node, best, winner), passage(node, worst, loser)
            steps = (winner, won), (loser, lost)
            found.append(Divergence(node, spread, best, worst, *steps, len(to_best), len(to_worst)))
    return found


def _preference(node: Node, child: Node) -> tuple[int, int]:
    through = node.children[child]
    return -len(through), min(through)


def _shrunk(child: Node, parent: Node, shrink: float) -> float:
    if shrink == 0:
        return child.value
    count = len(parent.children[child])
    return (count * child.value + shrink * parent.value) / (count + shrink)


def _mean_reward(trajectories: Iterable[int], rewards: Sequence[float]) -> float:
    earned = [rewards[i] for i in trajectories]
    return math.fsum(earned) / len(earned)
