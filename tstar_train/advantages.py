"""Advantages: formulas of GRPO, DAPO, GiGPO, T-STAR's trees and GAE."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def gae(
    rewards: ArrayLike, values: ArrayLike, mask: ArrayLike, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation over the policy's own tokens.

    delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lam A_next, where "next" is the next token
    that the policy wrote: observation tokens (mask 0) are stepped over without a discount.

    Args:
        rewards: [..., T]; a reward belongs on a token of the policy, one on a masked token is not seen.
        values: [..., T], the critic's value before each token.
        mask: [..., T], 1 (True) where the policy wrote the token.
        gamma: discount per token of the policy.
        lam: the lambda of GAE.

    Returns:
        (advantages, returns), both [..., T] float64, returns = advantages + values, not whitened (`whiten`
        does that afterwards), and 0 on masked tokens.

    Raises:
        ValueError: the three shapes differ.

    Source: verl `compute_gae_advantage_return`, before its whitening; TRL's `PPOTrainer`, which knows no observation tokens.
    """
    reward, value = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    own = np.asarray(mask).astype(bool)
    if not reward.shape == value.shape == own.shape or reward.ndim == 0:
        raise ValueError(
            f"rewards, values and mask have shapes {reward.shape}, {value.shape} and {own.shape}: "
            "all must be [..., T]"
        )
    advantages = np.zeros_like(value)
    next_value = np.zeros(value.shape[:-1])
    next_advantage = np.zeros(value.shape[:-1])
    for t in range(value.shape[-1] - 1, -1, -1):
        delta = reward[..., t] + gamma * next_value - value[..., t]
        next_advantage = np.where(own[..., t], delta + gamma * lam * next_advantage, next_advantage)
        next_value = np.where(own[..., t], value[..., t], next_value)
        advantages[..., t] = next_advantage
    advantages = np.where(own, advantages, 0.0)
    return advantages, np.where(own, advantages + value, 0.0)


def whiten(values: ArrayLike, mask: ArrayLike, eps: float = 1e-8) -> Floats:
    """Shift and scale to mean 0 and sample variance 1 over the tokens with mask 1: (x - mean) / sqrt(var + eps).

    Args:
        values: any shape.
        mask: the same shape, 1 (True) where a token counts.
        eps: added to the variance.

    Returns:
        float64 of the same shape, 0 on masked tokens; fewer than two tokens have no variance and give 0.

    Source: verl and TRL `masked_whiten`.
    """
    array, own = np.asarray(values, dtype=np.float64), np.asarray(mask).astype(bool)
    chosen = array[own]
    mean = float(chosen.mean()) if len(chosen) else 0.0
    return whitened(array, own, mean, float(((chosen - mean) ** 2).sum()), len(chosen), eps)


def whitened(
    values: ArrayLike, mask: ArrayLike, mean: float, squares: float, count: int, eps: float = 1e-8
) -> Floats:
    """Whiten a part, given the moments of the whole: (x - mean) / sqrt(squares / (count - 1) + eps).

    Several processes may hold parts of the whole.

    Args:
        values: any shape.
        mask: the same shape, 1 (True) where a token counts.
        mean: of all tokens that count.
        squares: sum of their squared differences from it.
        count: how many they are.
        eps: added to the variance.

    Returns:
        As `whiten`.

    Source: as `whiten`.
    """
    array, own = np.asarray(values, dtype=np.float64), np.asarray(mask).astype(bool)
    if count < 2:
        return np.zeros_like(array)
    return np.where(own, (np.where(own, array, 0.0) - mean) / np.sqrt(squares / (count - 1) + eps), 0.0)


StepMode = Literal["mean_norm", "mean_std_norm"]

# Rewards closer than this are the same reward: two float paths to one score must not become a group with a
# spread of 1e-16, whose discounted values would then be divided by eps alone.
SAME_REWARD = 1e-8


def reward_moments(rewards: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation of one group's rewards, the pair that GRPO and the tree share.

    mean = sum R_i / M and std = sqrt(sum (R_i - mean)^2 / (M - 1)).

    Args:
        rewards: the group's M terminal rewards.

    Returns:
        (mean, std); std is exactly 0 for one member and for rewards that are all equal (within
        `SAME_REWARD`). The sums are exactly rounded, so the order of the members never shows in the result.

    Raises:
        ValueError: no rewards, or one that is not finite.

    Source: verl `compute_grpo_outcome_advantage`, TRL `nanstd`: both divide by M - 1.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward, got none")
    for i, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise ValueError(f"reward {i} of the group is {reward}: rewards must be finite numbers")
    mean = math.fsum(rewards) / len(rewards)
    if max(rewards) - min(rewards) <= SAME_REWARD:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def grpo(rewards: ArrayLike, groups: Sequence[Hashable], eps: float = 1e-6, scale: bool = True) -> Floats:
    """GRPO's advantage of each trajectory: (R - mean of its group) / (std of its group + eps).

    Args:
        rewards: [N], one terminal reward per trajectory (never one per row: an episode counts once).
        groups: N hashable group names, such as task ids.
        eps: added to the standard deviation.
        scale: False leaves the division out (Dr. GRPO).

    Returns:
        [N] float64. Exactly 0 for one-member groups (verl keeps the raw score there, which trains on an
        episode that was compared with nothing) and for groups whose rewards are all equal.

    Raises:
        ValueError: lengths differ, `rewards` is not one-dimensional, or a reward is not finite.

    Source: verl `compute_grpo_outcome_advantage`; Dr. GRPO is its `norm_adv_by_std_in_grpo=False`. TRL's `GRPOTrainer` with
    `scale_rewards` "group" (eps 1e-4) and "none".
    """
    scores = _vector("rewards", rewards)
    advantages = np.zeros(len(scores))
    for rows in _rows_by(groups, len(scores), "groups"):
        mean, std = reward_moments(scores[rows].tolist())
        if std > 0:
            advantages[rows] = (scores[rows] - mean) / (std + eps if scale else 1.0)
    return advantages


def discounted_returns(rewards: ArrayLike, gamma: float) -> Floats:
    """Compute the return from every step of one trajectory: G_t = r_t + gamma G_{t+1}.

    Args:
        rewards: [T], the reward of each step.
        gamma: discount per step.

    Returns:
        [T] float64.

    Source: GiGPO `compute_step_discounted_returns` (its equation 5).
    """
    returns = _vector("rewards", rewards).copy()
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def gigpo_step(
    returns: ArrayLike,
    anchors: Sequence[Hashable],
    groups: Sequence[Hashable],
    mode: StepMode = "mean_norm",
    eps: float = 1e-6,
) -> Floats:
    """GiGPO's step-level advantage: a step's return against all from the same anchor state in its group.

    A_t = (G_t - mean G) / (std G + eps) over the steps of the group with t's anchor; without the division in "mean_norm".

    Args:
        returns: [N], the discounted return of each step, over all trajectories (see `discounted_returns`).
        anchors: N hashable keys of the state in which each step was taken; steps at different times may share
            one.
        groups: N hashable group names; equal anchors of different groups are kept apart.
        mode: "mean_norm" subtracts the mean, "mean_std_norm" also divides by (std + eps).
        eps: added to the standard deviation.

    Returns:
        [N] float64, 0 for a state that was met once.

    Raises:
        ValueError: an unknown mode, or lengths that differ.

    Source: GiGPO `build_step_group` and `step_norm_reward` (its equations 6 and 7).
    """
    if mode not in get_args(StepMode):
        raise ValueError(f"mode is {mode!r}: choose one of {', '.join(get_args(StepMode))}")
    values = _vector("returns", returns)
    if len(anchors) != len(groups):
        raise ValueError(f"{len(anchors)} anchors for {len(groups)} groups: give one of each per step")
    return grpo(values, list(zip(groups, anchors, strict=True)), eps, scale=mode == "mean_std_norm")


def below_zero(advantages: Floats, weight: float) -> Floats:
    """Scale negative advantages (`optim.negative_weight`): max(A, 0) + weight * min(A, 0), any shape.

    Source: this project's own; arXiv 2505.12929 and 2506.01347 are why one would (`OptimConfig.negative_weight`).
    """
    return np.where(advantages < 0, weight * advantages, advantages)


def soft_overlong(length: int, most: int, buffer: int, factor: float = 1.0) -> float:
    """DAPO's soft overlong penalty: 0 up to `most - buffer` tokens, then falling linearly to -factor at `most`.

    factor * min((most - buffer - length) / buffer, 0).

    Args:
        length: of the reply, in tokens.
        most: the longest that a reply can be.
        buffer: over how many tokens before that the penalty grows; 0 is no penalty.
        factor: the penalty at `most` tokens.

    Returns:
        What is added to the reward, at most 0.

    Raises:
        ValueError: `buffer` is negative or above `most`.

    Source: verl `DAPORewardManager`, equation 13 of DAPO (arXiv 2503.14476), TRL `get_soft_overlong_punishment`.
    """
    if not 0 <= buffer <= most:
        raise ValueError(f"buffer is {buffer}: it must be from 0 to {most}, the longest reply")
    if buffer == 0:
        return 0.0
    return min(-(length - (most - buffer)) / buffer * factor, 0.0)


def relative_weight_change(
    tree: Sequence[ArrayLike], base: Sequence[ArrayLike], keys: Sequence[Sequence[Hashable]]
) -> float:
    """Relative change of the gradient weights from GRPO's: ||sum_tree - sum_grpo|| / ||sum_grpo||.

    Steps with equal context and text have the same gradient, so only the sum of their advantages acts. In a
    strict tree with gamma 1 merging changes no such sum (Lemma 1), and a value near 0 says that the tree does
    nothing.

    Args:
        tree: per trajectory, the tree's step advantages [T_i].
        base: per trajectory, GRPO's advantage at each of its steps [T_i].
        keys: per trajectory, T_i hashable keys, equal where a step's (context, text) are.

    Returns:
        A ratio >= 0; 0 if neither has any weight, infinity if only GRPO's weights cancel out.

    Raises:
        ValueError: the three do not line up.

    Source: this project's own measure (docs/tstar.md, figures of an iteration).
    """
    if not len(tree) == len(base) == len(keys):
        raise ValueError(
            f"{len(tree)} tree rows, {len(base)} base rows, {len(keys)} key rows: give one per trajectory"
        )
    sums: defaultdict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
    unsummed = 0.0
    for i, (row, base_row, row_keys) in enumerate(zip(tree, base, keys, strict=True)):
        mine, other = _vector(f"tree[{i}]", row), _vector(f"base[{i}]", base_row)
        if not len(mine) == len(other) == len(row_keys):
            raise ValueError(
                f"trajectory {i}: {len(mine)} tree, {len(other)} base advantages, {len(row_keys)} keys"
            )
        unsummed += float(other @ other)
        for key, a, b in zip(row_keys, mine.tolist(), other.tolist(), strict=True):
            sums[key][0] += a
            sums[key][1] += b
    change = math.sqrt(math.fsum((a - b) ** 2 for a, b in sums.values()))
    norm = math.sqrt(math.fsum(b**2 for _, b in sums.values()))
    # What is left of weights that cancel is rounding, not a norm to divide by.
    noise = 1e-9 * math.sqrt(unsummed)
    if norm <= noise:
        return 0.0 if change <= noise else math.inf
    return change / norm


def _vector(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}: it must be one-dimensional")
    return array


def _rows_by(names: Sequence[Hashable], count: int, what: str) -> list[list[int]]:
    if len(names) != count:
        raise ValueError(f"{len(names)} {what} for {count} values: give one per value")
    rows: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    return list(rows.values())
