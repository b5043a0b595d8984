"""Local engine: batched sampling with the trainer's own model and a static key-value cache.

The weights are shared, so nothing is synced, and log-probabilities agree with the trainer's up to float rounding. A conversation's cache
is kept between turns under its row's key.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from tstar_train.engines import trie
from tstar_train.engines.base import Sample, inverse_cdf, require_room, rooms, uniform_noise
from tstar_train.engines.trie import Text, Trie, activations_in, feed
from tstar_train.finite import require_finite
from tstar_train.policy.attention import reading_prefix_once
from tstar_train.policy.kv import (
    RaggedCache,
    cache_bytes_per_token,
    common_prefix,
    context_limit,
    deal,
    hidden_states,
    output_logits,
    rows_that_fit,
)
from tstar_train.policy.model import Policy
from tstar_train.progress import progress

_CAPACITY = 256  # initial positions per row
_SHRINK_BELOW = 0.5  # share of running rows at which finished rows are dropped; the copy costs about as much as two tokens
_LOOK = 8  # tokens on a GPU between two looks at which rows have ended
_KEPT_SHARE = 0.25  # maximum share of the key-value memory for kept contexts, and for kept rows of a rollout


class LocalEngine:
    """See ``Engine``.

    Args:
        policy: model and codec; the model is used in place.
        batch: maximum number of rows decoded side by side.
        limit: maximum number of tokens of a context and its reply together; at most the model's positions, which None stands for.
        gib: maximum memory for keys and values, in GiB; fewer rows are decoded side by side if ``batch`` rows do not fit.
        keep_rows: True to keep the caches of finished rows of a rollout, within a quarter of that memory. Samples and scores after
            prefixes of these rows, as the KL estimate needs, then compute none of their tokens again.

    Attributes:
        batch: maximum number of rows decoded side by side, within ``gib``.
        most_kept: maximum number of cached tokens of contexts, and of finished rows.
        trie: contexts whose keys and values are cached.
        steps_between_looks: number of sampled tokens between two looks at which rows have ended; a look waits for the device.
    """

    def __init__(
        self,
        policy: Policy,
        batch: int = 256,
        limit: int | None = None,
        gib: float = 8.0,
        *,
        keep_rows: bool = False,
    ) -> None:
        self._model = policy.model
        self._ends = policy.codec.ends
        self._pad = policy.codec.pad
        self.steps_between_looks = 1 if policy.model.device.type == "cpu" else _LOOK
        self._limit = context_limit(policy.model.config, limit)
        itemsize = policy.model.dtype.itemsize
        self.batch = rows_that_fit(policy.model.config, itemsize, self._limit, batch, gib)
        kept = int(_KEPT_SHARE * gib * (1 << 30)) // cache_bytes_per_token(policy.model.config, itemsize)
        self.most_kept = kept
        self._keep_rows = keep_rows
        self._cache: RaggedCache | None = None
        self._kept: dict[Hashable, tuple[int, list[int]]] = {}  # key -> row of the cache, ids in it
        self._left: list[Text] = []  # rows of a rollout that have ended
        self.trie = Trie(policy.model, self._pad)

    @property
    def limit(self) -> int:
        """See ``Engine``."""
        return self._limit

    @property
    def rows_at_once(self) -> int | None:
        """See ``Engine``."""
        return self.batch

    @property
    def shares_weights(self) -> bool:
        """See ``Engine``."""
        return True

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Drop caches of the old weights; the weights themselves are shared with the trainer."""
        self.clear_cache()

    def clear_cache(self) -> None:
        """Drop the caches kept between calls."""
        self._cache = None
        self._kept = {}
        self._left = []
        self.trie = Trie(self._model, self._pad)

    def release(self) -> None:
        """See ``Engine``."""
        self.clear_cache()

    @torch.inference_mode()
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
        """See ``Engine``."""
        room = rooms(contexts, seeds, copies, max_tokens, self._limit)
        if keys is not None and copies == 1 and len(contexts) <= self.batch:
            cache, logits = self._resume([list(c) for c in contexts], keys)
            samples = self._decode(cache, logits, seeds, room, temperature, shared=_common(contexts))
            # The last token of a reply is sampled but not yet fed, so it is not in the cache.
            self._kept = {k: (r, [*contexts[r], *samples[r].ids[:-1]]) for r, k in enumerate(keys)}
            return samples
        samples = []
        for part in self._parts(contexts, [copies * tokens if copies > 1 else tokens for tokens in room]):
            chosen = seeds[part.start * copies : part.stop * copies]
            if copies > 1:
                stop, given = {*self._ends, *ends}, [tuple(c) for c in contexts[part]]
                samples += trie.draw(
                    self.trie, given, self.texts(), chosen, copies, room[part], temperature, stop
                )
                self._forget_if_much()
            else:
                cache = RaggedCache(
                    self._model, len(contexts[part]), max(_CAPACITY, max(map(len, contexts[part])) + 64)
                )
                samples += self._decode(
                    cache,
                    self._feed(cache, [list(c) for c in contexts[part]]),
                    chosen,
                    room[part],
                    temperature,
                    ends,
                    _common(contexts[part]),
                )
        return samples

    @torch.inference_mode()
    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """See ``Engine``; a context is computed once for all its continuations."""
        require_room(contexts, continuations, self._limit)
        extra = [sum(map(len, group)) for group in continuations]
        results: list[list[float]] = []
        for part in self._parts(contexts, extra):
            results += trie.logprobs(
                self.trie, [tuple(c) for c in contexts[part]], self.texts(), continuations[part]
            )
            self._forget_if_much()
        return results

    def _parts(self, contexts: Sequence[Sequence[int]], extra: Sequence[int]) -> Iterator[slice]:
        """Split contexts into parts that fit in the key-value cache.

        Args:
            contexts: token ids.
            extra: maximum number of tokens cached after each context.
        """
        first = longest = 0
        for last, (context, more) in enumerate(zip(contexts, extra, strict=True)):
            rows, longest = last - first + 1, max(longest, len(context) + more)
            if rows > 1 and (rows > self.batch or rows * longest > self.batch * self._limit):
                yield slice(first, last)
                first, longest = last, len(context) + more
        if contexts:
            yield slice(first, len(contexts))

    def texts(self) -> list[Text]:
        """Return the cached rows of a rollout: each episode without its last token."""
        playing = (
            [Text(tuple(ids), self._cache, row) for row, ids in self._kept.values()]
            if self._cache is not None
            else []
        )
        return playing + self._left

    def _forget_if_much(self) -> None:
        if self.trie.slots > self.most_kept:
            self.trie = Trie(self._model, self._pad)

    def _resume(self, contexts: list[list[int]], keys: Sequence[Hashable]) -> tuple[RaggedCache, Tensor]:
        """Give each row the longest cached prefix of its context, feed the rest, and return the logits after each context."""
        found = self._prefixes(contexts, keys)
        # In the ordinary turn every row goes on where it was.
        passes: list[list[int]] = [list(range(len(contexts)))]
        if not all(text is not None and shared == len(text.ids) for text, shared in found):
            # Members of a group are often in the same state: equal contexts are computed once. Rows with much to compute are apart from
            # those with little, which would be padded to it.
            best: dict[tuple[int, ...], int] = {}
            for row in sorted(range(len(contexts)), key=lambda row: found[row][1]):
                best[tuple(contexts[row])] = row
            counts = {row: len(contexts[row]) - found[row][1] for row in best.values()}
            passes = deal(counts, lambda width: len(counts))
        order = [row for rows in passes for row in rows]
        cache = self._gathered([found[row] for row in order], keys)
        ends = list(itertools.accumulate(map(len, passes)))
        slices = [slice(end - len(rows), end) for end, rows in zip(ends, passes, strict=True)]
        logits = self._feed(cache, [contexts[row][found[row][1] :] for row in order], slices)
        if order != list(range(len(contexts))):
            place = {tuple(contexts[row]): number for number, row in enumerate(order)}
            which = torch.tensor([place[tuple(context)] for context in contexts])
            cache.select(which)
            logits = logits[which]
        self._cache = cache
        return cache, logits

    def _prefixes(self, contexts: list[list[int]], keys: Sequence[Hashable]) -> list[tuple[Text | None, int]]:
        """Find the cached row whose beginning each context shares, with the number of shared tokens; its own row if it is known."""
        texts = self.texts()
        if not texts:
            return [(None, 0)] * len(contexts)
        own = dict(zip(self._kept, texts, strict=False))
        searched = not all(key in own for key in keys)
        order = sorted(texts, key=lambda text: text.ids) if searched else []
        found: list[tuple[Text | None, int]] = []
        for context, key in zip(contexts, keys, strict=True):
            given = tuple(context)
            if key in own:
                near = [own[key]]
            else:
                place = bisect_left(order, given, key=lambda text: text.ids)
                near = order[max(0, place - 1) : place + 1]
            shared = [_shared(given, text.ids) for text in near]
            best = shared.index(max(shared))
            found.append((near[best], shared[best]))
        return found

    def _gathered(self, sources: Sequence[tuple[Text | None, int]], keys: Sequence[Hashable]) -> RaggedCache:
        """Make the cache of a turn, whose rows begin with these prefixes."""
        old = self._cache
        if old is not None:
            self._leave(keys)
        self._kept = {}  # its rows move; a turn that fails leaves none
        if old is None or not any(shared for _, shared in sources):
            return RaggedCache(self._model, len(sources), _CAPACITY, self._limit)
        # The rows of finished episodes are in other caches. A row that ended early is longer than its ids; the excess is overwritten.
        here = [
            (text.row, shared) if text is not None and text.cache is old else (0, 0)
            for text, shared in sources
        ]
        if [row for row, _ in here] != list(
            range(len(old.lengths))
        ):  # else the copy of a turn that all rows go on from
            old.select(torch.tensor([row for row, _ in here]))
        old.lengths = torch.tensor([shared for _, shared in here], device=self._model.device)
        for row, (text, shared) in enumerate(sources):
            if text is not None and text.cache is not old and shared:
                old.put(slice(row, row + 1), text.cache.beginning(text.row, shared))
        return old

    def _leave(self, going_on: Sequence[Hashable]) -> None:
        """Keep the caches of rows that have ended, if ``keep_rows`` is set and memory allows."""
        still = set(going_on)
        others = [kept for key, kept in self._kept.items() if key not in still]
        if not self._keep_rows or self._cache is None or not others:
            return
        taken = sum(text.cache.capacity for text in self._left)
        others = others[: max(0, (self.most_kept - taken) // self._cache.capacity)]
        if not others:
            return
        chosen = torch.tensor([row for row, _ in others], device=self._model.device)
        part = self._cache.texts(chosen)
        self._left += [Text(tuple(ids), part, row) for row, (_, ids) in enumerate(others)]

    def _feed(
        self, cache: RaggedCache, new: list[list[int]], apart: Sequence[slice] = (slice(None),)
    ) -> Tensor:
        """Append ids to each row and return the logits after the last, shape (rows, vocabulary).

        Args:
            cache: with as many rows as ``new``.
            new: ids of each row.
            apart: rows that are padded to one another.
        """
        progress.advance()
        return self._logits(feed(self._model, activations_in(self._model), cache, new, self._pad, apart))

    def _logits(self, hidden: Tensor) -> Tensor:
        return output_logits(self._model, hidden)

    def _decode(
        self,
        cache: RaggedCache,
        logits: Tensor,
        seeds: Sequence[str],
        most: Sequence[int],
        temperature: float,
        ends: Collection[int] = (),
        shared: int = 0,
    ) -> list[Sample]:
        """Sample until every row has ended or has its maximum number of tokens, ``most``; all begin with ``shared`` equal tokens."""
        device = self._model.device
        last = torch.tensor(sorted({*self._ends, *ends}), device=device)
        rows, max_tokens = len(seeds), max(most)
        noise = (
            torch.from_numpy(np.stack([uniform_noise(seed, max_tokens) for seed in seeds])).to(device)
            if temperature
            else None
        )
        ids = torch.full((rows, max_tokens), self._pad, dtype=torch.long, device=device)
        logprobs = torch.zeros((rows, max_tokens), device=device)
        bounds = torch.tensor(most, device=device)
        lengths = bounds.clone()
        # Rows still computed; they move to a smaller cache once half of them have ended.
        work, live = cache, torch.arange(rows, device=device)
        running = torch.ones(rows, dtype=torch.bool, device=device)
        # A GPU computes ahead of Python, which must not wait for it at every token.
        every = self.steps_between_looks
        longest = int(cache.lengths.max()) if every > 1 else 0
        for step in range(max_tokens):
            scaled = torch.log_softmax(logits / temperature if temperature else logits, dim=-1)
            if noise is None:
                token = scaled.argmax(dim=-1)
            else:
                token = inverse_cdf(scaled, noise[live, step, None])[:, 0]
            token = torch.where(running, token, self._pad)
            ids[live, step] = token
            logprobs[live, step] = scaled.gather(-1, token[:, None])[:, 0]
            ended = running & (torch.isin(token, last) | (bounds[live] == step + 1))
            lengths[live] = torch.where(ended, step + 1, lengths[live])
            running = running & ~ended
            progress.advance()
            if step + 1 == max_tokens:
                break
            if (step + 1) % every == 0:
                left = int(running.sum())
                if not left:
                    break
                if left <= _SHRINK_BELOW * len(live):
                    if work is not cache:
                        cache.absorb(live, work)
                        work = cache  # frees the old part before the new one is made
                    live, token = live[running], token[running]
                    work, running = cache.part(live), running[running]
            span = min(longest + step + 1, self._limit) if every > 1 else None
            positions, seen = work.place(1, span=span)
            with reading_prefix_once(self._model, work, shared):
                hidden = hidden_states(self._model, token[:, None], positions, seen, work)
            # Finished rows do not advance: their last token is fed again at the same position, and the result is unused.
            work.lengths = work.lengths + running.long()
            logits = self._logits(hidden[:, 0])
        if work is not cache:
            cache.absorb(live, work)
        counts, said = lengths.cpu(), logprobs.cpu()
        require_finite(
            said[torch.arange(max_tokens) < counts[:, None]], "the log-probabilities of sampled tokens"
        )
        return [
            Sample(i[:n], p[:n]) for i, p, n in zip(ids.tolist(), said.tolist(), counts.tolist(), strict=True)
        ]


def _common(contexts: Sequence[Sequence[int]]) -> int:
    """Count the tokens that all contexts begin with."""
    ordered = sorted(map(tuple, contexts))
    return common_prefix(ordered[0], ordered[-1]) if ordered else 0


def _shared(context: tuple[int, ...], ids: tuple[int, ...]) -> int:
    """Count the tokens of a context that need not be computed again; its last is, for its logits."""
    most = min(len(ids), len(context) - 1)
    return most if context[:most] == ids[:most] else common_prefix(context[:most], ids)
