"""The clipped policy gradient of PPO, GRPO and DAPO, over the tokens that the policy wrote."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tstar_train.losses.aggregate import Aggregation, loss_denominator, token_weight

# exp of more than this overflows nothing yet trains on nothing sensible either: the value verl and SkyRL use.
LOG_RATIO_LIMIT = 20.0


class PolicyLoss(NamedTuple):
    """The loss, and how far the policy has moved from the one that sampled.

    All are scalars; only `loss` has a gradient.

    Attributes:
        loss: to be minimised.
        clip_fraction: share of tokens whose ratio is clipped, so that they have no gradient.
        ratio_mean: mean of pi / pi_old.
        approx_kl: mean of log pi_old - log pi, in nats per token.
        tokens: tokens with mask 1: the weight of these means when calls are averaged.
    """

    loss: Tensor
    clip_fraction: Tensor
    ratio_mean: Tensor
    approx_kl: Tensor
    tokens: Tensor


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregation: Aggregation = "token-mean",
    denominator: float | None = None,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = pi / pi_old, summed up over the batch.

    Args:
        logprobs: [B, L], log pi of each token, in nats.
        old_logprobs: [B, L], log-probabilities under the policy that sampled; no gradient flows into them.
        advantages: [B, L], or [B, 1] for one advantage per row.
        mask: [B, L], 1 (True) on the policy's own tokens; what stands elsewhere is never read, be it
            infinite.
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high (DAPO: 0.28).
        aggregation: "token-mean" weighs tokens equally (DAPO), "seq-mean-token-mean" rows (the original
            GRPO), "seq-mean-token-sum" sums within a row and averages over rows. Rows without own tokens are
            not counted.
        denominator: what to divide by in place of this batch's own count. With the `loss_denominator` of the
            whole batch, the losses (and gradients) of its micro-batches add up to those of the whole.

    Returns:
        The loss and its diagnostics. A batch without own tokens gives a loss of 0 that can still be
        backpropagated.

    Raises:
        ValueError: shapes that do not fit, or an option out of its range.

    Source: verl `compute_policy_loss_vanilla`, without its third bound where A < 0 ("dual clip"), and `agg_loss`; TRL
    `GRPOTrainer._compute_loss` and the policy loss of its `PPOTrainer`.
    """
    if not 0 <= clip_low < 1 or not clip_high >= 0:
        raise ValueError(
            f"clip_low is {clip_low}, clip_high {clip_high}: need 0 <= clip_low < 1 and clip_high >= 0"
        )
    if logprobs.ndim != 2 or not logprobs.shape == old_logprobs.shape == mask.shape:
        shapes = ", ".join(str(tuple(x.shape)) for x in (logprobs, old_logprobs, mask))
        raise ValueError(f"logprobs, old_logprobs and mask have shapes {shapes}: all must be [B, L]")
    if advantages.shape not in (logprobs.shape, (logprobs.shape[0], 1)):
        raise ValueError(
            f"advantages have shape {tuple(advantages.shape)}: need [B, L] or [B, 1], B, L as in logprobs"
        )

    own = mask.bool()
    # Masked before anything else: padding may hold -inf, and 0 * inf would make the gradient NaN. With a
    # ratio of 1 there, nothing below is ever clipped or held outside the mask.
    log_ratio = torch.where(own, logprobs - old_logprobs.detach(), 0.0).clamp(
        -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT
    )
    advantage = advantages.expand_as(logprobs)
    ratio = log_ratio.exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(plain, clipped)

    tokens = own.sum()
    count = tokens.clamp(min=1)
    return PolicyLoss(
        loss=_aggregate(losses, own, aggregation, denominator),
        clip_fraction=(clipped > plain).sum() / count,
        ratio_mean=torch.where(own, ratio, 0.0).sum().detach() / count,
        approx_kl=-log_ratio.sum().detach() / count,
        tokens=tokens,
    )


def _aggregate(losses: Tensor, own: Tensor, aggregation: Aggregation, denominator: float | None) -> Tensor:
    counted = loss_denominator(own, aggregation)
    if denominator is None:
        denominator = max(counted, 1.0)
    elif not denominator > 0:
        raise ValueError(f"denominator is {denominator}: it must be above 0")
    # In the losses' own precision: one divided by a whole number would be in single precision.
    weights = token_weight(own.sum(dim=-1, keepdim=True).clamp(min=1).to(losses.dtype), aggregation)
    return torch.where(own, losses * weights, 0.0).sum() / denominator
