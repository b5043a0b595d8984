"""Contexts fed in several forward passes against the same contexts fed in one, and how large a pass may be."""

from __future__ import annotations

import random
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import random_policy

from scripts.studies.small_models import small_model
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.trie import activations_in, feed
from tstar_train.policy import kv
from tstar_train.policy.kv import RaggedCache, output_logits
from tstar_train.policy.lora import add_adapters
from tstar_train.policy.model import Policy

VOCABULARY = 60
# Shared keys and values; learnt positions; a window; attention written out.
MODELS = {name: small_model(name, VOCABULARY) for name in ("qwen2", "gpt2", "gemma3", "gemma2")}


def text(length, seed=0):
    chance = random.Random(seed)
    return [chance.randrange(2, VOCABULARY) for _ in range(length)]


def engine_of(name, **options):
    codec = SimpleNamespace(ends=frozenset([1]), end=1, pad=0)
    return LocalEngine(Policy(MODELS[name], codec, None, name), **options)


@contextmanager
def bounded(model, bound):
    """A bound, and the shapes of the forward passes under it: rows, new tokens, span."""
    shapes = []

    def watch(module, args, kwargs):
        shapes.append((*kwargs["input_ids"].shape, kwargs["attention_mask"].shape[-1]))

    handle = model.base_model.register_forward_pre_hook(watch, with_kwargs=True)
    with pytest.MonkeyPatch.context() as patch:
        if bound is not None:
            patch.setattr(kv, "BOUND", bound)
        yield shapes
    handle.remove()


def require_within(model, shapes, bound):
    takes = activations_in(model)
    for rows, columns, span in shapes:
        if rows > 1:
            assert rows * takes.of_row(columns, span) <= bound, (rows, columns, span)
        elif columns > 1:  # what a single row's own keys and values take is not in our hands
            own = takes.of_row(columns, span) - takes.repeated * span
            assert own <= max(bound - takes.repeated * span, bound // 2), (rows, columns, span)


@pytest.mark.parametrize("examples", [12, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_in_pieces_as_in_one(name, examples):
    """Several turns of rows of any lengths: hidden states and all that is kept of them."""

    @settings(max_examples=examples, deadline=None)
    @given(
        turns=st.integers(1, 5).flatmap(
            lambda rows: st.lists(
                st.lists(st.integers(1, 20), min_size=rows, max_size=rows), min_size=1, max_size=3
            )
        ),
        tokens=st.integers(1, 40),
        capacity=st.sampled_from([1, 8, 64]),
    )
    def holds(turns, tokens, capacity):
        require_in_pieces_as_in_one(name, turns, tokens, capacity)

    holds()


@torch.inference_mode()
def require_in_pieces_as_in_one(name, turns, tokens, capacity):
    model, rows = MODELS[name], len(turns[0])
    takes = activations_in(model)
    bound = takes.of_row(tokens, 60)
    caches = [RaggedCache(model, rows, capacity, 60) for _ in range(2)]
    for turn, counts in enumerate(turns):
        new = [text(count, (turn, row).__hash__()) for row, count in enumerate(counts)]
        with bounded(model, None) as passes:
            at_once = feed(model, takes, caches[0], new, 0)
        ((*shape, span),) = passes
        assert shape == [rows, max(counts)]
        with bounded(model, bound) as passes:
            in_pieces = feed(model, takes, caches[1], new, 0)
        require_within(model, passes, bound)
        if rows > 1:
            assert (passes == [(*shape, span)]) == (rows * takes.of_row(max(counts), span) <= bound)
        torch.testing.assert_close(
            output_logits(model, in_pieces), output_logits(model, at_once), atol=1e-4, rtol=1e-4
        )
        lengths = caches[0].lengths.tolist()
        assert caches[1].lengths.tolist() == lengths and caches[1].capacity == caches[0].capacity
        for row, length in enumerate(lengths):
            for one, other in zip(
                caches[0].beginning(row, length), caches[1].beginning(row, length), strict=True
            ):
                torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_an_engine_samples_and_scores_alike_under_any_bound(name):
    """Turns, beginnings rewritten, copies and scores: rows whose tokens the bound cuts, and branches wider than it."""
    bound = activations_in(MODELS[name]).of_row(12, 90)
    replies = [text(n, n) for n in (3, 9, 5)]
    found = []
    for bytes_ in (None, bound):
        engine = engine_of(name, limit=90)
        with bounded(MODELS[name], bytes_) as passes:
            lines = [text(40, 1), text(7, 2), text(31, 3), text(40, 1)]
            first = engine.generate(lines, list("abcd"), max_tokens=6, keys=[0, 1, 2, 3])
            on = [
                [*line, *s.ids, *text(n, n)] for n, (line, s) in enumerate(zip(lines, first, strict=True), 14)
            ]
            fed = len(passes)
            second = engine.generate(on, list("efgh"), max_tokens=1, keys=[0, 1, 2, 3])
            fed = passes[fed:]
            third = engine.generate(lines, list("ijkl"), max_tokens=1, keys=[0, 1, 2, 3])
            copies = engine.generate(lines[:3], [f"{n}" for n in range(12)], max_tokens=5, copies=4)
            scores = engine.logprobs(lines, [replies] * 4)
        if bytes_ is not None:
            # One token of each row goes side by side however little room there is.
            require_within(MODELS[name], [shape for shape in passes if shape[1] > 1], bound)
            assert len(fed) > 1
        found.append(([s for part in (first, second, third, copies) for s in part], scores))
    (free, free_scores), (cut, cut_scores) = found
    assert [s.ids for s in free] == [s.ids for s in cut]
    for one, other in zip(free, cut, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    np.testing.assert_allclose(free_scores, cut_scores, atol=1e-3)


def test_the_built_in_policies_are_never_cut_in_normal_use():
    """256 rows of pages of WebShop's length, the longest contexts that any of them is fed at once."""
    assert activations_in(random_policy().model).rows(600, 600) >= 256


def test_adapters_and_scores_written_out_are_counted():
    model = small_model("qwen2", VOCABULARY)
    plain = activations_in(model)
    add_adapters(model, 4, 8)
    assert activations_in(model).token > plain.token and plain.repeated == 2 * 64 * 4
    assert activations_in(MODELS["gpt2"]).repeated == 0 and activations_in(MODELS["gemma2"]).seen > plain.seen


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0]])
def test_a_part_of_a_cache_is_a_copy_of_its_rows_even_of_all(rows):
    cache = RaggedCache(MODELS["qwen2"], 3, 8)
    cache.lengths += 4
    part = cache.part(torch.tensor(rows))
    for tensor in (*part._keys, *part._values):
        tensor += 1
    assert not any(tensor.any() for tensor in (*cache._keys, *cache._values))
