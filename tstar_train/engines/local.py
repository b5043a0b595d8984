"""Local engine: batched sampling with the trainer's own model and a static key-value cache.

The weights are shared, so nothing is synced, and log-probabilities agree with the trainer's up to float rounding. A conversation's cache
is kept between turns under its row's key.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from tstar_train.engines import trie
from tstar_train.engines.base import Sample, inverse_cdf, require_room, rooms, uniform_noise
from tstar_train.engines.trie import Text, Trie, activations_in, feed
from tstar_train.finite import require_finite
from tstar_train.policy.kv import (
    RaggedCache,
    cache_bytes_per_token,
    context_limit,
    hidden_states,
    output_logits,
    rows_that_fit,
)
from tstar_train.policy.model import Policy

_CAPACITY = 256  # initial positions per row
_SHRINK_BELOW = 0.5  # share of running rows at which finished rows are dropped; the copy costs about as much as two tokens
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
            cache, ids, logits = self._resume([list(c) for c in contexts], keys)
            samples = self._decode(cache, logits, seeds, room, temperature)
            # The last token of a reply is sampled but not yet fed, so it is not in the cache.
            self._kept = {k: (r, ids[r] + samples[r].ids[:-1]) for r, k in enumerate(keys)}
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

    def _resume(
        self, contexts: list[list[int]], keys: Sequence[Hashable]
    ) -> tuple[RaggedCache, list[list[int]], Tensor]:
        """Select these rows of the kept cache, feed their new tokens, and return the logits after each context."""
        found = [self._kept.get(key) for key in keys]
        usable = self._cache is not None and all(
            kept is not None and len(kept[1]) < len(c) and c[: len(kept[1])] == kept[1]
            for kept, c in zip(found, contexts, strict=True)
        )
        if self._cache is not None and usable:
            self._leave(keys)
            self._cache.select(torch.tensor([kept[0] for kept in found if kept is not None]))
            # The cache of a row that ended early in the last decode is longer than its ids; the excess is overwritten.
            self._cache.lengths = torch.tensor(
                [len(kept[1]) for kept in found if kept is not None], device=self._model.device
            )
            new = [c[len(kept[1]) :] for kept, c in zip(found, contexts, strict=True) if kept is not None]
        else:
            # Members of a group are often in the same state: equal contexts are computed once.
            rows = {context: number for number, context in enumerate(dict.fromkeys(map(tuple, contexts)))}
            which = torch.tensor([rows[tuple(context)] for context in contexts])
            self._left = []
            self._cache = RaggedCache(self._model, len(rows), _CAPACITY, self._limit)
            logits = self._feed(self._cache, [list(context) for context in rows])
            self._cache.select(which)
            return self._cache, contexts, logits[which]
        return self._cache, contexts, self._feed(self._cache, new)

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
        part = self._cache.part(torch.tensor([row for row, _ in others], dtype=torch.long))
        self._left += [Text(tuple(ids), part, row) for row, (_, ids) in enumerate(others)]

    def _feed(self, cache: RaggedCache, new: list[list[int]]) -> Tensor:
        """Append ids to each row and return the logits after the last, shape (rows, vocabulary)."""
        return self._logits(feed(self._model, activations_in(self._model), cache, new, self._pad))

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
    ) -> list[Sample]:
        """Sample until every row has ended or has its maximum number of tokens, ``most``."""
        last = torch.tensor(sorted({*self._ends, *ends}), device=self._model.device)
        rows, max_tokens = len(seeds), max(most)
        noise = (
            torch.from_numpy(np.stack([uniform_noise(seed, max_tokens) for seed in seeds]))
            if temperature
            else None
        )
        ids = torch.full((rows, max_tokens), self._pad, dtype=torch.long, device=self._model.device)
        logprobs = torch.zeros((rows, max_tokens), device=self._model.device)
        lengths = torch.tensor(most)
        bounds = lengths.to(self._model.device)
        # Rows still computed; they move to a smaller cache once half of them have ended.
        work, live = cache, torch.arange(rows)
        running = torch.ones(rows, dtype=torch.bool, device=self._model.device)
        for step in range(max_tokens):
            scaled = torch.log_softmax(logits / temperature if temperature else logits, dim=-1)
            if noise is None:
                token = scaled.argmax(dim=-1)
            else:
                token = inverse_cdf(scaled, noise[live, step, None].to(scaled.device))[:, 0]
            token = torch.where(running, token, self._pad)
            ids[live, step] = token
            logprobs[live, step] = scaled.gather(-1, token[:, None])[:, 0]
            ended = running & (torch.isin(token, last) | (bounds[live] == step + 1))
            lengths[live[ended.cpu()]] = step + 1
            running = running & ~ended
            left = int(running.sum())
            if step + 1 == max_tokens or not left:
                break
            if left <= _SHRINK_BELOW * len(live):
                if work is not cache:
                    cache.absorb(live, work)
                    work = cache  # frees the old part before the new one is made
                live, token = live[running.cpu()], token[running]
                work, running = cache.part(live), running[running]
            positions, seen = work.place(1)
            hidden = hidden_states(self._model, token[:, None], positions, seen, work)
            # Finished rows do not advance: their last token is fed again at the same position, and the result is unused.
            work.lengths = work.lengths + running.long()
            logits = self._logits(hidden[:, 0])
        if work is not cache:
            cache.absorb(live, work)
        own = torch.arange(max_tokens) < lengths[:, None]
        require_finite(logprobs.cpu()[own], "the log-probabilities of sampled tokens")
        ids_list, logprob_list = ids.tolist(), logprobs.tolist()
        return [
            Sample(i[:n], p[:n]) for i, p, n in zip(ids_list, logprob_list, lengths.tolist(), strict=True)
        ]
