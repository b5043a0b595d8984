"""A static key/value cache in which every row stands at its own position.

Transformers' own caches let all rows grow together, which needs left padding and re-encodes it. Here row r's next token is
written at ``lengths[r]``; rows of different lengths decode side by side, keep their cache from turn to turn, and leave.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from tstar_envs import UnknownOption
from tstar_train.policy.limit import attention_window


def cache_bytes_per_token(config: Any, itemsize: int) -> int:
    """Bytes of a token's keys and values over all layers, for a model of this configuration."""
    heads, size = _heads(config)
    return 2 * int(config.num_hidden_layers) * heads * size * itemsize


def rows_that_fit(config: Any, itemsize: int, limit: int, batch: int, gib: float) -> int:
    """How many rows are sampled side by side: ``batch``, or as many as have room for their keys and values, at least one."""
    row = cache_bytes_per_token(config, itemsize) * limit
    return max(1, min(batch, int(gib * (1 << 30)) // row))


def attention_mask(model: PreTrainedModel, seen: Tensor) -> Tensor:
    """What a model takes for a mask that is True where something is seen: attention written out (Gemma 2, which bounds its scores) adds
    the mask, torch's own takes it as it is.
    """
    if model.config._attn_implementation != "eager":
        return seen
    return torch.where(seen, 0.0, torch.finfo(model.dtype).min).to(model.dtype)


class BranchCache(Cache):
    """Keys and values of beginnings in front of those of rows that branch off from them; gradients flow through both.

    Args:
        beginnings: their keys and values, as a forward pass left them.
        of: the beginning of each row, shape (rows,).
    """

    def __init__(self, beginnings: DynamicCache, of: Tensor) -> None:
        super().__init__(layers=[])
        self._beginnings = beginnings
        self._of = of

    def place(self, lengths: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Where a forward pass over ``count`` tokens of each row stands.

        Args:
            lengths: tokens before each row's first, shape (rows,).
            count: tokens.

        Returns:
            As ``RaggedCache.place``.
        """
        own = torch.arange(count, device=lengths.device)
        before = torch.arange(self.get_seq_length(), device=lengths.device)[None, :] < lengths[:, None]
        rows = len(lengths)
        seen = torch.cat(
            [before[:, None].expand(rows, count, -1), (own[None, :] <= own[:, None]).expand(rows, -1, -1)],
            dim=2,
        )
        return lengths[:, None] + own, seen[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the model's attention: give back all that may be seen."""
        kept: Any = self._beginnings.layers[layer_idx]
        keys, values = kept.keys.index_select(0, self._of), kept.values.index_select(0, self._of)
        return torch.cat([keys, key_states], dim=2), torch.cat([values, value_states], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The length of the longest beginning."""
        return int(self._beginnings.get_seq_length())


class RaggedCache(Cache):
    """Keys and values of shape (rows, heads, capacity, head size) per layer.

    Args:
        model: whose sizes and dtype are used.
        rows: how many sequences.
        capacity: positions per row; grows by doubling when exceeded.
        most: positions beyond which it does not double; None: there is no such bound.
    """

    def __init__(self, model: PreTrainedModel, rows: int, capacity: int, most: int | None = None) -> None:
        super().__init__(layers=[])
        config = model.config
        self._most = most
        self._heads, self._size = _heads(config)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=model.device)
        shape = (rows, self._heads, capacity, self._size)
        layers = int(config.num_hidden_layers)
        self._keys = [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(layers)]
        self._values = [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(layers)]
        self._positions = self.lengths[:, None]
        self._rows = torch.arange(rows, device=model.device)[:, None]
        self._given = slice(None)  # rows that the attention is given back
        self._span = 0
        self._window = attention_window(config)

    @property
    def capacity(self) -> int:
        """Positions per row."""
        return int(self._keys[0].shape[2])

    def make_room(self, count: int) -> None:
        """Make room for ``count`` new tokens per row.

        Raises:
            UnknownOption: a row is longer than the model's sliding window.
        """
        self._reach(int(self.lengths.max()) + count)

    def place(self, count: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Announce a forward pass over ``count`` new tokens per row.

        Args:
            count: tokens.
            rows: that it computes.

        Returns:
            Position ids of shape (rows, count) and the attention mask of shape (rows, 1, count, span), True where seen.

        Raises:
            UnknownOption: as ``make_room``.
        """
        numbers = torch.arange(len(self.lengths), device=self.lengths.device)
        self._rows, self._given = numbers[rows, None], rows
        self._positions = self.lengths[rows, None] + torch.arange(count, device=self.lengths.device)
        self._span = int(self._positions.max()) + 1
        self._reach(self._span)
        seen = (
            torch.arange(self._span, device=self.lengths.device)[None, None, None, :]
            <= self._positions[:, None, :, None]
        )
        return self._positions, seen

    def advance(self, rows: slice, counts: Tensor) -> None:
        """Some rows have become longer by ``counts``."""
        self.lengths[rows] += counts

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the model's attention: write the new entries, give back all that may be seen."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows, :, self._positions] = key_states.transpose(1, 2)
        values[self._rows, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._given, :, : self._span], values[self._given, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest row; the models ask only when no positions are passed."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    def beginning(self, row: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """The first ``length`` keys and values of a row per layer, as views of shape (heads, length, head size)."""
        return [
            (k[row, :, :length], v[row, :, :length]) for k, v in zip(self._keys, self._values, strict=True)
        ]

    def put(self, rows: slice, content: list[tuple[Tensor, Tensor]]) -> None:
        """Make some rows what ``beginning`` gave."""
        length = content[0][0].shape[1]
        if length > self.capacity:
            self._grow(max(length, 2 * self.capacity))
        for layer, (keys, values) in enumerate(content):
            self._keys[layer][rows, :, :length] = keys
            self._values[layer][rows, :, :length] = values
        self.lengths[rows] = length

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        used = max(1, int(self.lengths.max()))
        for tensors in (self._keys, self._values):
            for layer, tensor in enumerate(tensors):  # one layer at a time is held twice
                tensors[layer] = _rows_of(tensor, rows, used)
        self.lengths = self.lengths[rows]
        self._rows = torch.arange(len(rows), device=self.lengths.device)[:, None]

    def part(self, rows: Tensor) -> RaggedCache:
        """A copy of some rows, in this order."""
        other = copy.copy(self)
        other._keys, other._values = list(self._keys), list(self._values)
        other.select(rows)
        return other

    def absorb(self, rows: Tensor, part: RaggedCache) -> None:
        """Bring some rows up to what became of them in a ``part``."""
        if part.capacity > self.capacity:
            self._grow(part.capacity)
        used = max(1, int(part.lengths.max()))
        for mine, theirs in ((self._keys, part._keys), (self._values, part._values)):
            for whole, tensor in zip(mine, theirs, strict=True):
                whole[rows, :, :used] = tensor[:, :, :used]
        self.lengths[rows] = part.lengths

    def _reach(self, span: int) -> None:
        if self._window is not None and span > self._window:
            raise UnknownOption(
                f"a context of {span} tokens, but the model attends to the last {self._window} only, which the local engine does "
                f"not imitate: use a model without a sliding window, or shorter contexts (--rollout.context step)"
            )
        if span > self.capacity:
            doubled = 2 * self.capacity if self._most is None else min(2 * self.capacity, self._most)
            self._grow(max(span, doubled))

    def _grow(self, capacity: int) -> None:
        for tensors in (self._keys, self._values):
            for layer, tensor in enumerate(tensors):
                larger = torch.zeros(
                    (*tensor.shape[:2], capacity, tensor.shape[3]), dtype=tensor.dtype, device=tensor.device
                )
                larger[:, :, : tensor.shape[2]] = tensor
                tensors[layer] = larger


def _heads(config: Any) -> tuple[int, int]:
    """How many heads keep keys and values, and how wide they are."""
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    return heads, int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rows_of(tensor: Tensor, rows: Tensor, used: int) -> Tensor:
    chosen = torch.zeros((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    chosen[:, :, :used] = tensor[rows, :, :used]
    return chosen
