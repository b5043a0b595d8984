"""Engines: the protocol, and the noise that makes samples repeatable."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tstar_train.policy.kv import ContextTooLong


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


class Sample(NamedTuple):
    """A sampled reply: token ids, and the log-probability of each, in nats, under the sampling distribution."""

    ids: list[int]
    logprobs: list[float]


def rooms(
    contexts: Sequence[Sequence[int]], seeds: Sequence[str], copies: int, max_tokens: int, limit: int
) -> list[int]:
    """Compute the maximum reply length for each context.

    Raises:
        ValueError: not one seed per sample.
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
    """Refuse what is too long to be scored.

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
    """Samples from and scores under the current weights."""

    @property
    def limit(self) -> int:
        """Most tokens of a context and what follows it together; neither call feeds the model more."""

    @property
    def shares_weights(self) -> bool:
        """True if the engine computes with the trainer's own model, so that log-probabilities agree up to rounding.

        Where they are not, ``engines.check.sync_engine`` compares the two after each sync, and the update's old log-probabilities are the
        trainer's own (``learner.update.compute_old_logprobs_and_values``).
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
        """Continue each context until a token that ends a reply, ``max_tokens`` or the limit.

        Args:
            contexts: token ids.
            seeds: one per returned sample; equal seed and distribution, equal sample, whatever else is in the batch.
            max_tokens: longest reply.
            temperature: of the sampling distribution; 0 takes the likeliest token (log-probabilities are then at 1).
            keys: names of the rows, so that a cache kept from an earlier call can be found.
            copies: how many samples per context; they stand side by side in the result.
            ends: tokens that end a sample besides those that end a reply; not with ``keys``.

        Raises:
            ContextTooLong: a context fills the limit.
            NotFinite: the log-probabilities are no numbers.
        """

    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """Sum the log-probabilities of each continuation of each context, at temperature 1.

        Raises:
            ContextTooLong: a context with its continuation is longer than the limit.
            NotFinite: they are no numbers.
        """

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over new weights, by name; what was kept under the old ones is forgotten."""

    def clear_cache(self) -> None:
        """Drop what is kept between calls."""

    def release(self) -> None:
        """Give memory back to the update; the next call is ``sync``."""
