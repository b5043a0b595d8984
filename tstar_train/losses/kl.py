"""A per-token estimate of the divergence between the policy and a reference, from the sampled token alone.

Mask the result with `torch.where`, not by multiplying: where padding holds -inf it is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The bounds of verl and SkyRL: one token that the reference finds impossible must not drown a batch.
LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The estimator of least variance, pi_ref / pi - 1 - log(pi_ref / pi).

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
