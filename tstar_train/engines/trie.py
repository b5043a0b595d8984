"""Trie of contexts with shared keys and values, and sampling and scoring on it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.engines.base import Sample, inverse_cdf, uniform_noise
from tstar_train.finite import NotFinite, require_finite
from tstar_train.policy.attention import in_parts, last_layer_only_at, replaces_attention
from tstar_train.policy.kv import (
    MOST_PADDED,
    Activations,
    Place,
    RaggedCache,
    TreeCache,
    activations_of,
    common_prefix,
    deal,
    hidden_states,
    output_logits,
)
from tstar_train.policy.lora import has_adapters
from tstar_train.progress import progress


def activations_in(model: PreTrainedModel) -> Activations:
    """Return the activation sizes of this model's forward pass."""
    return activations_of(model.config, model.dtype.itemsize, has_adapters(model))


def in_passes(takes: Activations, counts: Sequence[int], before: Sequence[int]) -> Iterator[slice]:
    """Split rows into slices for one forward pass each, padded to the longest row.

    Args:
        takes: activation sizes of the model.
        counts: number of new tokens of each row.
        before: number of cached tokens of each row.
    """
    first = longest = oldest = 0
    for last, (count, old) in enumerate(zip(counts, before, strict=True)):
        longest, oldest = max(longest, count), max(oldest, old)
        # Padding may make a row longer than its own tokens.
        if last > first and last - first + 1 > takes.rows(longest, oldest + longest):
            yield slice(first, last)
            first, longest, oldest = last, count, old
    if counts:
        yield slice(first, len(counts))


def feed(
    model: PreTrainedModel,
    takes: Activations,
    cache: RaggedCache,
    new: Sequence[Sequence[int]],
    pad: int,
    apart: Sequence[slice] = (slice(None),),
) -> Tensor:
    """Append ids to each row and return the model's last hidden state of each, shape (rows, width).

    Rows are batched within the activation memory bound. A row that exceeds it is computed alone, in pieces.

    Args:
        model: causal LM.
        takes: activation sizes of ``model``.
        cache: cache with as many rows as ``new``.
        new: at least one id for each row.
        pad: padding id.
        apart: slices of rows that are never in one forward pass, in order.

    Raises:
        UnknownOption: see ``RaggedCache.place``.
    """
    counts, before = [len(ids) for ids in new], cache.lengths.tolist()
    cache.make_room(max(counts))  # grow once for all passes
    passes = [
        slice(part.start + first, part.stop + first)
        for some in apart
        for first in [some.start or 0]
        for part in in_passes(takes, counts[some], before[some])
    ]
    last = [
        _together(model, cache, rows, new[rows], pad)
        if rows.stop - rows.start > 1
        else _alone(
            model, cache, rows, new[rows.start], pad, takes.tokens(before[rows.start] + counts[rows.start])
        )
        for rows in passes
    ]
    return last[0] if len(last) == 1 else torch.cat(last)


def _together(
    model: PreTrainedModel, cache: RaggedCache, rows: slice, new: Sequence[Sequence[int]], pad: int
) -> Tensor:
    longest = max(map(len, new))
    counts = torch.tensor([len(n) for n in new], device=model.device)
    ids = torch.tensor([[*n, *[pad] * (longest - len(n))] for n in new], device=model.device)
    positions, seen = cache.place(longest, rows)
    with last_layer_only_at(model.base_model, torch.arange(longest) == counts.cpu()[:, None] - 1):
        hidden = hidden_states(model, ids, positions, seen, cache)
    # Padding was written too, and is overwritten by the next tokens.
    cache.advance(rows, counts)
    return hidden[torch.arange(len(new)), counts - 1]


def _alone(
    model: PreTrainedModel, cache: RaggedCache, rows: slice, new: Sequence[int], pad: int, most: int
) -> Tensor:
    """Append ids to one row in pieces of ``most`` tokens."""
    for first in range(0, len(new), most):
        last = _together(model, cache, rows, [new[first : first + most]], pad)
    return last


Ids = tuple[int, ...]

_TAIL = 16  # a context with at most this many tokens beyond a text is a branch of it; other contexts become texts themselves
_UNREAD = torch.ones((1, 1, 1, 1), dtype=torch.bool)  # mask of passes whose attention has its own
_AT_TEXT = np.empty(0, dtype=np.int64)  # path of a text's own tokens


class Text(NamedTuple):
    """Filled row of a cache, with its ids."""

    ids: Ids
    cache: RaggedCache
    row: int


class Node:
    """One token of the trie.

    Attributes:
        cache: cache with its keys and values.
        row: row of the cache.
        seen: number of tokens of the row's text that it attends to.
        path: see ``Place``.
        length: number of tokens up to and including this one, with the context.
        token: token id.
        hidden: the model's last hidden state at this token, once computed; shape (width,).
        children: child nodes by token.
        logprobs: log-probabilities of next tokens computed so far, in nats at temperature 1.
    """

    __slots__ = ("cache", "children", "hidden", "length", "logprobs", "path", "row", "seen", "token")

    def __init__(
        self, cache: TreeCache, row: int, seen: int, path: NDArray[np.int64], length: int, token: int
    ) -> None:
        self.cache, self.row, self.seen, self.path, self.length, self.token = (
            cache,
            row,
            seen,
            path,
            length,
            token,
        )
        self.hidden: Tensor = torch.empty(0)
        self.children: dict[int, Node] = {}
        self.logprobs: dict[int, float] = {}


class Trie:
    """Trie of the continuations of a set of contexts.

    Args:
        model: causal LM.
        pad: padding id.
    """

    def __init__(self, model: PreTrainedModel, pad: int) -> None:
        self._model, self._pad, self._takes = model, pad, activations_in(model)
        self.roots: dict[Ids, Node] = {}  # the last token of each context
        self._caches: list[TreeCache] = []
        self._new: list[Node] = []

    @property
    def slots(self) -> int:
        """Capacity of all caches, in tokens."""
        return sum(cache.capacity * len(cache.lengths) for cache in self._caches)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = self._model.device
        return device

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self._model.config.vocab_size)

    def open(self, contexts: Sequence[Ids], texts: Sequence[Text], spare: int) -> None:
        """Compute the contexts that are not in the trie yet.

        Args:
            contexts: token ids.
            texts: rows computed before with the same weights; contexts reuse the prefixes that they share with these.
            spare: initial number of free slots after each row.
        """
        new = [context for context in dict.fromkeys(contexts) if context not in self.roots]
        if not new:
            return
        rows, found = _arranged(new, texts)
        length = {row: max(seen for r, seen in found.values() if r == row) for row in range(len(rows))}
        cache = TreeCache(self._model, len(rows), max(length.values()) + spare)
        self._caches.append(cache)
        for row, text in enumerate(rows):
            if isinstance(text, Text):
                kept = text.cache.beginning(text.row, length[row])
                cache.put(slice(row, row + 1), kept)
        own = {text: row for row, text in enumerate(rows) if not isinstance(text, Text)}
        if own:
            self.fill(cache, own)
        cache.close()
        for context, (row, seen) in found.items():
            if context in own:
                continue
            node = Node(cache, row, seen, _AT_TEXT, seen, -1)
            for token in context[seen:]:
                node = self.child(node, token)
            self.roots[context] = node
        self.compute()

    def child(self, node: Node, token: int) -> Node:
        """Add a token after a node; it has no hidden state before the next ``compute``."""
        found = node.children.get(token)
        if found is None:
            path = np.append(node.path, node.cache.reserve(node.row))
            found = node.children[token] = Node(node.cache, node.row, node.seen, path, node.length + 1, token)
            self._new.append(found)
        return found

    def compute(self) -> None:
        """Run the model on all new nodes."""
        by_cache: defaultdict[TreeCache, defaultdict[int, list[Node]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for node in self._new:
            by_cache[node.cache][node.row].append(node)
        self._new = []
        for cache, rows in by_cache.items():
            span = max(int(node.path[-1]) for nodes in rows.values() for node in nodes) + 1

            def fitting(width: int, span: int = span) -> int:
                return min(MOST_PADDED // width, self._takes.rows(width, span))

            at_once = self._takes.tokens(span)
            widths = {row: len(nodes) for row, nodes in rows.items()}
            # Without padding, all rows are one pass if they fit.
            together = replaces_attention(self._model) and len(widths) <= fitting(max(widths.values()))
            for part in [list(widths)] if together else deal(widths, fitting):
                # Nodes come after their ancestors, so each piece attends to the pieces before it.
                for first in range(0, max(len(rows[row]) for row in part), at_once):
                    now = {row: rows[row][first : first + at_once] for row in part}
                    self._feed(cache, {row: nodes for row, nodes in now.items() if nodes})

    def logits(self, nodes: Sequence[Node]) -> Tensor:
        """Compute next-token logits of computed nodes, shape (nodes, vocabulary)."""
        return output_logits(self._model, torch.stack([node.hidden for node in nodes]))

    def fill(self, cache: TreeCache, own: dict[Ids, int]) -> None:
        """Compute texts that have no cached keys and values, and fill their rows."""
        texts = list(own)
        # Only the rows of one forward pass are in a temporary cache: they take twice the memory until they are absorbed.
        for some in in_passes(self._takes, [len(text) for text in texts], [0] * len(texts)):
            new = texts[some]
            part = RaggedCache(self._model, len(new), max(map(len, new)))
            hidden = feed(self._model, self._takes, part, new, self._pad)
            cache.absorb(torch.tensor([own[text] for text in new], device=self.device), part)
            for text, state in zip(new, hidden, strict=True):
                node = self.roots[text] = Node(cache, own[text], len(text), _AT_TEXT, len(text), text[-1])
                node.hidden = state

    def _feed(self, cache: TreeCache, rows: dict[int, list[Node]]) -> None:
        progress.advance()
        places = [[Place(n.length - 1, n.seen, n.path) for n in nodes] for nodes in rows.values()]
        new = [node for nodes in rows.values() for node in nodes]
        if replaces_attention(self._model):
            positions, parts = cache.flat(list(rows), places)
            ids = torch.tensor([[node.token for node in new]])
            with in_parts(parts):
                states = hidden_states(self._model, ids, positions, _UNREAD, cache)[0]
        else:
            width = max(map(len, places))
            padded = [
                [*[node.token for node in of], *[self._pad] * (width - len(of))] for of in rows.values()
            ]
            positions, seen = cache.branch(list(rows), places)
            ids = torch.tensor(padded, device=self.device)
            real = torch.tensor([[c < len(of) for c in range(width)] for of in places], device=self.device)
            states = hidden_states(self._model, ids, positions, seen, cache)[real]
        for node, state in zip(new, states, strict=True):
            node.hidden = state


def _arranged(
    contexts: Sequence[Ids], texts: Sequence[Text]
) -> tuple[list[Text | Ids], dict[Ids, tuple[int, int]]]:
    """Choose the rows of a cache, and for each context its row and shared prefix length."""
    order = sorted(((text.ids, text) for text in texts), key=lambda pair: pair[0])
    names: list[Ids] = [ids for ids, _ in order]
    content: list[Text | Ids] = [text for _, text in order]
    chosen: list[tuple[Ids, Text | Ids, int]] = []
    for context in sorted(contexts, key=len, reverse=True):
        place = bisect_left(names, context)
        near = [(common_prefix(names[n], context), n) for n in (place - 1, place) if 0 <= n < len(names)]
        shared, which = max(near, default=(0, 0))
        shared = min(shared, len(context) - 1)  # the last token is computed here, for its next-token logits
        if len(context) - shared <= _TAIL and shared:
            chosen.append((context, content[which], shared))
        else:
            names.insert(place, context)
            content.insert(place, context)
            chosen.append((context, context, len(context)))
    rows: dict[int, int] = {}
    whole: list[Text | Ids] = []
    found = {}
    for context, text, shared in chosen:
        if id(text) not in rows:
            rows[id(text)] = len(whole)
            whole.append(text)
        found[context] = rows[id(text)], shared
    return whole, found


_LOGITS = 1 << 25  # maximum number of logits in memory at once, or those of one node
_SPARE = 16  # initial free slots after a row for each copy


def draw(
    trie: Trie,
    contexts: Sequence[Ids],
    texts: Sequence[Text],
    seeds: Sequence[str],
    copies: int,
    room: Sequence[int],
    temperature: float,
    ends: Collection[int],
) -> list[Sample]:
    """Draw ``copies`` samples of each context; see also ``Engine.generate``.

    Args:
        trie: trie to read from and add to.
        contexts: token ids.
        texts: see ``Trie.open``.
        seeds: one per sample.
        copies: number of samples per context; they are adjacent in the result.
        room: maximum number of sampled tokens for each context.
        temperature: sampling temperature; 0 is greedy decoding.
        ends: stop tokens.

    Raises:
        NotFinite: a log-probability is NaN or infinite.
    """
    trie.open(contexts, texts, copies * min(_SPARE, max(room)))
    longest, count = max(room), len(seeds)
    noise = (
        np.stack([uniform_noise(seed, longest) for seed in seeds])
        if temperature
        else np.zeros((count, longest))
    )
    samples = [Sample([], []) for _ in seeds]
    live: dict[Node, list[int]] = {}  # running samples by their current node; equal samples share it
    for number, context in enumerate(contexts):
        live.setdefault(trie.roots[context], []).extend(range(number * copies, (number + 1) * copies))
    for step in range(longest):
        going: dict[Node, list[int]] = {}
        for part in _in_parts(trie, list(live)):
            logits = trie.logits(part)
            scaled = torch.log_softmax(logits / temperature if temperature else logits, dim=-1)
            most = max(len(live[node]) for node in part)
            if temperature:
                given = [[*noise[live[node], step], *[0.0] * (most - len(live[node]))] for node in part]
                tokens = inverse_cdf(scaled, torch.tensor(given, dtype=torch.float64, device=scaled.device))
            else:
                tokens = scaled.argmax(dim=-1, keepdim=True).expand(-1, most)
            message = scaled.gather(-1, tokens).tolist()
            for node, of_node, drawn in zip(part, tokens.tolist(), message, strict=True):
                for k, token, logprob in zip(live[node], of_node, drawn, strict=False):
                    samples[k].ids.append(token)
                    samples[k].logprobs.append(logprob)
                    if temperature == 1:
                        node.logprobs[token] = logprob
                    if token not in ends and step + 1 < room[k // copies]:
                        going.setdefault(trie.child(node, token), []).append(k)
        if not going:
            break
        trie.compute()
        live = going
    require_finite(
        torch.tensor([p for sample in samples for p in sample.logprobs]),
        "the log-probabilities of sampled tokens",
    )
    return samples


def logprobs(
    trie: Trie,
    contexts: Sequence[Ids],
    texts: Sequence[Text],
    continuations: Sequence[Sequence[Sequence[int]]],
) -> list[list[float]]:
    """Sum the log-probabilities of each continuation of each context at temperature 1, in nats; for the arguments see ``draw``.

    Raises:
        NotFinite: a sum is NaN.
    """
    trie.open(contexts, texts, max((sum(map(len, group)) for group in continuations), default=0))
    ways: list[list[tuple[Node, int]]] = []  # per continuation: its tokens, each with the node before it
    for context, group in zip(contexts, continuations, strict=True):
        for continuation in group:
            node = trie.roots[context]
            way: list[tuple[Node, int]] = []
            for token in continuation:
                if way:
                    node = trie.child(*way[-1])
                way.append((node, token))
            ways.append(way)
    trie.compute()
    asked: dict[Node, list[int]] = {}
    for way in ways:
        for node, token in way:
            if token not in node.logprobs:
                asked.setdefault(node, []).append(token)
    for part in _in_parts(trie, list(asked)):
        pairs = [(row, token) for row, node in enumerate(part) for token in asked[node]]
        rows, tokens = torch.tensor(pairs, device=trie.device).T
        said = torch.log_softmax(trie.logits(part), dim=-1)[rows, tokens].tolist()
        for (row, token), logprob in zip(pairs, said, strict=True):
            part[row].logprobs[token] = logprob
    sums = [sum(node.logprobs[token] for node, token in way) for way in ways]
    if any(map(math.isnan, sums)):  # minus infinity is valid: a model may give a token probability 0
        raise NotFinite(
            "the policy's log-probabilities of given continuations are NaN: its weights are broken"
        )
    results = iter(sums)
    return [[next(results) for _ in group] for group in continuations]


def _in_parts(trie: Trie, nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    most = max(1, _LOGITS // trie.vocabulary)
    return (nodes[first : first + most] for first in range(0, len(nodes), most))
