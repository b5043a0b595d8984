"""A key/value cache in which texts branch: one row for each text, and behind it the tokens of all that goes on from a beginning of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.policy.kv import RaggedCache


class Place(NamedTuple):
    """Where a branch's token stands.

    Attributes:
        position: of the token in the text that it is part of, from 0.
        seen: how many tokens of its row's own text come before the branch.
        path: slots of the row that hold the branch up to this token, its own last.
    """

    position: int
    seen: int
    path: tuple[int, ...]


class TreeCache(RaggedCache):
    """A ``RaggedCache`` whose rows are texts with branches behind them. A branch's token sees a beginning of its row's text and the
    tokens that lead to it, whatever else stands in the row: keys and values of a text serve all its branches without a copy.

    Args:
        model: see ``RaggedCache``.
        rows: how many texts.
        capacity: slots per row, one of them for padding; grows when exceeded.
    """

    def __init__(self, model: PreTrainedModel, rows: int, capacity: int) -> None:
        super().__init__(model, rows, capacity)
        self._ends = [0] * rows
        self._part: Tensor | None = None

    def close(self) -> None:
        """The texts are in their rows; what is reserved from now on stands behind them."""
        self._ends = self.lengths.tolist()

    def reserve(self, row: int) -> int:
        """A slot for one more token behind a text."""
        slot = self._ends[row]
        self._ends[row] += 1
        return slot

    def branch(self, rows: Sequence[int], places: Sequence[Sequence[Place]]) -> tuple[Tensor, Tensor]:
        """Announce a forward pass over new tokens of branches, those that lead to others among them.

        Args:
            rows: of the cache, rising.
            places: of the tokens in each of these rows; every other token of the padded rows goes where nobody looks.

        Returns:
            As ``RaggedCache.place``, for the rows given.
        """
        if max(self._ends) >= self.capacity:
            self._grow(max(self._ends) + 1 + self.capacity // 4)
        count, width = len(rows), max(map(len, places))
        span = max(place.path[-1] for of_row in places for place in of_row) + 1
        trash = self.capacity - 1
        filled = [
            [*[(p.position, p.path[-1], p.seen) for p in of_row], *[(0, trash, 1)] * (width - len(of_row))]
            for of_row in places
        ]
        laid = torch.tensor(filled, device=self.lengths.device)
        ends = [
            [r, c, slot]
            for r, of_row in enumerate(places)
            for c, place in enumerate(of_row)
            for slot in place.path
        ]
        own = torch.tensor(ends, device=self.lengths.device).T
        self._span = span  # a branch stands behind what it sees of its row
        seen = torch.arange(self._span, device=self.lengths.device) < laid[:, :, 2:]
        seen[own[0], own[1], own[2]] = True
        chosen = torch.tensor(rows, device=self.lengths.device)
        self._rows, self._positions = chosen[:, None], laid[:, :, 1]
        self._part = None if count == len(self._ends) else chosen
        return laid[:, :, 0], seen[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See ``RaggedCache``; only the rows of the pass are given back."""
        keys, values = super().update(key_states, value_states, layer_idx)
        if self._part is None:
            return keys, values
        return keys.index_select(0, self._part), values.index_select(0, self._part)
