"""Attention with less work: the same numbers, a prefix read in one row only, and a last layer computed where it is used."""

from __future__ import annotations

import random
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.studies.small_models import small_model
from tstar_train.build import build
from tstar_train.config import Config, RolloutConfig
from tstar_train.distributed import SingleProcess
from tstar_train.engines.local import LocalEngine
from tstar_train.loop import iterate
from tstar_train.policy import attention
from tstar_train.policy.attention import last_layer_only_at, reading_prefix_once
from tstar_train.policy.kv import RaggedCache, hidden_states
from tstar_train.policy.model import Policy

VOCABULARY, SHARED, ROWS = 60, 80, 6
# Shared keys and values; as many as heads; learnt positions and other names; attention written out, which nothing changes.
MODELS = {name: small_model(name, VOCABULARY) for name in ("qwen2", "smollm3", "gpt2", "gemma2")}


def text(length, seed=0):
    chance = random.Random(seed)
    return [chance.randrange(2, VOCABULARY) for _ in range(length)]


CONTEXTS = [text(SHARED) + text(3 + 4 * row, seed=row + 1) for row in range(ROWS)]


def samples(name, **options):
    codec = SimpleNamespace(ends=frozenset([1]), end=1, pad=0)
    engine = LocalEngine(Policy(MODELS[name], codec, None, name), **options)
    seeds, keys = [f"seed {row}" for row in range(ROWS)], list(range(ROWS))
    first = engine.generate(CONTEXTS, seeds, max_tokens=12, keys=keys)
    longer = [
        [*context, *sample.ids, *text(9, seed=50 + row)]
        for row, (context, sample) in enumerate(zip(CONTEXTS, first, strict=True))
    ]
    # The rows of two episodes that go on, beside others that do not.
    kept = [4, 0, 5, 2]
    second = engine.generate(
        [longer[row] for row in kept], [f"again {row}" for row in kept], max_tokens=12, keys=kept
    )
    return first + second


@pytest.mark.parametrize("name", MODELS)
def test_a_common_prefix_read_once_gives_the_same_samples(name, monkeypatch):
    found = samples(name)
    monkeypatch.setattr(attention, "_SHARED_FROM", 1 << 20)
    plain = samples(name)
    assert [sample.ids for sample in found] == [sample.ids for sample in plain]
    for one, other in zip(found, plain, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def one_token(model, shared, spoilt):
    """Hidden states of one more token of each row; the prefix of all rows but the first may be spoilt before."""
    cache = RaggedCache(model, ROWS, 256)
    with torch.inference_mode():
        width = max(map(len, CONTEXTS))
        ids = torch.tensor([[*context, *[0] * (width - len(context))] for context in CONTEXTS])
        positions, seen = cache.place(width)
        hidden_states(model, ids, positions, seen, cache)
        cache.advance(slice(None), torch.tensor(list(map(len, CONTEXTS))))
        if spoilt:
            for tensors in (cache._keys, cache._values):
                for tensor in tensors:
                    tensor[1:, :, :SHARED] = torch.nan
        positions, seen = cache.place(1)
        with reading_prefix_once(model, cache, shared):
            return hidden_states(model, torch.full((ROWS, 1), 7), positions, seen, cache)


@pytest.mark.parametrize("name", ["qwen2", "smollm3"])
def test_the_prefix_is_read_in_the_first_row_only(name):
    plain = one_token(MODELS[name], 0, spoilt=False)
    assert torch.isnan(one_token(MODELS[name], 0, spoilt=True)[1:]).any()
    torch.testing.assert_close(one_token(MODELS[name], SHARED, spoilt=True), plain, atol=1e-5, rtol=1e-4)


def outputs(model, ids, places, only):
    """The hidden states at some places, and the gradients of a sum over them."""
    model.zero_grad()
    with last_layer_only_at(model.base_model, places) if only else nullcontext():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    chosen = hidden[places]
    (chosen * torch.linspace(-1, 1, chosen.numel()).view_as(chosen)).sum().backward()
    return chosen.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_last_layer_computed_in_part_gives_the_same_numbers_and_gradients(name, data):
    rows, tokens = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    places = torch.tensor(
        data.draw(
            st.lists(st.lists(st.booleans(), min_size=tokens, max_size=tokens), min_size=rows, max_size=rows)
        )
    )
    ids = torch.tensor([text(tokens, seed=row) for row in range(rows)])
    part, slopes = outputs(MODELS[name], ids, places, only=True)
    whole, others = outputs(MODELS[name], ids, places, only=False)
    torch.testing.assert_close(part, whole, atol=1e-5, rtol=1e-4)
    for parameter, slope in slopes.items():
        torch.testing.assert_close(slope, others[parameter], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["qwen2", "smollm3"])
def test_only_the_asked_places_of_the_last_layer_are_computed(name):
    model, seen = MODELS[name], []
    places = torch.zeros(2, 9, dtype=torch.bool)
    places[0, 3] = places[1, 8] = places[1, 2] = True
    handle = model.base_model.layers[-1].mlp.down_proj.register_forward_hook(
        lambda module, given, output: seen.append(output.shape[:-1].numel())
    )
    try:
        outputs(model, torch.tensor([text(9), text(9, seed=1)]), places, only=True)
        outputs(model, torch.tensor([text(9), text(9, seed=1)]), places, only=False)
    finally:
        handle.remove()
    assert seen == [3, 18]


def test_threads_that_take_turns_within_one_another_disturb_nothing():
    model, places = MODELS["qwen2"], torch.zeros(1, 9, dtype=torch.bool)
    places[0, 4] = True
    ids, entered, left = torch.tensor([text(9)]), threading.Event(), threading.Event()
    with torch.no_grad():
        plain = model.base_model(input_ids=ids, use_cache=False).last_hidden_state

    def other():
        with last_layer_only_at(model.base_model, places):
            entered.set()
            assert left.wait(30)

    thread = threading.Thread(target=other)
    with last_layer_only_at(model.base_model, places):  # the first to enter is the first to leave
        thread.start()
        assert entered.wait(30)
    with torch.no_grad():
        during = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    left.set()
    thread.join()
    with torch.no_grad():
        after = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    assert torch.equal(during, plain) and torch.equal(after, plain)


def test_an_update_rounds_subnormal_numbers_to_zero_and_nothing_else_does():
    smallest = torch.full((4,), 1e-39)
    trainer = build(
        Config(
            env="tstar/Blocksworld-stack",
            model="tiny",
            processes=1,
            rollout=RolloutConfig(tasks_per_iteration=1, group_size=2, horizon=3, invalid_penalty=0.5),
        ),
        SingleProcess(),
    )
    seen = []
    step = trainer.learner.apply
    trainer.learner.apply = lambda factor: (seen.append(bool((smallest * 0.5 == 0).all())), step(factor))[1]
    iterate(trainer, 0)
    assert seen and all(seen)
    assert (smallest * 0.5 != 0).all()
