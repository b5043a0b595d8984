"""Continuations computed as branches of one row against the plain forward pass, whatever stands in that row already."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import random_policy

from scripts.studies.small_models import small_model
from tstar_train.engines import trie
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.trie import Trie
from tstar_train.policy import kv
from tstar_train.policy.model import Policy

MODELS = [
    "qwen2",
    "gemma2",
    "gpt2",
    "phi4-mini",
    "smollm3",
]  # among them one that adds its mask, and one with learnt positions
VOCABULARY = 60


@pytest.fixture(scope="module")
def policy():
    return random_policy()


def small(name):
    model = small_model(name, VOCABULARY)
    codec = SimpleNamespace(ends=frozenset([1]), end=1, pad=0)
    return Policy(model, codec, None, name)


def text(length, seed=0, vocabulary=VOCABULARY):
    chance = random.Random(seed)
    return [chance.randrange(2, vocabulary) for _ in range(length)]


def plain(policy, context, reply, temperature=1.0):
    with torch.no_grad():
        logits = (
            policy.model(torch.tensor([[*context, *reply]])).logits[0, len(context) - 1 : -1].double()
            / temperature
        )
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(reply)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_drawn_and_scored_as_the_plain_forward_has_it(name):
    """SharedPrefixes of one text with own tails, a text of its own, and one context twice; samples are scored in all other contexts."""
    policy = small(name)
    engine, whole = LocalEngine(policy), text(40)
    contexts = [whole, [*whole[:30], *text(4, 1)], [*whole[:30], *text(4, 2)], whole[:12], text(25, 3), whole]
    samples = engine.generate(contexts, [f"{n}" for n in range(24)], max_tokens=9, temperature=0.7, copies=4)
    for n, sample in enumerate(samples):
        np.testing.assert_allclose(
            sample.logprobs, plain(policy, contexts[n // 4], sample.ids, 0.7), atol=1e-4
        )
    replies = [sample.ids for sample in samples[::3]]
    for _ in range(2):  # once anew, once remembered
        for context, scores in zip(
            contexts, engine.logprobs(contexts, [replies] * len(contexts)), strict=True
        ):
            np.testing.assert_allclose(
                scores, [sum(plain(policy, context, reply)) for reply in replies], atol=1e-3
            )


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "smollm3"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), parts=st.sampled_from([(28, 17, 4), (0, 0, 0), (0, 0, 1000)]))
def test_a_pass_without_padding_gives_the_samples_and_scores_of_padded_rows(name, seed, parts):
    """Also when every width has a part of its own, and when all rows are read in place."""
    policy, chance = small(name), random.Random(seed)
    texts = [text(chance.randrange(20, 60), seed + n) for n in range(3)]
    contexts = [
        [*of[: chance.randrange(10, 20)], *text(chance.randrange(1, 8), seed + n)]
        for n, of in enumerate(texts * 3)
    ] + texts
    seeds = [f"{seed}/{n}" for n in range(4 * len(contexts))]
    replies = [[text(chance.randrange(1, 9), seed + 9 * n + k) for k in range(n % 4)] for n in range(12)]
    found, passes = [], []
    with pytest.MonkeyPatch.context() as patch:
        for name, cost in zip(("PART_COST", "ROW_COST", "COPY_COST"), parts, strict=True):
            patch.setattr(kv, name, cost)
        choose = kv.TreeCache._parts
        patch.setattr(kv.TreeCache, "_parts", lambda *given: passes.append(choose(*given)) or passes[-1])
        for unpadded in (True, False):
            if not unpadded:
                patch.setattr(trie, "replaces_attention", lambda model: False)
            engine = LocalEngine(policy)
            samples = engine.generate(contexts, seeds, max_tokens=7, copies=4)
            found.append(([s.ids for s in samples], engine.logprobs(contexts, replies)))
    assert found[0][0] == found[1][0]
    assert any(some == [None] for some in passes) if parts[2] else any(len(some) > 1 for some in passes)
    for one, two in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_samples_are_those_of_rows_of_their_own(policy, temperature):
    contexts = [text(20, vocabulary=1200), text(9, 1, vocabulary=1200)]
    seeds = [f"{n}" for n in range(10)]
    together = LocalEngine(policy).generate(contexts, seeds, max_tokens=12, temperature=temperature, copies=5)
    rows = [context for context in contexts for _ in range(5)]
    alone = LocalEngine(policy).generate(rows, seeds, max_tokens=12, temperature=temperature)
    assert [s.ids for s in together] == [s.ids for s in alone]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_a_token_ends_only_the_samples_that_are_to_end_there(policy):
    context = text(9, vocabulary=1200)
    free = LocalEngine(policy).generate([context], list("abcdef"), max_tokens=8, copies=6)
    end = free[0].ids[2]
    cut = LocalEngine(policy).generate([context], list("abcdef"), max_tokens=8, copies=6, ends=[end])
    for whole, sample in zip(free, cut, strict=True):
        length = whole.ids.index(end) + 1 if end in whole.ids else len(whole.ids)
        assert sample.ids == whole.ids[:length]


def test_rows_that_a_rollout_left_behind_serve_as_texts(policy, monkeypatch):
    """Episodes leave at different turns, some replies end early, and what is asked afterwards computes no context again."""
    probe = LocalEngine(policy).generate(
        [text(9 + 4 * n, n, 1200) for n in range(6)], list("abcdef"), max_tokens=12, temperature=0.5
    )
    end = max((t for s in probe for t in s.ids[1:-1]), key=lambda t: sum(t in s.ids[1:-1] for s in probe))
    codec = SimpleNamespace(ends=frozenset([end]), pad=policy.codec.pad)
    engine = LocalEngine(replace(policy, codec=codec), keep_rows=True)
    lines = {n: text(9 + 4 * n, n, 1200) for n in range(6)}
    contexts = []
    for turn, playing in enumerate(([0, 1, 2, 3, 4, 5], [0, 2, 3, 5], [2, 5], [5])):
        lines.update({n: lines[n] + text(3 + n, 50 + n + turn, 1200) for n in playing})
        said = engine.generate(
            [lines[n] for n in playing],
            [f"{n}/{turn}" for n in playing],
            max_tokens=12,
            temperature=0.5,
            keys=playing,
        )
        contexts += [[*lines[n], 7, 8, 9] for n in playing]
        lines.update({n: lines[n] + sample.ids for n, sample in zip(playing, said, strict=True)})
    computed = []
    prefill = Trie.fill
    monkeypatch.setattr(
        Trie, "fill", lambda self, cache, own: (computed.extend(own), prefill(self, cache, own))
    )
    replies = [text(4, 90, 1200), text(2, 91, 1200)]
    for context, scores in zip(contexts, engine.logprobs(contexts, [replies] * len(contexts)), strict=True):
        np.testing.assert_allclose(
            scores, [sum(plain(policy, context, reply)) for reply in replies], atol=1e-3
        )
    assert not computed and len(engine.texts()) == 6
    engine.generate([text(5, 99, 1200)], ["x"], max_tokens=2, keys=["rows that begin later"])
    assert len(engine.texts()) == 7, "what has ended stays while the weights do"
    engine.sync([])
    assert not engine.texts()


def test_what_is_kept_is_bounded(policy):
    """With little memory contexts go in parts and are forgotten between them; the results are the same."""
    contexts = [text(100 + n, n, 1200) for n in range(7)]
    seeds, replies = [f"{n}" for n in range(21)], [text(5, n, 1200) for n in range(3)]
    free, poor = LocalEngine(policy), LocalEngine(policy, limit=160, gib=1e-3)
    assert poor.batch < 7 and poor.most_kept < sum(map(len, contexts))
    drawn = [engine.generate(contexts, seeds, max_tokens=10, copies=3) for engine in (free, poor)]
    assert [s.ids for s in drawn[0]] == [s.ids for s in drawn[1]]
    scores = [engine.logprobs(contexts, [replies] * 7) for engine in (free, poor)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)
    assert poor.trie.slots <= poor.most_kept


@given(st.dictionaries(st.integers(0, 30), st.integers(1, 40), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_rows_are_dealt_over_passes_once_each(counts):
    parts = kv.deal(counts)
    assert sorted(row for part in parts for row in part) == sorted(counts) and all(
        part == sorted(part) for part in parts
    )
    cost = sum(kv.CALL_COST + len(part) * max(counts[row] for row in part) for part in parts)
    assert cost <= kv.CALL_COST + len(counts) * max(counts.values()), "never more than in one pass"
