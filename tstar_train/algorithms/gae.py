"""Generalised advantage estimation where the environment's tokens sit between the policy's."""

from __future__ import annotations

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
    """A part of what is whitened, given the moments of the whole: (x - mean) / sqrt(squares / (count - 1) + eps).

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
