"""The critic's loss in PPO."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ValueLoss(NamedTuple):
    """Scalars; only `loss` has a gradient.

    Attributes:
        loss: to be minimised.
        clip_fraction: share of tokens where the clipped error is the larger one.
    """

    loss: Tensor
    clip_fraction: Tensor


def value_loss(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor,
    mask: Tensor,
    clip: float | None = 0.2,
    denominator: float | None = None,
) -> ValueLoss:
    """Half the mean of max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) over the policy's own tokens.

    Args:
        values: [B, L], the critic's values now.
        returns: [B, L], the targets; no gradient flows into them.
        old_values: [B, L], the values when the episodes were sampled; no gradient flows into them.
        mask: [B, L], 1 (True) on the policy's own tokens; what stands elsewhere is never read.
        clip: c, in units of reward; None leaves the clipped term out.
        denominator: what to divide by in place of this batch's number of own tokens, for micro-batches.

    Returns:
        The loss and the clip fraction. A batch without own tokens gives 0, which can still be backpropagated.

    Raises:
        ValueError: the shapes differ, `clip` is negative, or `denominator` is not above 0.

    Source: verl `compute_value_loss`, with its token mean; the value loss of TRL's `PPOTrainer`.
    """
    if not values.shape == returns.shape == old_values.shape == mask.shape:
        shapes = ", ".join(str(tuple(x.shape)) for x in (values, returns, old_values, mask))
        raise ValueError(f"values, returns, old_values and mask have shapes {shapes}: they must be equal")
    if clip is not None and not clip >= 0:
        raise ValueError(f"clip is {clip}: it must be 0 or more, or None")
    if denominator is not None and not denominator > 0:
        raise ValueError(f"denominator is {denominator}: it must be above 0")

    own = mask.bool()
    # Masked before it is squared: padding may hold anything, and 0 * inf would make the gradient NaN.
    now, target, old = (torch.where(own, x, 0.0) for x in (values, returns.detach(), old_values.detach()))
    plain = (now - target).square()
    losses, clipped = plain, plain
    if clip is not None:
        clipped = (old + (now - old).clamp(-clip, clip) - target).square()
        losses = torch.maximum(plain, clipped)
    tokens = own.sum().clamp(min=1)
    return ValueLoss(
        loss=0.5 * losses.sum() / (tokens if denominator is None else denominator),
        clip_fraction=(clipped > plain).sum() / tokens,
    )
