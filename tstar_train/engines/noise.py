"""The random numbers behind samples: a stream for each sample, so that none depends on what else is in the batch."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def uniform_noise(seed: str, count: int) -> np.ndarray:
    """``count`` uniform numbers in [0, 1) for one row; a counter-based stream, so rows do not depend on one another."""
    key = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def inverse_cdf(logprobs: Tensor, noise: Tensor) -> Tensor:
    """Sample by inverting the cumulative distribution: the first token whose cumulated probability exceeds the noise.

    Args:
        logprobs: shape (rows, vocabulary).
        noise: in [0, 1), shape (rows, samples).

    Returns:
        Tokens, the shape of ``noise``.
    """
    cumulated = logprobs.double().exp().cumsum(dim=-1)
    return torch.searchsorted(cumulated, noise * cumulated[:, -1:], right=True).clamp_max(
        logprobs.shape[-1] - 1
    )
