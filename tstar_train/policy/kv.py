"""Keys and values of contexts, their memory, and the output head."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from tstar_envs import TStarError, UnknownOption

_BOUNDLESS = 1 << 30  # of a model that names no bound


class ContextTooLong(TStarError, ValueError):
    """A context leaves no room for a reply, or text does not fit behind it."""


def attention_window(config: Any) -> int | None:
    """Return the model's attention window in tokens; None if unlimited."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None
    return int(window) if window else None


def unscaled_positions(config: Any) -> int | None:
    """Up to which length the rotary embedding is one and the same, where beyond it depends on the length of the whole text.

    LongRoPE (Phi-4-mini) and dynamic NTK turn every position otherwise once a text is longer than what the model was first trained
    on: keys that were kept from a shorter text are then wrong, and so is the probability of everything sampled before.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    # One for each kind of layer, or one for all.
    kinds = [v for v in parameters.values() if isinstance(v, dict)] or [parameters]
    changing = [kind for kind in kinds if kind.get("rope_type") in ("longrope", "dynamic")]
    own = getattr(config, "original_max_position_embeddings", None) or getattr(
        config, "max_position_embeddings", None
    )
    bounds = [kind.get("original_max_position_embeddings") or own for kind in changing]
    return min((int(bound) for bound in bounds if bound), default=None)


def position_limit(config: Any) -> int:
    """Return the maximum sequence length of a model; beyond it the model fails or degrades.

    A model with local attention counts as one of that window, since the local engine shows every token all before it; one whose
    rotary embedding changes with the length as one of the length at which it begins to.
    """
    bounds = [
        getattr(config, "max_position_embeddings", None),
        attention_window(config),
        unscaled_positions(config),
    ]
    return min([int(bound) for bound in bounds if bound], default=_BOUNDLESS)


def context_limit(config: Any, wanted: int | None) -> int:
    """Tokens of a context and its reply together: what the model takes, or less if a run wants that."""
    return position_limit(config) if wanted is None else min(wanted, position_limit(config))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def cache_bytes_per_token(config: Any, itemsize: int) -> int:
    """Bytes of a token's keys and values over all layers, for a model of this configuration."""
    heads, size = _heads(config)
    return 2 * int(config.num_hidden_layers) * heads * size * itemsize


def rows_that_fit(config: Any, itemsize: int, limit: int, batch: int, gib: float) -> int:
    """Return the sampling batch size: ``batch``, or as many as fit in the key-value cache, at least one."""
    row = cache_bytes_per_token(config, itemsize) * limit
    return max(1, min(batch, int(gib * (1 << 30)) // row))


def attention_mask(model: PreTrainedModel, seen: Tensor) -> Tensor:
    """Convert a boolean mask of visible tokens to the model's attention mask.

    Eager attention (Gemma 2, which caps its scores) adds the mask; torch's own takes it unchanged.
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
        """Compute the positions of a forward pass over ``count`` tokens of each row.

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
        """Return all visible keys and values; called by the model's attention."""
        kept: Any = self._beginnings.layers[layer_idx]
        keys, values = kept.keys.index_select(0, self._of), kept.values.index_select(0, self._of)
        return torch.cat([keys, key_states], dim=2), torch.cat([values, value_states], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest prefix."""
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
        """Extend the rows by ``counts`` tokens."""
        self.lengths[rows] += counts

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values and return all visible ones; called by the model's attention."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows, :, self._positions] = key_states.transpose(1, 2)
        values[self._rows, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._given, :, : self._span], values[self._given, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest row; the models ask only when no positions are passed."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    def beginning(self, row: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Return the first ``length`` keys and values of a row per layer, as views of shape (heads, length, head size)."""
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
        """Copy some rows, in this order."""
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
    """Return number and size of the key-value heads."""
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    return heads, int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rows_of(tensor: Tensor, rows: Tensor, used: int) -> Tensor:
    chosen = torch.zeros((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    chosen[:, :, :used] = tensor[rows, :, :used]
    return chosen


def hidden_states(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, seen: Tensor, cache: Cache
) -> Tensor:
    """Last hidden states of new tokens, shape (rows, tokens, width).

    Args:
        model: causal LM.
        ids: shape (rows, tokens); so are ``positions``. Padding may stand beyond the last position that there is: nobody looks at it.
        positions: of the tokens.
        seen: True where something is seen, shape (rows, 1, tokens, span).
        cache: holds the keys and values before them, and takes in theirs.
    """
    hidden: Tensor = model.base_model(
        input_ids=ids,
        position_ids=positions.clamp(max=position_limit(model.config) - 1),
        attention_mask=attention_mask(model, seen),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return hidden


def output_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits of some positions only, which saves most of the work of a large vocabulary.

    Some families scale what the output matrix gives (Granite divides by ``logits_scaling``, Cohere multiplies by
    ``logit_scale``) or bound it (Gemma 2, ``final_logit_softcapping``); ``engines.check`` compares the result with the model's
    forward pass and stops at what is not known here.

    Args:
        model: causal LM.
        hidden: shape (..., hidden size), after the last norm.

    Returns:
        Shape (..., vocabulary), in at least single precision.
    """
    logits: Tensor = model.get_output_embeddings()(hidden)
    # Half precision is too coarse for probabilities.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    config = model.config
    divided, multiplied = getattr(config, "logits_scaling", None), getattr(config, "logit_scale", None)
    if divided:
        logits = logits / divided
    if multiplied:
        logits = logits * multiplied
    bound = getattr(config, "final_logit_softcapping", None)
    if bound:
        logits = bound * torch.tanh(logits / bound)
    return logits


# Of one forward pass over contexts. Fewer tokens than a 3B model has room for here (13,000) leave a GPU idle, and the built-in policies'
# 256 rows of a WebShop page (some 500 tokens of 9 KB) are still one pass.
BOUND = 2 << 30
# At the peak, which is in the block behind the attention: the gate, its activation and their product with the other side; the residual,
# its norm, and what the attention beside it takes. Adapters, in single precision, hold two results more, theirs and the sum.
_WIDE, _HIDDEN = 3, 4
_WIDE_UNDER_ADAPTER, _WIDE_OF_ADAPTER = 2, 2
_SINGLE = 4  # bytes


class Activations(NamedTuple):
    """Bytes of a forward pass.

    Attributes:
        token: of each new token.
        seen: of each new token and each token of the span that it may see: the mask, and scores where attention is written out.
        repeated: of each token of a row's span, where several heads share keys and values, which are repeated for them.
    """

    token: int
    seen: int
    repeated: int

    def of_row(self, count: int, span: int) -> int:
        """Bytes of ``count`` new tokens of one row that then has ``span`` tokens."""
        return count * (self.token + self.seen * span) + span * self.repeated

    def rows(self, count: int, span: int) -> int:
        """Return how many such rows fit in one forward pass, at least one."""
        return max(1, BOUND // self.of_row(count, span))

    def most(self, rows: int, limit: int) -> int:
        """Bytes of the largest forward pass over so many rows, each fed as many tokens as it may have."""
        return min(BOUND, rows * self.of_row(limit, limit))

    def tokens(self, span: int) -> int:
        """Return how many new tokens of one row fit in a forward pass; its keys and values get at most half the memory."""
        room = max(BOUND // 2, BOUND - span * self.repeated)
        return max(1, room // (self.token + self.seen * span))


def intermediate_size(config: Any) -> int:
    """Width of the block behind the attention; four hidden sizes where a configuration does not name it."""
    return int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)


def activations_of(config: Any, itemsize: int, adapters: bool) -> Activations:
    """Estimated from a model's configuration.

    On an H200 a feed of 130,816 tokens of Qwen2.5-3B in half precision with adapters of rank 32 took 163 KB a token; this says 169.

    Args:
        config: of the model, with the way its attention is computed.
        itemsize: bytes of a number of the model.
        adapters: whether it has adapters.
    """
    wide = intermediate_size(config)
    own = wide * (
        _WIDE_UNDER_ADAPTER * itemsize + _WIDE_OF_ADAPTER * _SINGLE if adapters else _WIDE * itemsize
    )
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    shared = int(getattr(config, "num_key_value_heads", None) or heads) < heads
    # Torch's own attention takes a mask of numbers in place of ours; written out, it holds scores in both precisions.
    seen = 1 + itemsize
    if getattr(config, "_attn_implementation", None) == "eager":
        seen += heads * (itemsize + 2 * _SINGLE)
    return Activations(
        own + _HIDDEN * config.hidden_size * itemsize, seen, 2 * heads * size * itemsize * shared
    )


class Place(NamedTuple):
    """Position of a branch's token.

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
        """Mark the texts as complete; later reservations come after them."""
        self._ends = self.lengths.tolist()

    def reserve(self, row: int) -> int:
        """Reserve a slot for one more token after a text."""
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
