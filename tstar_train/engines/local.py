"""The local engine: batched sampling over the training weights themselves, with a static key/value cache.

The model is the trainer's own, so there is nothing to synchronise and log-probabilities agree with the trainer's up to
float rounding. A conversation's cache is kept between turns under its row's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from tstar_train.engines.base import Sample, require_room, rooms
from tstar_train.finite import NotFinite, require_finite
from tstar_train.policy.head import output_logits
from tstar_train.policy.kv import RaggedCache, attention_mask, cache_bytes_per_token, rows_that_fit
from tstar_train.policy.limit import context_limit, position_limit
from tstar_train.policy.model import Policy

_CAPACITY = 256  # positions per row to start with
_SHRINK_BELOW = 0.5  # share of running rows at which the others are left behind; the copy costs about as much as two tokens
_MOST_PREFIXES = 512  # contexts whose caches are remembered, half a megabyte each for the tiny model,
_MOST_PREFIX_SHARE = 0.25  # and never more than this share of what keys and values may take in all


class LocalEngine:
    """See ``Engine``.

    Args:
        policy: model and codec; the model is used in place.
        batch: most rows decoded side by side.
        limit: most tokens of a context and its reply together; None, or more than the model has positions: its positions.
        gib: most memory for keys and values; fewer rows are decoded side by side where more would not fit.
    """

    def __init__(self, policy: Policy, batch: int = 256, limit: int | None = None, gib: float = 8.0) -> None:
        self._model = policy.model
        self._ends = policy.codec.ends
        self._pad = policy.codec.pad
        self._positions = position_limit(policy.model.config)
        self._limit = context_limit(policy.model.config, limit)
        itemsize = policy.model.dtype.itemsize
        self._batch = rows_that_fit(policy.model.config, itemsize, self._limit, batch, gib)
        kept = int(_MOST_PREFIX_SHARE * gib * (1 << 30)) // cache_bytes_per_token(policy.model.config, itemsize)
        self._most_prefix_tokens = kept
        self._cache: RaggedCache | None = None
        self._kept: dict[Hashable, tuple[int, list[int]]] = {}  # key -> row of the cache, ids in it
        self._prefixes: dict[tuple[int, ...], tuple[list[tuple[Tensor, Tensor]], Tensor]] = {}  # ids -> cache row, logits

    @property
    def limit(self) -> int:
        """See ``Engine``."""
        return self._limit

    @property
    def exact(self) -> bool:
        """See ``Engine``."""
        return True

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """The weights are shared with the trainer; only caches computed under the old ones are dropped."""
        self.forget()

    def forget(self) -> None:
        """Drop what is kept between calls."""
        self._cache = None
        self._kept = {}
        self._prefixes = {}

    def release(self) -> None:
        """See ``Engine``."""
        self.forget()

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
        if keys is not None and copies == 1 and len(contexts) <= self._batch:
            cache, ids, logits = self._resume([list(c) for c in contexts], keys)
            samples = self._decode(cache, logits, seeds, room, temperature)
            # The last token of a reply is sampled but not yet fed, so the cache holds one token less.
            self._kept = {k: (r, ids[r] + samples[r].ids[:-1]) for r, k in enumerate(keys)}
            return samples
        samples = []
        step = max(1, self._batch // copies)
        for first in range(0, len(contexts), step):
            part = contexts[first : first + step]
            cache, logits = self._prefilled(part, [copies] * len(part))
            chosen = seeds[first * copies : (first + len(part)) * copies]
            left = [tokens for tokens in room[first : first + step] for _ in range(copies)]
            samples += self._decode(cache, logits, chosen, left, temperature, ends)
        return samples

    @torch.inference_mode()
    def score(self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
        """See ``Engine``; a context is computed once for all its continuations."""
        require_room(contexts, continuations, self._limit)
        results: list[list[float]] = []
        first = 0
        while first < len(contexts):
            last, rows = first, 0
            while last < len(contexts) and (last == first or rows + len(continuations[last]) <= self._batch):
                rows += len(continuations[last])
                last += 1
            results += self._score_batch(contexts[first:last], continuations[first:last])
            first = last
        return results

    def _score_batch(self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
        counts = [len(c) for c in continuations]
        flat = [list(c) for group in continuations for c in group]
        if not flat:
            return [[] for _ in counts]
        cache, first_logits = self._prefilled(contexts, counts)
        longest = max(len(c) for c in flat)
        ids = torch.tensor([c + [self._pad] * (longest - len(c)) for c in flat], device=self._model.device)
        mask = torch.tensor([[True] * len(c) + [False] * (longest - len(c)) for c in flat], device=self._model.device)
        logits = first_logits[:, None]
        if longest > 1:
            positions, seen = cache.place(longest - 1)
            hidden = self._hidden(ids[:, :-1], positions, seen, cache)
            logits = torch.cat([logits, self._logits(hidden)], dim=1)
        chosen = torch.log_softmax(logits, dim=-1).gather(-1, ids[..., None])[..., 0]
        totals = torch.where(mask, chosen, 0.0).sum(dim=1)
        if bool(totals.isnan().any()):  # minus infinity is an answer: a model may rule a token out
            raise NotFinite("the policy's log-probabilities of given continuations are NaN: its weights are broken")
        sums = iter(totals.tolist())
        return [[next(sums) for _ in range(n)] for n in counts]

    def _prefilled(self, contexts: Sequence[Sequence[int]], counts: Sequence[int]) -> tuple[RaggedCache, Tensor]:
        """A cache with ``counts[i]`` rows of context i side by side, and the logits after each.

        A context is computed once and remembered until the weights change: the KL estimate samples in it, scores its own
        samples and then those of others.
        """
        names = [tuple(c) for c in contexts]
        new = [name for name in dict.fromkeys(names) if name not in self._prefixes]
        for start in range(0, len(new), self._batch):
            part = [list(name) for name in new[start : start + self._batch]]
            cache = RaggedCache(self._model, len(part), _CAPACITY)
            logits = self._feed(cache, part)
            for row, ids in enumerate(part):
                self._prefixes[tuple(ids)] = (cache.take(row), logits[row])
        whole = RaggedCache(self._model, sum(counts), max(_CAPACITY, max(map(len, names)) + 64))
        first = 0
        for name, count in zip(names, counts, strict=True):
            whole.put(slice(first, first + count), self._prefixes[name][0])
            first += count
        chosen = [self._prefixes[name][1] for name, count in zip(names, counts, strict=True) for _ in range(count)]
        if len(self._prefixes) > _MOST_PREFIXES or sum(map(len, self._prefixes)) > self._most_prefix_tokens:
            self._prefixes = {}
        return whole, torch.stack(chosen)

    def _resume(self, contexts: list[list[int]], keys: Sequence[Hashable]) -> tuple[RaggedCache, list[list[int]], Tensor]:
        """Bring the kept cache to these rows, feed what is new, and give the logits after each context."""
        found = [self._kept.get(key) for key in keys]
        usable = self._cache is not None and all(
            kept is not None and len(kept[1]) < len(c) and c[: len(kept[1])] == kept[1] for kept, c in zip(found, contexts, strict=True)
        )
        if self._cache is not None and usable:
            self._cache.select(torch.tensor([kept[0] for kept in found if kept is not None]))
            # A row that ended early in the last decode stands further than its own ids; what is beyond is overwritten.
            self._cache.lengths = torch.tensor([len(kept[1]) for kept in found if kept is not None], device=self._model.device)
            new = [c[len(kept[1]) :] for kept, c in zip(found, contexts, strict=True) if kept is not None]
        else:
            # The members of a group often stand in one state: what they have in common is computed once.
            rows = {context: number for number, context in enumerate(dict.fromkeys(map(tuple, contexts)))}
            which = torch.tensor([rows[tuple(context)] for context in contexts])
            self._cache = RaggedCache(self._model, len(rows), _CAPACITY)
            logits = self._feed(self._cache, [list(context) for context in rows])
            self._cache.select(which)
            return self._cache, contexts, logits[which]
        return self._cache, contexts, self._feed(self._cache, new)

    def _feed(self, cache: RaggedCache, new: list[list[int]]) -> Tensor:
        """Append ids to each row; the logits after the last, shape (rows, vocabulary)."""
        longest = max(len(n) for n in new)
        counts = torch.tensor([len(n) for n in new], device=self._model.device)
        ids = torch.tensor([n + [self._pad] * (longest - len(n)) for n in new], device=self._model.device)
        positions, seen = cache.place(longest)
        hidden = self._hidden(ids, positions, seen, cache)
        cache.lengths = cache.lengths + counts  # padding was written too, and is overwritten by what comes next
        return self._logits(hidden[torch.arange(len(new)), counts - 1])

    def _hidden(self, ids: Tensor, positions: Tensor, seen: Tensor, cache: RaggedCache) -> Tensor:
        # Padding may stand beyond the last position that there is; nobody looks at it.
        where = positions.clamp(max=self._positions - 1)
        output = self._model.base_model(
            input_ids=ids, position_ids=where, attention_mask=attention_mask(self._model, seen), past_key_values=cache, use_cache=True
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        return output_logits(self._model, hidden)

    def _decode(
        self, cache: RaggedCache, logits: Tensor, seeds: Sequence[str], most: Sequence[int], temperature: float, ends: Collection[int] = ()
    ) -> list[Sample]:
        """Sample until every row has ended or has ``most`` tokens."""
        last = torch.tensor(sorted({*self._ends, *ends}), device=self._model.device)
        rows, max_tokens = len(seeds), max(most)
        noise = torch.from_numpy(np.stack([uniform_noise(seed, max_tokens) for seed in seeds])) if temperature else None
        ids = torch.full((rows, max_tokens), self._pad, dtype=torch.long, device=self._model.device)
        logprobs = torch.zeros((rows, max_tokens), device=self._model.device)
        lengths = torch.tensor(most)
        bounds = lengths.to(self._model.device)
        work, live = cache, torch.arange(rows)  # the rows still computed, in a smaller cache once half of them have ended
        running = torch.ones(rows, dtype=torch.bool, device=self._model.device)
        for step in range(max_tokens):
            scaled = torch.log_softmax(logits / temperature if temperature else logits, dim=-1)
            if noise is None:
                token = scaled.argmax(dim=-1)
            else:
                token = _inverse_cdf(scaled, noise[live, step].to(scaled.device))
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
                live, token = live[running.cpu()], token[running]
                work, running = cache.part(live), running[running]
            positions, seen = work.place(1)
            hidden = self._hidden(token[:, None], positions, seen, work)
            # Finished rows do not advance: their last token is fed again in place, which nobody reads.
            work.lengths = work.lengths + running.long()
            logits = self._logits(hidden[:, 0])
        if work is not cache:
            cache.absorb(live, work)
        own = torch.arange(max_tokens) < lengths[:, None]
        require_finite(logprobs.cpu()[own], "the log-probabilities of sampled tokens")
        ids_list, logprob_list = ids.tolist(), logprobs.tolist()
        return [Sample(i[:n], p[:n]) for i, p, n in zip(ids_list, logprob_list, lengths.tolist(), strict=True)]


def uniform_noise(seed: str, count: int) -> np.ndarray:
    """``count`` uniform numbers in [0, 1) for one row; a counter-based stream, so rows do not depend on one another."""
    key = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def _inverse_cdf(logprobs: Tensor, noise: Tensor) -> Tensor:
    """Sample by inverting the cumulative distribution: the first token whose cumulated probability exceeds the noise."""
    cumulated = logprobs.double().exp().cumsum(dim=-1)
    target = noise[:, None] * cumulated[:, -1:]
    return torch.searchsorted(cumulated, target, right=True)[:, 0].clamp_max(logprobs.shape[-1] - 1)
