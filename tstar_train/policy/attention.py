"""Attention computed with less work on a CPU: prefixes read once for all rows, and a last layer only where it is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tstar_train.policy.kv import Part, RaggedCache

# Takes module, queries, keys, values, mask and options; returns the output, shape (rows, tokens, heads, head size), and None.
Attention = Callable[..., tuple[Tensor, Any]]


def replaces_attention(model: PreTrainedModel) -> bool:
    """Check whether ``replaced_attention`` is of use: torch's own attention, in float32 on a CPU."""
    fits = model.device.type == "cpu" and model.dtype == torch.float32
    return fits and model.config._attn_implementation == "sdpa"


_PLAIN: Attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
_own = threading.local()


def _attention(*arguments: Any, **options: Any) -> tuple[Tensor, Any]:
    """Compute torch's attention, or what replaces it in this thread; models in other threads keep theirs."""
    replaced: Attention | None = getattr(_own, "replaced", None)
    return _PLAIN(*arguments, **options) if replaced is None else replaced(*arguments, **options)


ALL_ATTENTION_FUNCTIONS["sdpa"] = _attention


@contextmanager
def replaced_attention(attention: Attention) -> Iterator[None]:
    """Let models compute torch's attention by a function in this thread; it is called with the ordinary one before its arguments."""
    before = getattr(_own, "replaced", None)
    _own.replaced = partial(attention, before or _PLAIN)
    try:
        yield
    finally:
        _own.replaced = before


# A shorter prefix, or fewer rows, saves less than the further operations cost.
_SHARED_FROM, _ROWS_FROM = 64, 4


@contextmanager
def reading_prefix_once(model: PreTrainedModel, cache: RaggedCache, shared: int) -> Iterator[None]:
    """Read the keys and values of a common prefix once for all rows, in passes over one token of each row.

    Such a pass takes as long as reading its keys and values. Attention over the prefix is one matrix product of the queries of all rows
    with the first row's keys; the softmax is over both parts, so that only rounding differs. On a CPU, in float32, for torch's attention
    and a prefix that is worth it; otherwise nothing changes.

    Args:
        model: causal LM of the passes.
        cache: its cache; all rows begin with the same tokens.
        shared: number of these tokens.
    """
    if not replaces_attention(model) or shared < _SHARED_FROM or len(cache.lengths) < _ROWS_FROM:
        yield
        return

    def attention(
        plain: Attention,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        if query.shape[2] != 1 or attention_mask is None or not cache.holds(key):
            return plain(module, query, key, value, attention_mask, **options)
        scaling = options.get("scaling")
        rows, heads, _, size = query.shape
        # Heads that share keys and values are rows of the same product.
        own = (query * (size**-0.5 if scaling is None else scaling)).view(rows, key.shape[1], -1, size)
        together = own.transpose(0, 1).flatten(1, 2)
        first = torch.matmul(together, key[0, :, :shared].transpose(1, 2)).unflatten(1, (rows, -1))
        rest = torch.matmul(own, key[:, :, shared:].transpose(2, 3)) + attention_mask[..., shared:]
        weights = torch.softmax(torch.cat([first.transpose(0, 1), rest], dim=-1), dim=-1)
        before = weights[..., :shared].transpose(0, 1).flatten(1, 2)
        given = torch.matmul(before, value[0, :, :shared]).unflatten(1, (rows, -1)).transpose(0, 1)
        given = given + torch.matmul(weights[..., shared:], value[:, :, shared:])
        return given.reshape(rows, 1, heads, size), None

    with replaced_attention(attention):
        yield


@contextmanager
def in_parts(parts: Sequence[Part]) -> Iterator[None]:
    """Compute the attention of a sequence of tokens of many rows, whose keys and values are a cache's; see ``TreeCache.flat``.

    All else a layer computes token by token, without padding.
    """

    def attention(
        plain: Attention,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        own = query[0].transpose(0, 1)
        given = torch.empty_like(own, memory_format=torch.contiguous_format)
        for part in parts:
            rows, _, width, _ = part.mask.shape
            laid = own.new_zeros((rows, width, *own.shape[1:]))
            laid[part.row, part.column] = own[part.token]
            keys, values = (
                (key, value)
                if part.rows is None
                else (key.index_select(0, part.rows), value.index_select(0, part.rows))
            )
            found, _ = plain(module, laid.transpose(1, 2), keys, values, part.mask, **options)
            given[part.token] = found[part.row, part.column]
        return given[None], None

    with replaced_attention(attention):
        yield


@contextmanager
def in_branches(heads: Tensor, rows: Tensor, of: Tensor, unused: int | None) -> Iterator[None]:
    """Compute the attention of a sequence of prefixes and of rows that branch off from them.

    The sequence holds the tokens of all prefixes and then those of all rows. All else a layer computes token by token, without padding.

    Args:
        heads: True at the tokens of each prefix, shape (prefixes, longest); padded on the right.
        rows: True at the tokens of each row, shape (rows, longest); padded on the right.
        of: number of each row's prefix, shape (rows,).
        unused: number of a layer whose outputs for prefixes nothing uses: they are 0; None if there is none.
    """
    count, width = int(heads.sum()), rows.shape[1]
    own = torch.ones((width, width), dtype=torch.bool).tril().expand(len(rows), -1, -1)
    seen = torch.cat([heads[of][:, None].expand(-1, width, -1), own], dim=2)
    mask = torch.where(seen, 0.0, -torch.inf)[:, None]

    def laid(tokens: Tensor, grid: Tensor) -> Tensor:
        """Lay out tokens in rows, shape (rows, heads, longest, head size)."""
        empty = tokens.new_zeros((*grid.shape, *tokens.shape[1:]))
        return empty.index_put(grid.nonzero(as_tuple=True), tokens).transpose(1, 2)

    def attention(
        plain: Attention,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        queries, keys, values = (given[0].transpose(0, 1) for given in (query, key, value))
        before = [laid(given[:count], heads) for given in (keys, values)]
        if unused is not None and getattr(module, "layer_idx", None) == unused:
            first = queries.new_zeros((count, *queries.shape[1:]))
        else:
            first = _PLAIN(module, laid(queries[:count], heads), *before, None, **options)[0][heads]
        seen_by_rows = [
            torch.cat([kept.index_select(0, of), laid(given[count:], rows)], dim=2)
            for kept, given in zip(before, (keys, values), strict=True)
        ]
        found = _PLAIN(module, laid(queries[count:], rows), *seen_by_rows, mask, **options)[0][rows]
        return torch.cat([first, found])[None], None

    with replaced_attention(attention):
        yield


@contextmanager
def last_layer_only_at(trunk: Any, places: Tensor) -> Iterator[None]:
    """Compute attention and MLP of the last layer where its output is used, and give zeros elsewhere; see ``replaces_attention``.

    Two thirds of the tokens are the environment's, whose last hidden states nothing uses; their keys and values are computed. In a model
    of four layers this is a sixth of the update. With gradient checkpointing nothing changes: the layer is computed again later.

    Args:
        trunk: base model.
        places: True where the last hidden state is used, shape (rows, tokens).
    """
    layers: Any = getattr(trunk, "layers", None)
    mlp = getattr(layers[-1], "mlp", None) if layers else None
    if mlp is None or not replaces_attention(trunk) or _recomputes(trunk):
        yield
        return
    rows, tokens = places.nonzero(as_tuple=True)
    counts = places.sum(dim=1)
    slots = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    last, most, thread = len(layers) - 1, int(counts.max()), threading.get_ident()

    def before(module: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if threading.get_ident() != thread:
            return given
        hidden, *others = given
        return hidden[rows, tokens][None], *others

    def after(module: Any, given: tuple[Any, ...], output: Any) -> Any:
        if threading.get_ident() != thread:
            return output
        # A mixture of experts may return its routing as well, in which nothing here is interested.
        found, *others = output if isinstance(output, tuple) else (output,)
        laid = found.new_zeros((*places.shape, found.shape[-1])).index_put((rows, tokens), found[0])
        return (laid, *others) if isinstance(output, tuple) else laid

    def attention(
        plain: Attention,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        width = query.shape[2]
        if getattr(module, "layer_idx", None) != last or not 1 < most < width:
            return plain(module, query, key, value, attention_mask, **options)
        if attention_mask is None:
            seen = torch.arange(key.shape[2]) <= torch.arange(width)[:, None]
            attention_mask = torch.where(seen, 0.0, -torch.inf).expand(len(query), 1, -1, -1)
        shape = (len(query), most)
        chosen = query.new_zeros((*shape, query.shape[1], query.shape[3]))
        chosen = chosen.index_put((rows, slots), query.transpose(1, 2)[rows, tokens])
        # Unused places see the first token, so that their numbers are finite.
        mask = torch.where(torch.arange(key.shape[2]) == 0, 0.0, -torch.inf).expand(*shape, -1).clone()
        mask[rows, slots] = attention_mask[rows, 0, tokens]
        found, weights = plain(module, chosen.transpose(1, 2), key, value, mask[:, None], **options)
        given = found.new_zeros((len(query), width, *found.shape[2:]))
        return given.index_put((rows, tokens), found[rows, slots]), weights

    handles = [mlp.register_forward_pre_hook(before), mlp.register_forward_hook(after)]
    try:
        with replaced_attention(attention):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _recomputes(trunk: Any) -> bool:
    """Check for gradient checkpointing, by the attribute that both names of transformers' own check read."""
    return any(getattr(module, "gradient_checkpointing", False) for module in trunk.modules())
