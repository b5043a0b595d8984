"""Values from the leaves to the root, and the step advantages that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tstar_train.algorithms.advantages import reward_moments
from tstar_train.tree.node import Node

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
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], rewards: Sequence[float], eps: float
) -> list[NDArray[np.float64]]:
    """A(t) = (value after step t - value before) / (std R + eps) for every step (docs/tstar.md).

    Args:
        before: per trajectory, what each step is compared with, [T_i]: the value of where it was taken, or of the start.
        after: per trajectory, the value of where each step leads, [T_i].
        rewards: the M terminal rewards.
        eps: added to the sample standard deviation.

    Returns:
        Per trajectory, [T_i] float64; exactly 0 where the rewards are all equal or there is one trajectory.
    """
    std = reward_moments(rewards)[1]
    rows = [np.subtract(*map(np.asarray, pair), dtype=np.float64) for pair in zip(after, before, strict=True)]
    return [row / (std + eps) if std else np.zeros(len(row)) for row in rows]
