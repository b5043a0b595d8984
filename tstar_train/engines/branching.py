"""Drawing and scoring many continuations of one context: each token of their tree is computed once (see ``engines.trie``)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch

from tstar_train.engines.base import Sample
from tstar_train.engines.noise import inverse_cdf, uniform_noise
from tstar_train.engines.trie import Ids, Node, Text, Trie
from tstar_train.finite import NotFinite, require_finite

_LOGITS = 1 << 25  # that are held side by side, or those of one node
_SPARE = 32  # slots behind a row for each copy, to begin with


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
    """``copies`` samples of each context; arguments as of ``Engine.generate``.

    Args:
        trie: what was computed before, and what is computed now.
        contexts: ids.
        texts: see ``Trie.open``.
        seeds: one per sample.
        copies: samples per context, side by side in the result.
        room: most tokens of a sample of each context.
        temperature: 0 takes the likeliest token.
        ends: tokens that end a sample.

    Raises:
        NotFinite: log-probabilities are no numbers.
    """
    trie.open(contexts, texts, copies * min(_SPARE, max(room)))
    longest, count = max(room), len(seeds)
    noise = (
        np.stack([uniform_noise(seed, longest) for seed in seeds])
        if temperature
        else np.zeros((count, longest))
    )
    samples = [Sample([], []) for _ in seeds]
    live: dict[Node, list[int]] = {}  # samples by the node that they have come to; equal ones share it
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


def score(
    trie: Trie,
    contexts: Sequence[Ids],
    texts: Sequence[Text],
    continuations: Sequence[Sequence[Sequence[int]]],
) -> list[list[float]]:
    """Summed log-probability of each continuation of each context at temperature 1, in nats; arguments as of ``draw``.

    Raises:
        NotFinite: they are no numbers.
    """
    trie.open(contexts, texts, max((sum(map(len, group)) for group in continuations), default=0))
    ways: list[list[tuple[Node, int]]] = []  # of each continuation its tokens, with what each follows
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
    if any(map(math.isnan, sums)):  # minus infinity is an answer: a model may rule a token out
        raise NotFinite(
            "the policy's log-probabilities of given continuations are NaN: its weights are broken"
        )
    results = iter(sums)
    return [[next(results) for _ in group] for group in continuations]


def _in_parts(trie: Trie, nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
    most = max(1, _LOGITS // trie.vocabulary)
    return (nodes[first : first + most] for first in range(0, len(nodes), most))
