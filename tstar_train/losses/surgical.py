"""The surgical loss: prefer the rectified thought to the failed one, at the step where the ways parted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class SurgicalLoss(NamedTuple):
    """Scalars; only `loss` has a gradient.

    Attributes:
        loss: -mean log sigmoid(beta * Delta); ln 2 where policy and reference agree.
        margin: mean Delta over this call's pairs, in nats.
        accuracy: share of this call's pairs with Delta > 0.
    """

    loss: Tensor
    margin: Tensor
    accuracy: Tensor


def surgical_loss(
    rect: Tensor,
    rect_ref: Tensor,
    rejected: Tensor,
    rejected_ref: Tensor,
    beta: float = 0.1,
    denominator: float | None = None,
) -> SurgicalLoss:
    """-mean log sigmoid(beta * Delta), Delta = log pi/pi_ref (z_rect | s) - log pi/pi_ref (z^- | s).

    The log-probabilities are sums over the thought's tokens, not means, each under the *plain* context s.
    Only those tokens reach the loss, which is what keeps the gradient at the divergence step.

    Args:
        rect: [N], log pi(z_rect | s) of each pair, in nats.
        rect_ref: [N], the same under the reference; no gradient flows into it.
        rejected: [N], log pi(z^- | s).
        rejected_ref: [N], the same under the reference; no gradient flows into it.
        beta: inverse temperature of the preference, above 0.
        denominator: what to divide by in place of N, for micro-batches.

    Returns:
        Loss, margin and accuracy. All are 0 without pairs, and the loss can still be backpropagated.

    Raises:
        ValueError: shapes that differ or are not one-dimensional, `beta` or `denominator` not above 0.

    Source: T-STAR `eq:surgical_loss` and `eq:preference_margin`; DPO's loss in TRL (`loss_type="sigmoid"`).
    """
    tensors = (rect, rect_ref, rejected, rejected_ref)
    if rect.ndim != 1 or len({x.shape for x in tensors}) != 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise ValueError(f"rect, rect_ref, rejected and rejected_ref have shapes {shapes}: all must be [N]")
    if not beta > 0:
        raise ValueError(f"beta is {beta}: it must be above 0")
    if denominator is not None and not denominator > 0:
        raise ValueError(f"denominator is {denominator}: it must be above 0")

    delta = (rect - rect_ref.detach()) - (rejected - rejected_ref.detach())
    count = max(len(delta), 1)
    loss = -logsigmoid(beta * delta).sum() / (count if denominator is None else denominator)
    if len(delta) == 0 and not loss.requires_grad:
        # Without pairs there is usually no graph behind the empty tensors either.
        loss = torch.zeros_like(loss, requires_grad=True)
    return SurgicalLoss(loss, delta.detach().sum() / count, (delta > 0).sum() / count)
