"""Losses: clipped policy loss, KL, surgical and value loss, and their aggregation."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]

Count = TypeVar("Count", float, Tensor)


def token_weight(num_response_tokens: Count, aggregation: Aggregation) -> Count:
    """Compute the weight of each token of a sequence in the sum that ``loss_denominator`` divides.

    L = sum_i w_i sum_t l_it / D, over the own tokens t of sequences i. With n_i own tokens, w_i = 1 / n_i for "seq-mean-token-mean",
    else 1.

    Args:
        num_response_tokens: how many tokens of the sequence the policy wrote, at least 1; a number or a tensor of any shape.
        aggregation: "token-mean" weighs tokens equally (DAPO), "seq-mean-token-mean" sequences (the original GRPO),
            "seq-mean-token-sum" sums within a sequence and averages over sequences.

    Raises:
        ValueError: an unknown aggregation.

    Source: verl `agg_loss`; the loss types "grpo", "bnpo" and "dapo" of TRL's `GRPOTrainer`.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation is {aggregation!r}: choose one of {', '.join(get_args(Aggregation))}")
    # A power of 0 is 1 of the same type and shape.
    return 1 / num_response_tokens if aggregation == "seq-mean-token-mean" else num_response_tokens**0


def loss_denominator(mask: Tensor, aggregation: Aggregation = "token-mean") -> float:
    """Compute an aggregation's denominator: D = sum_i n_i (response tokens) for "token-mean", else the rows with any.

    Args:
        mask: [B, L], 1 (True) on the policy's own tokens.
        aggregation: as in `token_weight`.

    Returns:
        The count. The counts of micro-batches add up to that of the batch.

    Raises:
        ValueError: an unknown aggregation.

    Source: verl `agg_loss`. Dr. GRPO (there "seq-mean-token-sum-norm", in TRL "dr_grpo") divides the sum by a constant instead.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation is {aggregation!r}: choose one of {', '.join(get_args(Aggregation))}")
    own = mask.bool()
    return float(own.sum() if aggregation == "token-mean" else own.any(dim=-1).sum())


Correction = Literal["none", "token-truncate", "token-mask", "sequence-mask"]


def importance_weights(log_ratio: Tensor, correction: Correction, cap: float = 3.0) -> Tensor:
    """Compute the importance weights of sampled tokens where the sampler's probabilities are not the trainer's.

    With rho = pi_old / pi_sampler of a token, or of all own tokens of a sequence together (the product), the weight is min(rho, cap)
    ("truncate"), or rho up to the cap and 0 beyond it ("mask"). It multiplies the token's policy loss; denominators stay as they are.

    Args:
        log_ratio: [B, L], log pi_old - log pi_sampler in nats, 0 at tokens that the policy did not write.
        correction: "token-truncate" and "token-mask" weigh each token by its own ratio, "sequence-mask" all tokens of a row by the row's;
            "none" gives 1.
        cap: largest ratio, 1 or more; infinite for no limit.

    Returns:
        [B, L], 0 or more.

    Raises:
        ValueError: an unknown correction, or `cap` below 1.

    Source: TRL `GRPOTrainer`, `vllm_importance_sampling_mode` and `vllm_importance_sampling_clip_max`, with its default cap.
    """
    if correction not in get_args(Correction):
        raise ValueError(f"correction is {correction!r}: choose one of {', '.join(get_args(Correction))}")
    if not cap >= 1:
        raise ValueError(f"cap is {cap}: it must be 1 or more")
    if correction == "none":
        return torch.ones_like(log_ratio)
    if correction == "sequence-mask":
        log_ratio = log_ratio.sum(dim=-1, keepdim=True).expand_as(log_ratio)
    ratio = log_ratio.exp()
    return ratio.clamp(max=cap) if correction == "token-truncate" else torch.where(ratio > cap, 0.0, ratio)


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
    """Clipped policy loss: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = pi / pi_old.

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


# The bounds of verl and SkyRL: one token that the reference finds impossible must not drown a batch.
K3_LIMIT = 10.0


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate the KL divergence with low variance: pi_ref / pi - 1 - log(pi_ref / pi).

    With x = log pi - log pi_ref at a token drawn from pi it is exp(-x) - 1 + x: unbiased and never negative.

    Args:
        logprobs: any shape, log pi of the sampled tokens, in nats.
        ref_logprobs: the same shape, under the reference; no gradient flows into it.

    Returns:
        The same shape, in nats per token, never negative; the log-ratio is held within +-20 and the result at
        10 or less, with no gradient beyond. The estimator of GRPO's KL term (TRL, without bounds).

    Raises:
        ValueError: the shapes differ.

    Source: verl `kl_penalty_forward` ("low_var_kl"), SkyRL `compute_approx_kl` ("k3"), TRL `GRPOTrainer._compute_loss` with
    `use_bias_correction_kl=False` (its default multiplies by pi / pi_old, which GRPO's paper does not).
    """
    inverse = (-_log_ratio(logprobs, ref_logprobs)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # expm1 keeps the digits that exp(x) - 1 loses where the two policies are close, which is most tokens.
    return (torch.expm1(inverse) - inverse).clamp(max=K3_LIMIT)


def _log_ratio(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    if logprobs.shape != ref_logprobs.shape:
        raise ValueError(
            f"logprobs and ref_logprobs have shapes {tuple(logprobs.shape)} and {tuple(ref_logprobs.shape)}: "
            "they must be equal"
        )
    return logprobs - ref_logprobs.detach()


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
    """Clipped value loss: half the mean of max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) over response tokens.

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
