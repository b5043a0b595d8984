"""The paged engine against the plain forward pass and the local engine, on the CPU's attention over pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import EndingCodec, contexts, held, plain_logprobs, random_policy, trainer
from transformers.generation.continuous_batching.requests import RequestState

from scripts.studies.small_models import MODELS, REFUSED, save_small
from tstar_envs import UnknownOption, find_entry
from tstar_train.engines import paged
from tstar_train.engines.base import uniform_noise
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.paged import PagedEngine, require_paged
from tstar_train.finite import NotFinite
from tstar_train.loop import iterate
from tstar_train.policy.kv import ContextTooLong
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.progress import progress

pytest.importorskip("psutil", reason="continuous batching on a CPU needs psutil")
LIMIT = 400


@pytest.fixture(scope="module")
def policy():
    return random_policy()


@pytest.fixture(scope="module")
def engine(policy):
    return PagedEngine(policy, 32, LIMIT, 0.3)


@pytest.fixture(autouse=True)
def empty(engine):
    engine.clear_cache()


def as_plain(policy, lines, samples, temperature=1.0):
    for line, sample in zip(lines, samples, strict=True):
        plain = plain_logprobs(policy, line, sample.ids, temperature)
        np.testing.assert_allclose(sample.logprobs, plain, atol=2e-5)


def computed(monkeypatch, engine):
    """Record the number of tokens of each forward pass."""
    counts = []
    run = engine._model.forward

    def watched(input_ids, **given):
        counts.append(input_ids.numel())
        return run(input_ids=input_ids, **given)

    monkeypatch.setattr(engine._model, "forward", watched)
    return counts


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_samples_and_log_probabilities_are_the_local_engines(policy, engine, temperature):
    lines, done = contexts(policy, [3, 40, 17, 1, 64]), progress.count
    samples = engine.generate(lines, list("abcde"), max_tokens=20, temperature=temperature)
    assert progress.count >= done + 5, "every row counts for those that wait"
    as_plain(policy, lines, samples, temperature or 1.0)
    local = LocalEngine(policy).generate(lines, list("abcde"), max_tokens=20, temperature=temperature)
    assert [s.ids for s in samples] == [s.ids for s in local]
    for line, seed, sample in zip(lines, "abcde", samples, strict=True):
        (alone,) = engine.generate([line], [seed], max_tokens=20, temperature=temperature)
        assert alone.ids == sample.ids, "a row does not depend on the rows beside it"


def test_noise_is_as_fine_as_the_local_engines(policy):
    """A float32 alone would have 24 bits, and many samples of a likely token would be another's."""
    noise = uniform_noise("fine", 1000)
    state = [
        type(
            "State",
            (),
            {
                "position_offset": n,
                "logit_processor_kwargs": {"temperature": 1.0, "noise": noise, "start": 0},
            },
        )
        for n in range(1000)
    ]
    requests = [type("Request", (), {"state": one, "has_new_token": True}) for one in state]
    storage = torch.zeros((3, 1000), dtype=torch.int32)
    paged._Sampler().prepare_tensor_args(requests, storage)
    _, high, low = storage.view(torch.float32)
    assert np.abs((high.double() + low.double()).numpy() - noise).max() < 2.0**-48


def test_a_context_that_goes_on_computes_what_is_new(policy, engine, monkeypatch):
    lines = contexts(policy, [70, 33])
    first = engine.generate(lines, list("ab"), max_tokens=8)
    longer = [line + sample.ids + [5, 6, 7] for line, sample in zip(lines, first, strict=True)]
    counts = computed(monkeypatch, engine)
    samples = engine.generate(longer, list("cd"), max_tokens=1)
    # The last sampled token was not computed, and only full pages are kept.
    assert sum(counts) == sum(len(line) - (len(line) - 4) // engine.page * engine.page for line in longer)
    as_plain(policy, longer, samples)


def test_copies_compute_their_context_once(policy, engine, monkeypatch):
    (line,) = contexts(policy, [100])
    counts = computed(monkeypatch, engine)
    samples = engine.generate([line], [f"{n}" for n in range(8)], max_tokens=2, copies=8)
    assert sum(counts) == 100 + 1 + 8 * (100 - 96) + sum(len(sample.ids) - 1 for sample in samples)
    as_plain(policy, [line] * 8, samples)
    assert len({tuple(sample.ids) for sample in samples}) > 1


def test_after_the_weights_change_in_place_nothing_old_is_read():
    policy = random_policy(seed=1)
    engine = PagedEngine(policy, 4, 200, 0.1)
    lines = contexts(policy, [70, 50])
    engine.generate(lines, list("ab"), max_tokens=8)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    stale = engine.generate(lines, list("ab"), max_tokens=8)
    with pytest.raises(AssertionError):
        as_plain(policy, lines, stale)
    engine.sync([])
    as_plain(policy, lines, engine.generate(lines, list("ab"), max_tokens=8))


def test_replies_end_with_a_stop_token_or_their_room(policy):
    probe = LocalEngine(policy).generate(contexts(policy, [9]), ["e"], max_tokens=40)[0].ids
    ending = replace(policy, codec=EndingCodec(policy.codec, probe[20]))
    engine = PagedEngine(ending, 8, 60, 0.1)
    lines = contexts(policy, [9, 50])
    for ends in ((), (probe[5],)):
        samples = engine.generate(lines, ["e", "f"], max_tokens=40, ends=ends)
        local = LocalEngine(ending, limit=60).generate(lines, ["e", "f"], max_tokens=40, ends=ends)
        assert [s.ids for s in samples] == [s.ids for s in local]
        assert len(samples[0].ids) <= (21, 6)[bool(ends)] and len(samples[1].ids) <= 10
    with pytest.raises(ContextTooLong):
        engine.generate(contexts(policy, [60]), ["g"], max_tokens=1)
    with pytest.raises(ValueError, match="2 seeds"):
        engine.generate([[3]], ["a"], max_tokens=2, copies=2)
    assert engine.generate([], [], max_tokens=2) == []


def test_scores_are_sums_of_plain_log_probabilities(policy, engine):
    lines, tails = (
        contexts(policy, [8, 19]),
        [contexts(policy, [1, 5], seed=1), contexts(policy, [4], seed=2)],
    )
    for line, group, got in zip(lines, tails, engine.logprobs(lines, tails), strict=True):
        np.testing.assert_allclose(
            got, [sum(plain_logprobs(policy, line, tail)) for tail in group], atol=1e-4
        )


def test_memory_is_bounded_and_given_back(policy):
    """More rows than fit wait for their turn, at the full length too; what was cached makes room for them."""
    gib = 0.01
    engine = PagedEngine(policy, 64, 128, gib)
    assert 1 < engine.batch < 12 and engine.rows_at_once == engine.batch
    lines, before = contexts(policy, [100, 120, 80, 90] * 3), held()
    for turn in range(2):
        samples = engine.generate(lines, [f"{turn}/{n}" for n in range(12)], max_tokens=200)
        for sample, room in zip(samples, [28, 8, 48, 38] * 3, strict=True):
            assert len(sample.ids) == room or sample.ids[-1] in policy.codec.ends
    as_plain(policy, lines, samples)
    del samples, sample
    assert 0 < held() - before < gib * (1 << 30)
    engine.release()
    assert held() <= before, "the update has the memory to itself"
    engine.generate(lines[:1], ["a"], max_tokens=2)


def test_rows_that_give_way_to_others_go_on_with_their_own_noise(policy, monkeypatch):
    """Where pages run out in the middle, transformers starts a request anew with its reply in its context."""
    made_anew = []
    again = RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda state: made_anew.append(1) or again(state)
    )
    engine = PagedEngine(policy, 8, 128, 0.1)
    engine.pages //= 3
    lines, seeds = contexts(policy, [20] * 8), list("abcdefgh")
    samples = engine.generate(lines, seeds, max_tokens=90)
    assert made_anew
    as_plain(policy, lines, samples)
    local = LocalEngine(policy, limit=128).generate(lines, seeds, max_tokens=90)
    assert [s.ids for s in samples] == [s.ids for s in local]


def test_broken_weights_are_found():
    policy = random_policy(seed=2)
    engine = PagedEngine(policy, 4, 100, 0.1)
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight.fill_(torch.nan)
    with pytest.raises(NotFinite):
        engine.generate(contexts(policy, [9]), ["a"], max_tokens=4)


def test_an_error_of_the_loop_ends_the_call(policy, monkeypatch):
    engine = PagedEngine(policy, 4, 100, 0.1)

    def fails(*arguments, **given):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(policy.model, "forward", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.generate(contexts(policy, [9]), ["a"], max_tokens=4)
    assert len(engine.generate(contexts(policy, [9]), ["a"], max_tokens=4)[0].ids) == 4


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "gemma2" else pytest.mark.slow)
        for name in MODELS
        if name not in REFUSED
    ],
)
def test_other_architectures_and_their_attention_is_put_back(tmp_path, name):
    """Gemma 2 caps its attention scores, which only eager attention does."""
    save_small(name, tmp_path)
    policy = load_policy(str(tmp_path), "search_qa")
    own = policy.model.config._attn_implementation
    assert own == ("eager" if name == "gemma2" else "sdpa")
    engine, lines = PagedEngine(policy, 4, 200, 0.1), contexts(policy, [5, 40])
    for turn in "ab":
        samples = engine.generate(lines, [turn, f"{turn}2"], max_tokens=20)
        for line, sample in zip(lines, samples, strict=True):
            np.testing.assert_allclose(sample.logprobs, plain_logprobs(policy, line, sample.ids), atol=1e-6)
        lines = [line + sample.ids + [7] * 5 for line, sample in zip(lines, samples, strict=True)]
    assert policy.model.config._attn_implementation == own


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(paged.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnknownOption, match="a GPU needs flash-attn"):
        require_paged("cuda")
    with pytest.raises(UnknownOption, match="a CPU needs psutil"):
        require_paged("cpu")
    monkeypatch.setattr(
        "transformers.generation.continuous_batching.model_runner.ModelRunner", type("Other", (), {})
    )
    with pytest.raises(UnknownOption, match=r"transformers 5\.23"):
        require_paged("cpu")


def test_an_iteration_learns_as_with_the_local_engine():
    """With T-STAR's draws, grafts and credit: the same episodes, and metrics equal up to rounding."""
    small = tiny(find_entry("sokoban-easy"))
    rollout = replace(
        small.rollout,
        tasks_per_iteration=1,
        group_size=4,
        max_tokens=48,
        horizon=6,
        cache_gib=0.5,
        context_tokens=512,
    )
    found = {}
    for engine in ("local", "paged"):
        config = replace(small, engine=engine, rollout=rollout)
        one = trainer(config, load_policy("tiny", "sokoban"), ["sokoban-easy-mini-train-0000"])
        metrics = iterate(one, 0).metrics
        found[engine] = {name: value for name, value in metrics.items() if "difference" not in name}
        assert metrics["logprob_difference_max"] < 2e-5
    local, ours = found["local"], found["paged"]
    assert local.keys() == ours.keys()
    assert local["grafts"] and local["success"], "something is learnt"
    for name, value in local.items():
        assert ours[name] == (
            pytest.approx(value, rel=1e-3, abs=1e-6) if isinstance(value, float) else value
        ), name
