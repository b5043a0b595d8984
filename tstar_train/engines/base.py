"""Engines: the protocol, and seeded noise for reproducible samples."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tstar_envs import TStarError
from tstar_train.policy.kv import ContextTooLong


class EngineFailed(TStarError, RuntimeError):
    """Failure of a sampling engine in another process: it died, does not answer, or serves another model."""


def uniform_noise(seed: str, count: int) -> np.ndarray:
    """Draw ``count`` uniform numbers in [0, 1) for one row; the counter-based stream makes rows independent of each other."""
    key = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def inverse_cdf(logprobs: Tensor, noise: Tensor) -> Tensor:
    """Sample by inverting the CDF: the first token whose cumulative probability exceeds the noise.

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


class Sample(NamedTuple):
    """A sampled reply: token ids, and the log-probability of each, in nats, under the sampling distribution."""

    ids: list[int]
    logprobs: list[float]


def rooms(
    contexts: Sequence[Sequence[int]], seeds: Sequence[str], copies: int, max_tokens: int, limit: int
) -> list[int]:
    """Compute the maximum reply length for each context.

    Raises:
        ValueError: the number of seeds is not the number of samples.
        ContextTooLong: a context fills the limit.
    """
    if len(seeds) != len(contexts) * copies:
        raise ValueError(f"generate needs {len(contexts) * copies} seeds, one per sample, got {len(seeds)}")
    room = [min(max_tokens, limit - len(context)) for context in contexts]
    if min(room, default=1) < 1:
        raise ContextTooLong(
            f"a context of {max(map(len, contexts))} tokens leaves no room for a reply within {limit}"
        )
    return room


def require_room(
    contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]], limit: int
) -> None:
    """Check that every context and continuation fits within the limit.

    Raises:
        ContextTooLong: a context with its longest continuation is longer than the limit.
    """
    for context, group in zip(contexts, continuations, strict=True):
        longest = len(context) + max(map(len, group), default=0)
        if longest > limit:
            raise ContextTooLong(
                f"a context with its continuation has {longest} tokens, and the limit is {limit}"
            )


class Engine(Protocol):
    """Samples replies and computes log-probabilities with the current weights.

    An engine that keeps the caches of so many rows only has that number as ``rows_at_once``: more are not played side by side. Its caches
    are dropped before each unit of tasks (``clear_cache``), so that a unit gives the same whatever was played before it.
    """

    @property
    def limit(self) -> int:
        """Maximum number of tokens of a context and its reply or continuation together."""

    @property
    def shares_weights(self) -> bool:
        """True if the engine computes with the trainer's own model, so that log-probabilities agree up to rounding.

        If False, ``engines.check.sync_engine`` compares engine and model after each sync, and the trainer computes the old
        log-probabilities of the update (``learner.update.compute_old_logprobs_and_values``) and corrects for their ratio to the sampler's
        (``learner.rows.weigh``).
        """

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        seeds: Sequence[str],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        keys: Sequence[Hashable] | None = None,
        copies: int = 1,
        ends: Collection[int] = (),
    ) -> list[Sample]:
        """Sample replies to contexts, up to a stop token, ``max_tokens`` or the limit.

        Args:
            contexts: token ids.
            seeds: one per returned sample. The same seed and distribution give the same sample, whatever else is in the batch.
            max_tokens: maximum reply length in tokens.
            temperature: sampling temperature; 0 is greedy decoding (log-probabilities are then at temperature 1).
            keys: one key per row, under which its cache is found again in the next call.
            copies: number of samples per context; they are adjacent in the result.
            ends: further stop tokens; not with ``keys``.

        Raises:
            ContextTooLong: a context fills the limit.
            NotFinite: a log-probability is NaN or infinite.
        """

    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """Sum the log-probabilities of each continuation of each context, at temperature 1.

        Raises:
            ContextTooLong: a context with its continuation is longer than the limit.
            NotFinite: a sum is NaN.
        """

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load new weights, given as (name, tensor), and drop caches of the old ones."""

    def clear_cache(self) -> None:
        """Drop the key-value caches kept between calls."""

    def release(self) -> None:
        """Free memory for the update; the next call is ``sync``."""
