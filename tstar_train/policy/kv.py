"""Key-value caches of contexts, memory estimates of forward passes, and the output head."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from tstar_envs import TStarError, UnknownOption

_BOUNDLESS = 1 << 30  # position limit of a model that declares none


class ContextTooLong(TStarError, ValueError):
    """A context with its reply or continuation exceeds the limit."""


def attention_window(config: Any) -> int | None:
    """Return the model's attention window in tokens; None if unlimited."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None
    return int(window) if window else None


def unscaled_positions(config: Any) -> int | None:
    """Return the length beyond which the rotary embedding depends on the text's total length; None if it never does.

    LongRoPE (Phi-4-mini) and dynamic NTK change the rotation of all positions once a text exceeds the length of the first training. Keys
    cached for a shorter text are then wrong, and so are the probabilities of earlier samples.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    # One set of parameters per layer type, or one for all.
    kinds = [v for v in parameters.values() if isinstance(v, dict)] or [parameters]
    changing = [kind for kind in kinds if kind.get("rope_type") in ("longrope", "dynamic")]
    own = getattr(config, "original_max_position_embeddings", None) or getattr(
        config, "max_position_embeddings", None
    )
    bounds = [kind.get("original_max_position_embeddings") or own for kind in changing]
    return min((int(bound) for bound in bounds if bound), default=None)


def position_limit(config: Any) -> int:
    """Return the maximum sequence length of a model; beyond it the model fails or degrades.

    The limit includes the attention window, since the local engine always attends to all earlier tokens, and the length beyond which the
    rotary embedding changes (``unscaled_positions``).
    """
    bounds = [
        getattr(config, "max_position_embeddings", None),
        attention_window(config),
        unscaled_positions(config),
    ]
    return min([int(bound) for bound in bounds if bound], default=_BOUNDLESS)


def context_limit(config: Any, wanted: int | None) -> int:
    """Return the maximum number of tokens of a context and its reply: the model's limit, or ``wanted`` if smaller."""
    return position_limit(config) if wanted is None else min(wanted, position_limit(config))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def cache_bytes_per_token(config: Any, itemsize: int) -> int:
    """Return the size of one token's keys and values over all layers, in bytes."""
    heads, size = _heads(config)
    return 2 * int(config.num_hidden_layers) * heads * size * itemsize


def rows_that_fit(config: Any, itemsize: int, limit: int, batch: int, gib: float) -> int:
    """Return the sampling batch size: ``batch``, or as many as fit in the key-value cache, at least one."""
    row = cache_bytes_per_token(config, itemsize) * limit
    return max(1, min(batch, int(gib * (1 << 30)) // row))


def attention_mask(model: PreTrainedModel, seen: Tensor) -> Tensor:
    """Convert a boolean mask of visible tokens to the model's attention mask.

    Eager attention (Gemma 2, which caps its scores) adds the mask to the scores. Torch's own takes the boolean mask; on a CPU it would
    convert it in every layer, so it gets numbers.
    """
    if model.config._attn_implementation == "eager":
        return torch.where(seen, 0.0, torch.finfo(model.dtype).min).to(model.dtype)
    if model.device.type == "cpu" and model.config._attn_implementation == "sdpa":
        return torch.where(seen, 0.0, -torch.inf).to(model.dtype)
    return seen


class BranchCache(Cache):
    """Key-value cache of rows that branch off from shared prefixes; gradients flow through both.

    Args:
        prefixes: keys and values of the shared prefixes, from a forward pass.
        of: index of each row's prefix, shape (rows,).
    """

    def __init__(self, prefixes: DynamicCache, of: Tensor) -> None:
        super().__init__(layers=[])
        self._prefixes = prefixes
        self._of = of

    def place(self, lengths: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Compute the positions of a forward pass over ``count`` tokens of each row.

        Args:
            lengths: number of prefix tokens before each row's first token, shape (rows,).
            count: number of tokens.

        Returns:
            See ``RaggedCache.place``.
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
        kept: Any = self._prefixes.layers[layer_idx]
        keys, values = kept.keys.index_select(0, self._of), kept.values.index_select(0, self._of)
        return torch.cat([keys, key_states], dim=2), torch.cat([values, value_states], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest prefix."""
        return int(self._prefixes.get_seq_length())


class RaggedCache(Cache):
    """Key-value cache of rows of different lengths, shape (rows, heads, capacity, head size) per layer.

    Args:
        model: model with the sizes and dtype to use.
        rows: number of sequences.
        capacity: positions per row; grows by doubling when exceeded.
        most: maximum capacity that doubling reaches; None for no maximum.
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
        self._given = slice(None)  # rows returned to the attention
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

    def place(self, count: int, rows: slice = slice(None), span: int | None = None) -> tuple[Tensor, Tensor]:
        """Prepare a forward pass over ``count`` new tokens per row.

        Args:
            count: number of new tokens.
            rows: rows of the pass.
            span: number of tokens of the longest row with the new ones, or more; None reads it off the device.

        Returns:
            Position ids of shape (rows, count) and the attention mask of shape (rows, 1, count, span), True for visible tokens.

        Raises:
            UnknownOption: see ``make_room``.
        """
        numbers = torch.arange(len(self.lengths), device=self.lengths.device)
        self._rows, self._given = numbers[rows, None], rows
        self._positions = self.lengths[rows, None] + torch.arange(count, device=self.lengths.device)
        self._span = int(self._positions.max()) + 1 if span is None else span
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

    def holds(self, keys: Tensor) -> bool:
        """Check whether keys that an attention was given are those of all rows of this cache."""
        return any(keys.data_ptr() == own.data_ptr() for own in self._keys)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest row; models call it only if no positions are passed."""
        return int(self.lengths.max()) if len(self.lengths) else 0

    def beginning(self, row: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Return the first ``length`` keys and values of a row per layer, as views of shape (heads, length, head size)."""
        return [
            (k[row, :, :length], v[row, :, :length]) for k, v in zip(self._keys, self._values, strict=True)
        ]

    def put(self, rows: slice, content: list[tuple[Tensor, Tensor]]) -> None:
        """Fill rows with the result of ``beginning``."""
        length = content[0][0].shape[1]
        self._reach(length)
        for layer, (keys, values) in enumerate(content):
            self._keys[layer][rows, :, :length] = keys
            self._values[layer][rows, :, :length] = values
        self.lengths[rows] = length

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        used = max(1, int(self.lengths.max()))
        for tensors in (self._keys, self._values):
            for layer, tensor in enumerate(tensors):  # only one layer at a time takes twice the memory
                tensors[layer] = _rows_of(tensor, rows, used)
        self.lengths = self.lengths[rows]
        self._rows = torch.arange(len(rows), device=self.lengths.device)[:, None]

    def part(self, rows: Tensor) -> RaggedCache:
        """Copy some rows, in this order."""
        other = copy.copy(self)
        other._keys, other._values = list(self._keys), list(self._values)
        other.select(rows)
        return other

    def texts(self, rows: Tensor) -> RaggedCache:
        """Copy some rows, in this order, without free positions."""
        other = copy.copy(self)
        other.lengths = self.lengths[rows]
        used = max(1, int(other.lengths.max()))
        other._keys = [keys[:, :, :used].index_select(0, rows) for keys in self._keys]
        other._values = [values[:, :, :used].index_select(0, rows) for values in self._values]
        return other

    def absorb(self, rows: Tensor, part: RaggedCache) -> None:
        """Copy rows back from a ``part`` made of them."""
        if part.capacity > self.capacity:
            self._grow(part.capacity)
        used = max(1, int(part.lengths.max()))
        for mine, theirs in ((self._keys, part._keys), (self._values, part._values)):
            for whole, tensor in zip(mine, theirs, strict=True):
                whole[:, :, :used].index_copy_(0, rows, tensor[:, :, :used])
        self.lengths[rows] = part.lengths

    def _reach(self, span: int) -> None:
        if self._window is not None and span > self._window:
            raise UnknownOption(
                f"a context has {span} tokens, but the model attends to the last {self._window} only, which the local engine does "
                f"not support: use a model without a sliding window, or shorter contexts (--rollout.context step)"
            )
        if span > self.capacity:
            doubled = 2 * self.capacity if self._most is None else min(2 * self.capacity, self._most)
            self._grow(max(span, doubled))

    def _grow(self, capacity: int) -> None:
        for tensors in (self._keys, self._values):
            for layer, tensor in enumerate(tensors):
                larger = tensor.new_empty((*tensor.shape[:2], capacity, tensor.shape[3]))
                larger[:, :, : tensor.shape[2]] = tensor
                larger[:, :, tensor.shape[2] :].zero_()
                tensors[layer] = larger


def _heads(config: Any) -> tuple[int, int]:
    """Return number and size of the key-value heads."""
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    return heads, int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rows_of(tensor: Tensor, rows: Tensor, used: int) -> Tensor:
    """Copy the first ``used`` positions of some rows; the others are 0, since a masked number must be finite."""
    chosen = tensor.new_empty((len(rows), *tensor.shape[1:]))
    torch.index_select(tensor[:, :, :used], 0, rows.to(tensor.device), out=chosen[:, :, :used])
    chosen[:, :, used:].zero_()
    return chosen


def hidden_states(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, seen: Tensor, cache: Cache
) -> Tensor:
    """Compute the last hidden states of new tokens, shape (rows, tokens, width).

    Args:
        model: causal LM.
        ids: token ids, shape (rows, tokens).
        positions: position ids, same shape; padding may exceed the model's last position, since its output is unused.
        seen: True for visible tokens, shape (rows, 1, tokens, span).
        cache: cache of the earlier tokens; the new keys and values are added.
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
    """Compute logits at selected positions only, which saves most of the work of a large vocabulary.

    Some families scale the logits (Granite divides by ``logits_scaling``, Cohere multiplies by ``logit_scale``) or cap them (Gemma 2,
    ``final_logit_softcapping``). ``engines.check`` compares the result with the model's forward pass and stops the run if they differ.

    Args:
        model: causal LM.
        hidden: hidden states after the last norm, shape (..., hidden size).

    Returns:
        Logits in float32 or wider, shape (..., vocabulary).
    """
    logits: Tensor = model.get_output_embeddings()(hidden)
    # bfloat16 and float16 are too coarse for probabilities.
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


# Memory limit of one forward pass over contexts, in bytes. A 3B model then computes 13,000 tokens per pass, and fewer would leave a GPU
# idle. The built-in policies compute 256 rows of a WebShop page (some 500 tokens of 9 KB) in one pass.
BOUND = 2 << 30
# Tensors at the peak, which is in the MLP. Of intermediate size: gate, its activation and the product with the up projection. Of hidden
# size: residual, its norm, and what the attention takes. Adapters, in float32, hold two more: their own output and the sum.
_WIDE, _HIDDEN = 3, 4
_WIDE_UNDER_ADAPTER, _WIDE_OF_ADAPTER = 2, 2
_SINGLE = 4  # bytes


class Activations(NamedTuple):
    """Activation memory of a forward pass, in bytes.

    Attributes:
        token: bytes per new token.
        seen: bytes per pair of a new token and a token of its span: the mask, and the scores of eager attention.
        repeated: bytes per token of a row's span, if heads share keys and values (grouped-query attention repeats them).
    """

    token: int
    seen: int
    repeated: int

    def of_row(self, count: int, span: int) -> int:
        """Return the bytes of ``count`` new tokens of a row with ``span`` tokens in total."""
        return count * (self.token + self.seen * span) + span * self.repeated

    def rows(self, count: int, span: int) -> int:
        """Return the maximum number of such rows in one forward pass, at least one."""
        return max(1, BOUND // self.of_row(count, span))

    def most(self, rows: int, limit: int) -> int:
        """Return the bytes of the largest forward pass over this number of rows, each with ``limit`` new tokens."""
        return min(BOUND, rows * self.of_row(limit, limit))

    def tokens(self, span: int) -> int:
        """Return the maximum number of new tokens of one row in a forward pass; repeated keys and values get at most half the memory."""
        room = max(BOUND // 2, BOUND - span * self.repeated)
        return max(1, room // (self.token + self.seen * span))


def intermediate_size(config: Any) -> int:
    """Return the MLP width; four hidden sizes if the configuration does not name it."""
    return int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)


def activations_of(config: Any, itemsize: int, adapters: bool) -> Activations:
    """Estimate the activation memory from a model's configuration.

    On an H200 a pass over 130,816 tokens of Qwen2.5-3B in bfloat16 with adapters of rank 32 took 163 KB per token; the estimate is 169.

    Args:
        config: the model's configuration, with its attention implementation.
        itemsize: bytes per number of the model's dtype.
        adapters: True if the model has adapters.
    """
    wide = intermediate_size(config)
    own = wide * (
        _WIDE_UNDER_ADAPTER * itemsize + _WIDE_OF_ADAPTER * _SINGLE if adapters else _WIDE * itemsize
    )
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    shared = int(getattr(config, "num_key_value_heads", None) or heads) < heads
    # Torch's own attention converts the boolean mask to numbers; eager attention holds scores in both dtypes.
    seen = 1 + itemsize
    if getattr(config, "_attn_implementation", None) == "eager":
        seen += heads * (itemsize + 2 * _SINGLE)
    return Activations(
        own + _HIDDEN * config.hidden_size * itemsize, seen, 2 * heads * size * itemsize * shared
    )


MOST_PADDED = 1 << 14  # maximum number of padded tokens of a forward pass with several rows
CALL_COST = 48  # overhead of a forward pass, in tokens of a tiny model


def deal(
    counts: dict[int, int],
    fitting: Callable[[int], int] = lambda width: MOST_PADDED // width,
    call: int = CALL_COST,
) -> list[list[int]]:
    """Split rows over forward passes so that padding and per-pass overhead are small.

    Args:
        counts: number of tokens of each row.
        fitting: maximum number of rows of a given length in one forward pass; at least one row is always taken.
        call: overhead of a pass, in tokens.
    """
    order = sorted(counts, key=lambda row: counts[row])
    ends = [
        n for n in range(1, len(order) + 1) if n == len(order) or counts[order[n]] != counts[order[n - 1]]
    ]
    # Entry n: (cost, start of the last pass) for the first n rows.
    best: dict[int, tuple[int, int]] = {0: (0, 0)}
    for end in ends:
        best[end] = min(
            (best[start][0] + call + (end - start) * counts[order[end - 1]], start) for start in best
        )
    found, end = [], len(order)
    while end:
        rows = order[best[end][1] : end]
        most = max(1, fitting(counts[rows[-1]]))
        found += [sorted(rows[n : n + most]) for n in range(0, len(rows), most)]
        end = best[end][1]
    return found


class Place(NamedTuple):
    """Position of a branch's token.

    Attributes:
        position: position id of the token, from 0.
        seen: number of tokens of the row's text before the branch.
        path: slots of the row with the branch's tokens up to this one, its own last; shape (tokens,).
    """

    position: int
    seen: int
    path: NDArray[np.int64]


class Part(NamedTuple):
    """Rows of a cache whose new tokens are laid out together for an attention.

    Attributes:
        rows: the rows, shape (rows,); None for all rows of the cache.
        row: number among these rows of each new token, shape (tokens,).
        column: number among its row's new tokens, same shape.
        token: number in the pass's sequence, same shape.
        mask: 0 for visible tokens and minus infinity for others, shape (rows, 1, longest, span).
    """

    rows: Tensor | None
    row: Tensor
    column: Tensor
    token: Tensor
    mask: Tensor


# What an attention takes beside its queries, in queries of a few hundred keys: a part, a row's keys, and their copy.
PART_COST, ROW_COST, COPY_COST = 28, 17, 4


def _span(places: Sequence[Sequence[Place]]) -> int:
    """Count the slots up to the last new one; a branch's slots come after the tokens it attends to."""
    return max(int(place.path[-1]) for of_row in places for place in of_row) + 1


class TreeCache(RaggedCache):
    """Key-value cache whose rows are texts with branches; all branches of a text share its keys and values.

    A branch's token attends to a prefix of its row's text and to its own ancestors, not to other branches in the row.

    Args:
        model: see ``RaggedCache``.
        rows: number of texts.
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
        """Prepare a forward pass over new tokens of branches; a token's new ancestors may be in the same pass.

        Args:
            rows: rows of the cache, in rising order.
            places: places of the new tokens in each of these rows; padding is written to an unused slot.

        Returns:
            See ``RaggedCache.place``, for the given rows.
        """
        self._make_slots()
        self._span = _span(places)
        positions, slots, seen = self._laid(places)
        device = self.lengths.device
        chosen = torch.tensor(rows, device=device)
        self._rows, self._positions = chosen[:, None], slots
        self._part = None if len(rows) == len(self._ends) else chosen
        return positions, seen

    def flat(self, rows: Sequence[int], places: Sequence[Sequence[Place]]) -> tuple[Tensor, list[Part]]:
        """Prepare the pass of ``branch`` as one sequence of all new tokens; see ``attention.in_parts``.

        Returns:
            Position ids of shape (1, tokens), and the rows whose queries are laid out together.
        """
        self._make_slots()
        self._span = _span(places)
        device = self.lengths.device
        flat = [place for of_row in places for place in of_row]
        self._part = None
        self._rows = torch.tensor([[row for row, of_row in zip(rows, places, strict=True) for _ in of_row]])
        self._positions = torch.tensor([[int(place.path[-1]) for place in flat]])
        first = np.cumsum([0, *map(len, places)])
        parts = []
        for some in self._parts(list(map(len, places))):
            whole = some is None
            chosen = list(range(len(self._ends))) if some is None else [rows[n] for n in some]
            of = {row: n for n, row in enumerate(rows)}
            laid = [places[of[row]] if row in of else () for row in chosen]
            spots = [
                (n, column, int(first[of[row]]) + column)
                for n, row in enumerate(chosen)
                for column in range(len(laid[n]))
            ]
            row, column, token = torch.tensor(spots, device=device).T
            seen = torch.where(self._laid(laid)[2], 0.0, -torch.inf)
            parts.append(Part(None if whole else torch.tensor(chosen), row, column, token, seen))
        return torch.tensor([[place.position for place in flat]], device=device), parts

    def _parts(self, widths: Sequence[int]) -> list[list[int] | None]:
        """Choose the rows whose queries are padded to one another; None stands for all rows of the cache, which are not copied."""
        own = {n: width + ROW_COST + COPY_COST for n, width in enumerate(widths)}
        classes = deal(own, lambda width: len(widths), PART_COST)
        cost = sum(PART_COST + len(some) * max(own[n] for n in some) for some in classes)
        if PART_COST + len(self._ends) * (max(widths) + ROW_COST) <= cost:
            return [None]
        return list(classes)

    def _make_slots(self) -> None:
        if max(self._ends) >= self.capacity:
            self._grow(max(self._ends) + 1 + self.capacity // 4)

    def _laid(self, places: Sequence[Sequence[Place]]) -> tuple[Tensor, Tensor, Tensor]:
        """Lay out rows of new tokens as (positions, slots, visible tokens); padding is written to an unused slot."""
        count, width = len(places), max(map(len, places))
        laid = np.tile(np.array([0, self.capacity - 1, 1]), (count, width, 1))
        row, column = np.array([(r, c) for r, of_row in enumerate(places) for c in range(len(of_row))]).T
        flat = [place for of_row in places for place in of_row]
        laid[row, column] = [(place.position, place.path[-1], place.seen) for place in flat]
        # Numbers of numpy, since a branch of n tokens names n slots at its every token.
        paths = [place.path for place in flat]
        lengths, slots = list(map(len, paths)), np.concatenate(paths)
        visible = np.arange(self._span) < laid[:, :, 2:]
        visible[np.repeat(row, lengths), np.repeat(column, lengths), slots] = True
        placed = torch.from_numpy(laid).to(self.lengths.device)
        return placed[:, :, 0], placed[:, :, 1], torch.from_numpy(visible).to(self.lengths.device)[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See ``RaggedCache``; only the rows of the pass are returned."""
        keys, values = super().update(key_states, value_states, layer_idx)
        if self._part is None:
            return keys, values
        return keys.index_select(0, self._part), values.index_select(0, self._part)
