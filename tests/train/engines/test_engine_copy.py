"""An engine with a copy of the weights: it is compared with the trainer after every sync, and what it said is no old log-probability."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import papers_preset, random_policy, trainer
from rich.console import Console

from tstar_envs import MissingExtra, UnknownOption, find_entry
from tstar_train.distributed import SingleProcess
from tstar_train.engines.check import EngineMismatch, require_following, sync_engine
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.vllm import require_device
from tstar_train.learner.base import Norms
from tstar_train.learner.batch import split_minibatches
from tstar_train.learner.rows import correct, weigh
from tstar_train.learner.terms import PolicyTerm
from tstar_train.learner.torch import TorchLearner
from tstar_train.learner.update import Batching, compute_old_logprobs_and_values, update
from tstar_train.loop import iterate
from tstar_train.losses import importance_weights
from tstar_train.presets import tiny
from tstar_train.run import train
from tstar_train.types import TokenSequence

GAP = 0.03


class Copied(LocalEngine):
    """Samples from a copy of the policy; ``stale`` ones say nothing and keep the weights that they have."""

    def __init__(self, policy, stale=False):
        self.own = deepcopy(policy)
        super().__init__(self.own)
        self.stale, self.released = stale, 0

    @property
    def shares_weights(self):
        return False

    def sync(self, weights):
        super().sync(weights)
        if not self.stale:
            self.own.model.load_state_dict(dict(weights), strict=False)

    def release(self):
        super().release()
        self.released += 1


def moved(policy):
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.05)
    return policy


def test_a_copy_that_follows_agrees_and_one_that_stays_behind_is_named():
    policy = random_policy()
    following, stale = Copied(policy), Copied(policy, stale=True)
    for engine in (following, stale):
        sync_engine(policy, engine, policy.model.state_dict().items())
    moved(policy)
    sync_engine(policy, following, policy.model.state_dict().items())
    with pytest.raises(
        EngineMismatch,
        match=r"still differ by up to [\d.]+ nats per token on a fixed probe.*no step was taken",
    ):
        sync_engine(policy, stale, policy.model.state_dict().items())


class Untied(Copied):
    """Keeps the output matrix that it had first, though the model's is tied to the embeddings."""

    def __init__(self, policy):
        super().__init__(policy)
        output = self.own.model.get_output_embeddings()
        output.weight = torch.nn.Parameter(output.weight.detach().clone())

    def sync(self, weights):
        super().sync((name, tensor) for name, tensor in weights if name != "lm_head.weight")


def test_a_second_copy_of_a_tied_output_matrix_that_stays_behind_is_named():
    policy = random_policy()
    assert policy.model.config.tie_word_embeddings
    with pytest.raises(EngineMismatch, match="does not follow the trainer's weights; nothing was trained"):
        require_following(policy, Untied(policy), lambda: policy.model.state_dict().items())


def test_an_iteration_begins_with_the_probe_and_gives_memory_back_before_the_update():
    policy = random_policy()
    config = papers_preset("hotpotqa")
    config = dataclasses.replace(
        config,
        rollout=dataclasses.replace(
            config.rollout, tasks_per_iteration=1, group_size=2, horizon=1, max_tokens=4
        ),
    )
    one = trainer(config, policy)
    one.engine = Copied(policy)
    iterate(one, 0)
    assert one.engine.released == 1
    one.engine = Copied(policy, stale=True)
    before = [parameter.clone() for parameter in moved(policy).model.parameters()]
    with pytest.raises(EngineMismatch, match="fixed probe"):
        iterate(one, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


@pytest.fixture
def sampled():
    """(learner, rows that a sampler saw by GAP otherwise than the trainer, how they are computed, what the trainer sees).

    In double precision: the rounding of single precision depends on the processor.
    """
    policy = random_policy()
    policy.model.double()
    learner = TorchLearner(policy.model, None, SingleProcess(), learning_rate=0.0)
    rows, truth = [], []
    for start in (3, 11):
        ids = [(start + 7 * n) % 900 for n in range(12)]
        mask = [0] * 5 + [1, 1, 0, 1, 1, 1, 1]
        with torch.no_grad():
            logprobs = torch.log_softmax(policy.model(torch.tensor([ids])).logits[0], dim=-1)
        true = [float(logprobs[n - 1, ids[n]]) if m else 0.0 for n, m in enumerate(mask)]
        said = [
            (value + (GAP if n % 2 else -GAP)) * m
            for n, (value, m) in enumerate(zip(true, mask, strict=True))
        ]
        rows.append(TokenSequence(ids, mask, said, [1.0 if start == 3 else -1.0] * 12))
        truth.append(true)
    return learner, rows, Batching(3072, 1.0, policy.codec.pad, torch.device("cpu"), 1.0), truth


def updated(learner, rows, batching):
    return update(
        learner,
        split_minibatches(rows, [], 1),
        [PolicyTerm(0.01, 0.01)],
        None,
        SingleProcess(),
        factor=1.0,
        batching=batching,
    )


def test_old_log_probabilities_are_the_trainers(sampled):
    learner, rows, batching, truth = sampled
    assert updated(learner, rows, batching).clip_fraction > 0.3, (
        "the sampler's own rounding would be clipped as if the policy had moved"
    )
    compute_old_logprobs_and_values(learner, rows, batching, values=False, old=True)
    for row, true in zip(rows, truth, strict=True):
        assert row.old_logprobs == pytest.approx(true, abs=1e-5)
    stats = updated(learner, rows, batching)
    assert stats.clip_fraction == 0.0
    assert stats.logprob_difference_max == pytest.approx(GAP, abs=1e-4), (
        "what the sampler said is still compared with"
    )


def test_a_sampler_that_is_far_off_still_stops_the_run(sampled):
    learner, rows, batching, _ = sampled
    compute_old_logprobs_and_values(learner, rows, batching, values=False, old=True)
    with pytest.raises(EngineMismatch, match="about a sampled token"):
        updated(learner, rows, batching._replace(most_difference=GAP / 2))


def test_nothing_is_computed_where_nothing_is_asked(sampled):
    learner, rows, batching, _ = sampled
    compute_old_logprobs_and_values(learner, rows, batching, values=False, old=False)
    assert not any(row.old_logprobs or row.values for row in rows)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_command_that_installs_it_is_named(tmp_path):
    config = dataclasses.replace(tiny(find_entry("sokoban-easy")), engine="vllm")
    with pytest.raises(
        MissingExtra, match=r"--engine vllm.*scripts/test_vllm\.sh.*'vllm'.*pip install .*\.\[vllm\]"
    ):
        train(config, tmp_path / "run", Console(quiet=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("device", "vllms", "said"),
    [
        ("cpu", "cuda", r"samples on cuda, and the policy is on cpu; leave out --device cpu, or leave out"),
        ("cuda", "cpu", r"samples on cpu, and the policy is on cuda; give --device cpu, or leave out"),
        (
            "cpu",
            "",
            r"finds no device to sample on, and the policy is on cpu; leave out --engine",
        ),
    ],
)
def test_the_refusal_says_where_both_are_and_the_way_out(device, vllms, said):
    with pytest.raises(UnknownOption, match=said):
        require_device("tiny", device, vllms)
    require_device("tiny", device, device)


class Deaf(Copied):
    """Takes over weights at its first hand-over and at no other."""

    def sync(self, weights):
        super().sync(weights)
        self.stale = True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["single", "half"])
def test_an_engine_that_ignores_later_hand_overs_is_found_before_anything_is_sampled(dtype):
    """In half precision the steps of training are smaller than what is rounding; at the start the weights are moved far."""
    policy = random_policy()
    policy.model.to(dtype)
    before = [parameter.clone() for parameter in policy.model.parameters()]
    state = torch.random.get_rng_state()
    require_following(policy, Copied(policy), lambda: policy.model.state_dict().items())
    with pytest.raises(
        EngineMismatch, match="does not follow the trainer's weights; nothing was trained|still differ by"
    ):
        require_following(policy, Deaf(policy), lambda: policy.model.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True)), "put back"
    assert torch.equal(state, torch.random.get_rng_state()), "nothing was drawn from the run's generator"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["single", "half"])
def test_a_model_that_says_almost_the_same_of_every_token_is_no_reason_to_refuse(dtype):
    """A random head moves it by less than half precision's bound, and the engine follows all the same."""
    policy = random_policy()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(1e-3)
    policy.model.to(dtype)
    require_following(policy, Copied(policy), lambda: policy.model.state_dict().items())


def test_one_that_stops_following_later_is_found_in_half_precision():
    policy = random_policy()
    policy.model.to(torch.bfloat16)
    engine = Copied(policy)
    sync_engine(policy, engine, policy.model.state_dict().items())
    engine.stale = True
    with pytest.raises(EngineMismatch, match="follow the trainer's weights|still differ by"):
        for _ in range(200):
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(1.01)
            sync_engine(policy, engine, policy.model.state_dict().items())


def test_the_guard_holds_whatever_the_terms_of_the_loss_are():
    """A loss of one's own that measures nothing, and a sampler at half the temperature."""

    class OwnTerm:
        def needs(self, sequence):
            return any(sequence.advantages)

        def __call__(self, outputs, micro, totals, reference):
            return -(micro.advantages * outputs.logprobs[micro.which]).sum() / totals.weight, {}

    policy = random_policy()
    learner = TorchLearner(policy.model, None, SingleProcess(), learning_rate=1e-3)
    ids, mask = [(3 + 7 * n) % 900 for n in range(12)], [0] * 5 + [1] * 7
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0]

    def rows(temperature):
        said = torch.log_softmax(logits / temperature, dim=-1)
        sampled = [float(said[n - 1, ids[n]]) if m else 0.0 for n, m in enumerate(mask)]
        return split_minibatches([TokenSequence(ids, mask, sampled, [1.0] * 12)], [], 1)

    batching = Batching(3072, 1.0, policy.codec.pad, torch.device("cpu"), 0.05)
    before = [parameter.clone() for parameter in policy.model.parameters()]
    with pytest.raises(EngineMismatch, match="differ by up to .* nats about a sampled token"):
        update(learner, rows(0.5), [OwnTerm()], None, SingleProcess(), factor=1.0, batching=batching)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True)), "no step"
    stats = update(learner, rows(1.0), [OwnTerm()], None, SingleProcess(), factor=1.0, batching=batching)
    assert stats.logprob_difference_max < 1e-3 and stats.entropy is not None and stats.entropy > 0


CORRECTIONS = ["token-truncate", "token-mask", "sequence-mask"]


def gradient(learner, rows, batching):
    """(gradient, statistics) of one step that is not taken."""
    learner.apply = lambda factor: Norms(0.0, {})
    stats, found = updated(learner, rows, batching), learner.gradient
    learner.discard()
    return found, stats


def test_importance_weights_by_hand():
    """Three rows of ratios (2, .5), (4, 1) and (4, .5); the last token of the second is not the policy's."""
    log_ratio = torch.tensor([[2.0, 0.5], [4.0, 1.0], [4.0, 0.5]], dtype=torch.float64).log()
    weights = {name: importance_weights(log_ratio, name, 3.0).tolist() for name in ["none", *CORRECTIONS]}
    assert weights["none"] == [[1, 1]] * 3
    for name, expected in (
        ("token-truncate", [[2, 0.5], [3, 1], [3, 0.5]]),
        ("token-mask", [[2, 0.5], [0, 1], [0, 0.5]]),
        ("sequence-mask", [[1, 1], [0, 0], [2, 2]]),
    ):
        assert weights[name] == [pytest.approx(row) for row in expected], name
    assert importance_weights(log_ratio, "token-mask", math.inf)[1, 0] == pytest.approx(4)
    with pytest.raises(ValueError, match="correction is 'sequence': choose one of none, token-truncate"):
        importance_weights(log_ratio, "sequence")
    with pytest.raises(ValueError, match=r"cap is 0.5: it must be 1 or more"):
        importance_weights(log_ratio, "token-mask", 0.5)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(CORRECTIONS),
    st.floats(1, 20),
    st.lists(st.floats(-800, 800), min_size=1, max_size=6),
)
def test_weights_are_ratios_up_to_the_cap(correction, cap, gaps):
    log_ratio = torch.tensor([gaps], dtype=torch.float64)
    weights = importance_weights(log_ratio, correction, cap)[0].tolist()
    totals = [math.fsum(gaps)] * len(gaps) if correction == "sequence-mask" else gaps
    for weight, total in zip(weights, totals, strict=True):
        if abs(total - math.log(cap)) < 1e-9:  # rounding decides
            continue
        over = 0.0 if correction != "token-truncate" else cap
        assert weight == (pytest.approx(over if total > math.log(cap) else math.exp(total), rel=1e-9))
    assert importance_weights(0 * log_ratio, correction, cap).tolist() == [[1.0] * len(gaps)]


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_corrected_update_is_the_plain_sum_over_tokens(sampled, correction):
    """Loss and gradient against a sum by hand, in one micro-batch and in many; the two rows are one episode in one case."""
    learner, rows, batching, truth = sampled
    for row, less in zip(rows, (0.4, 0.1), strict=True):
        row.logprobs[8] -= less  # the sampler finds the third own token less likely by so much
    compute_old_logprobs_and_values(learner, rows, batching, values=False, old=True)
    cap, model = 1.2, learner.model
    for episodes in ([[rows[0]], [rows[1]]], [rows]):
        for row, advantage in zip(rows, (1.0, -1.0), strict=True):
            row.advantages = [advantage] * 12
        work = weigh(episodes, correction, cap, math.inf)
        total, held, weights, number = 0.0, 0, 0.0, 0
        for episode in episodes:
            gaps = [
                [
                    t - s
                    for t, s, m in zip(truth[rows.index(row)], row.logprobs, row.response_mask, strict=True)
                    if m
                ]
                for row in episode
            ]
            whole = math.exp(sum(map(sum, gaps)))
            for row, of_row in zip(episode, gaps, strict=True):
                logits = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
                places = [n for n, m in enumerate(row.response_mask) if m]
                for n, gap in zip(places, of_row, strict=True):
                    ratio = whole if correction == "sequence-mask" else math.exp(gap)
                    over = ratio > cap
                    weight = (cap if correction == "token-truncate" else 0.0) if over else ratio
                    now = logits[n - 1, row.ids[n]]
                    total = total - row.advantages[n] * weight * (now - now.detach()).exp()
                    held, weights, number = held + over, weights + weight, number + 1
        assert (work.masked + work.truncated, work.tokens) == (held, number) and held
        assert work.weights == pytest.approx(weights, rel=1e-4)
        model.zero_grad()
        expected = (total / number).item() if held < number else 0.0
        if held < number:
            (total / number).backward()
        true = torch.cat(
            [
                torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                for p in model.parameters()
            ]
        )
        model.zero_grad()
        correct(rows)
        for micro_tokens in (3072, 12):
            ours, stats = gradient(learner, rows, batching._replace(micro_tokens=micro_tokens))
            assert stats.base_loss == pytest.approx(expected, abs=1e-6)
            torch.testing.assert_close(ours, true, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_sampler_that_is_exact_is_corrected_by_nothing(sampled, correction):
    """Ratios of 1: bit for bit the gradient without a correction."""
    learner, rows, batching, _ = sampled
    compute_old_logprobs_and_values(learner, rows, batching, values=False, old=True)
    for row in rows:
        row.logprobs = row.old_logprobs
    plain, _ = gradient(learner, rows, batching)
    work = weigh([[row] for row in rows], correction, 3.0, 0.0)
    correct(rows)
    assert (work.masked, work.truncated, work.weights) == (0, 0, work.tokens)
    assert plain.any() and torch.equal(plain, gradient(learner, rows, batching)[0])


class Rounding(Copied):
    """Says of every sampled token that it was less likely than it is, by ``gap`` nats."""

    def __init__(self, policy, gap):
        super().__init__(policy)
        self.gap = gap

    def generate(self, *args, **kwargs):
        samples = super().generate(*args, **kwargs)
        return [s._replace(logprobs=[x - self.gap for x in s.logprobs]) for s in samples]


def test_an_iteration_weighs_what_the_sampler_saw_otherwise():
    policy = random_policy()
    config = papers_preset("hotpotqa")
    config = dataclasses.replace(
        config,
        tstar=False,
        rollout=dataclasses.replace(
            config.rollout, tasks_per_iteration=1, group_size=2, horizon=1, max_tokens=4, invalid_penalty=0.5
        ),
    )

    def metrics(engine, **optim):
        one = trainer(
            dataclasses.replace(config, optim=dataclasses.replace(config.optim, learning_rate=0.0, **optim)),
            policy,
        )
        one.engine = engine
        return iterate(one, 0).metrics

    names = ("correction_weight", "correction_masked", "correction_truncated")
    exact = metrics(LocalEngine(policy))
    assert not any(name.startswith("correction") for name in exact)
    off = metrics(Rounding(policy, 0.04), correction="none")
    assert not any(name.startswith("correction") for name in off)
    small = metrics(Rounding(policy, 0.04))
    assert small["correction_weight"] == pytest.approx(math.exp(4 * 0.04), abs=1e-3), "an episode of 4 tokens"
    assert (small["correction_masked"], small["correction_truncated"]) == (0, 0)
    assert small["base_gradient_norm"] == pytest.approx(
        math.exp(4 * 0.04) * off["base_gradient_norm"], rel=1e-3
    )
    by_token = metrics(Rounding(policy, 0.04), correction="token-truncate", correction_cap=1.01)
    assert [by_token[name] for name in names] == pytest.approx([1.01, 0, 1])
    masked = metrics(Rounding(policy, 0.04), correction="sequence-mask", correction_cap=1.1)
    assert [masked[name] for name in names] == [0, 1, 0] and masked["base_gradient_norm"] == 0
    for correction in ["none", *CORRECTIONS]:  # masked or not, what is no rounding stops the run
        with pytest.raises(EngineMismatch, match="about a sampled token"):
            metrics(Rounding(policy, 2.0), correction=correction)
