"""Contexts into a cache, in as many forward passes as keep their activations within a bound (``policy.activations``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.policy.activations import Activations, activations_of
from tstar_train.policy.head import hidden_states
from tstar_train.policy.kv import RaggedCache
from tstar_train.policy.lora import has_adapters


def activations_in(model: PreTrainedModel) -> Activations:
    """What a forward pass of this model takes."""
    return activations_of(model.config, model.dtype.itemsize, has_adapters(model))


def in_passes(takes: Activations, counts: Sequence[int], before: Sequence[int]) -> Iterator[slice]:
    """Neighbouring rows that are computed together, padded to the longest of them.

    Args:
        takes: of the model.
        counts: new tokens of each row.
        before: tokens that it has already.
    """
    first = longest = oldest = 0
    for last, (count, old) in enumerate(zip(counts, before, strict=True)):
        longest, oldest = max(longest, count), max(oldest, old)
        # With its padding a row may reach further than its own tokens do.
        if last > first and last - first + 1 > takes.rows(longest, oldest + longest):
            yield slice(first, last)
            first, longest, oldest = last, count, old
    if counts:
        yield slice(first, len(counts))


def feed(
    model: PreTrainedModel, takes: Activations, cache: RaggedCache, new: Sequence[Sequence[int]], pad: int
) -> Tensor:
    """Append ids to each row; the model's hidden state at the last of each, shape (rows, width).

    Rows are computed side by side as far as the bound allows, and one that is longer than that alone, piece after piece.

    Args:
        model: causal LM.
        takes: of ``model``.
        cache: of as many rows as ``new``.
        new: at least one id for each row.
        pad: id of padding.

    Raises:
        UnknownOption: as ``RaggedCache.place``.
    """
    counts, before = [len(ids) for ids in new], cache.lengths.tolist()
    cache.make_room(max(counts))  # once, as if all were one pass
    last = [
        _together(model, cache, rows, new[rows], pad)
        if rows.stop - rows.start > 1
        else _alone(
            model, cache, rows, new[rows.start], pad, takes.tokens(before[rows.start] + counts[rows.start])
        )
        for rows in in_passes(takes, counts, before)
    ]
    return last[0] if len(last) == 1 else torch.cat(last)


def _together(
    model: PreTrainedModel, cache: RaggedCache, rows: slice, new: Sequence[Sequence[int]], pad: int
) -> Tensor:
    longest = max(map(len, new))
    counts = torch.tensor([len(n) for n in new], device=model.device)
    ids = torch.tensor([[*n, *[pad] * (longest - len(n))] for n in new], device=model.device)
    positions, seen = cache.place(longest, rows)
    hidden = hidden_states(model, ids, positions, seen, cache)
    # Padding was written too, and is overwritten by what comes next.
    cache.advance(rows, counts)
    return hidden[torch.arange(len(new)), counts - 1]


def _alone(
    model: PreTrainedModel, cache: RaggedCache, rows: slice, new: Sequence[int], pad: int, most: int
) -> Tensor:
    """One row, behind what the cache holds of it."""
    for first in range(0, len(new), most):
        last = _together(model, cache, rows, [new[first : first + most]], pad)
    return last
