"""Per-token estimates of the divergence between the policy and a reference, from the sampled token alone.

With x = log pi - log pi_ref at a token drawn from pi: k1 = x is unbiased but can be negative, k2 = x^2 / 2 is
biased with the right gradient near 0, k3 = exp(-x) - 1 + x is unbiased and never negative.

Mask the results with `torch.where`, not by multiplying: where padding holds -inf they are NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The bounds of verl and SkyRL: one token that the reference finds impossible must not drown a batch.
LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The log-ratio itself, log pi - log pi_ref.

    Args:
        logprobs: any shape, log pi of the sampled tokens, in nats.
        ref_logprobs: the same shape, under the reference.

    Returns:
        The same shape, in nats per token; may be negative. As a loss term its gradient is zero on average:
        use it as a metric or inside the reward.

    Raises:
        ValueError: the shapes differ.

    Source: verl `kl_penalty_forward` ("k1"), SkyRL `compute_approx_kl`.
    """
    return _log_ratio(logprobs, ref_logprobs)


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio, (log pi - log pi_ref)^2 / 2.

    Arguments, errors and source ("k2") as `kl_k1`.

    Returns:
        The same shape, in nats per token, never negative; its gradient is that of KL(pi || pi_ref) on
        average.
    """
    return 0.5 * _log_ratio(logprobs, ref_logprobs).square()


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The estimator of least variance, pi_ref / pi - 1 - log(pi_ref / pi).

    Arguments, errors and source ("low_var_kl", "k3") as `kl_k1`.

    Returns:
        The same shape, in nats per token, never negative; the log-ratio is held within +-20 and the result at
        10 or less, with no gradient beyond. The estimator of GRPO's KL term (TRL, without bounds).
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
