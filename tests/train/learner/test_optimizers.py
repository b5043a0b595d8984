"""The optimizers against torch's own, stepped by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.studies.small_models import small_model
from tstar_envs import BadData, UnknownOption
from tstar_train import make_config
from tstar_train.config_check import check
from tstar_train.distributed import SingleProcess
from tstar_train.learner.batch import MicroBatch
from tstar_train.learner.optimizers import OptimizerOptions, Optimizers, layer_matrices
from tstar_train.learner.torch import TorchLearner
from tstar_train.loop import rate
from tstar_train.policy.critic import Critic
from tstar_train.policy.lora import add_adapters

MUON = OptimizerOptions("muon", (0.8, 0.95), 0.1)


def micro(seed):
    ids = torch.randint(2, 290, (3, 12), generator=torch.Generator().manual_seed(seed))
    wanted = torch.zeros(ids.shape, dtype=torch.bool)
    wanted[:, 6:] = True
    return MicroBatch(ids, wanted)


def loss_of(model, seed):
    learner = TorchLearner(model, None, SingleProcess(), learning_rate=0.0)
    return -learner.forward(micro(seed)).logprobs.mean()


def step(learner, seed, factor=1.0):
    learner.backward(-learner.forward(micro(seed)).logprobs.mean())
    learner.end_part("base")
    learner.add_part("base")
    return learner.apply(factor).whole


def learner_of(model, options, **further):
    return TorchLearner(
        model, None, SingleProcess(), learning_rate=3e-3, max_norm=math.inf, optimizer=options, **further
    )


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
@pytest.mark.parametrize("options", [MUON, MUON._replace(name="adamw")], ids=["muon", "adamw"])
def test_steps_are_those_of_torch(name, options):
    ours, twin = small_model(name, 300), small_model(name, 300)
    learner = learner_of(ours, options)
    inner = {
        n
        for n, p in twin.named_parameters()
        if p.ndim == 2 and not any(w in n for w in ("emb", "wt", "wp", "lm_head"))
    }
    named = dict(twin.named_parameters())
    of_muon = [p for n, p in named.items() if n in inner and options.name == "muon"]
    assert not of_muon or len(of_muon) > 4
    others = [p for n, p in named.items() if n not in inner or options.name == "adamw"]
    by_hand = [
        torch.optim.AdamW(
            [
                {"params": [p for p in others if p.ndim >= 2], "weight_decay": 0.1},
                {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=3e-3,
            betas=(0.8, 0.95),
        )
    ]
    if of_muon:
        by_hand.append(torch.optim.Muon(of_muon, lr=3e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"))
    for number, factor in enumerate((1.0, 0.25, 1.0)):
        step(learner, number, factor)
        loss_of(twin, number).backward()
        for optimizer in by_hand:
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * factor
            optimizer.step()
            optimizer.zero_grad()
    for (n, mine), theirs in zip(ours.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=n)


def test_muon_updates_no_embedding_output_norm_or_value_head():
    model = small_model("qwen2", 300)
    learner = learner_of(model, MUON, critic=Critic(model, separate=True), critic_rate=1e-3)
    muon = {id(p) for group in learner.optimizer.parts["muon"].param_groups for p in group["params"]}
    assert len(muon) == 2 * len(layer_matrices(model))  # those of the critic's own layers too
    outside = [
        model.get_input_embeddings().weight,
        model.get_output_embeddings().weight,
        learner.critic.head.weight,
    ]
    assert not muon & {id(p) for p in outside}
    rates = {group["lr"] for group in learner.optimizer.parts["muon"].param_groups}
    assert rates == {3e-3, 1e-3}


def test_muon_updates_adapters():
    model = small_model("qwen2", 300)
    add_adapters(model, 4, 8)
    learner = learner_of(model, MUON)
    assert list(learner.optimizer.parts) == ["muon"]
    before = [p.detach().clone() for p in model.parameters() if p.requires_grad]
    step(learner, 0)
    step(learner, 1)
    after = [p for p in model.parameters() if p.requires_grad]
    assert all(not torch.equal(b, a) for b, a in zip(before, after, strict=True))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("options", [MUON, OptimizerOptions(weight_decay=0.1)], ids=["muon", "decay"])
def test_a_restored_learner_goes_on_as_one_that_was_not_interrupted(options, half, tmp_path):
    def made():
        model = small_model("qwen2", 300)
        return learner_of(model.to(torch.bfloat16) if half else model, options)

    whole, first = made(), made()
    for number in range(4):
        step(whole, number)
    for number in range(2):
        step(first, number)
    first.state().write(tmp_path)
    second = made()
    second.load(tmp_path)
    for number in (2, 3):
        step(second, number)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_optimizers_state_is_refused(tmp_path):
    plain, muon = (learner_of(small_model("qwen2", 300), o) for o in (OptimizerOptions(), MUON))
    step(plain, 0)
    plain.state().write(tmp_path)
    with pytest.raises(BadData, match="state is of adamw, and this run has adamw and muon"):
        muon.load(tmp_path)


def test_muon_is_refused_where_matrices_are_cut():
    with pytest.raises(UnknownOption, match="--optim.optimizer muon needs whole matrices"):
        check(make_config("blocksworld-stack", **{"optim.optimizer": "muon", "learner": "deepspeed"}))
    with pytest.raises(UnknownOption, match="--optim.adam-beta2 must be from 0 to 0.9999, got 1"):
        check(make_config("blocksworld-stack", **{"optim.adam_beta2": 1.0}))


@settings(deadline=None)
@given(iterations=st.integers(1, 50), warmup=st.floats(0, 1), decay=st.floats(0, 1), done=st.floats(0, 1))
def test_the_rate_rises_stays_and_falls(iterations, warmup, decay, done):
    config = make_config(
        "blocksworld-stack", iterations=iterations, **{"optim.warmup": warmup, "optim.decay": decay}
    )
    rates = [rate(config, n) for n in range(iterations)]
    assert all(0 < r <= 1 for r in rates)
    top = rates.index(max(rates))
    assert rates == sorted(rates[:top]) + sorted(rates[top:], reverse=True)
    if warmup + decay == 0:
        assert set(rates) == {1.0}
    assert rate(config, iterations - 1, done) <= 1 and rate(config, 0, done) >= 0
    if warmup:
        assert rates[0] == pytest.approx(
            min(1, 1 / (iterations * warmup), iterations / (iterations * decay) if decay else 1)
        )


def test_no_parameter_is_left_out():
    model = small_model("qwen2", 300)
    trained = list(model.parameters())
    for options in (OptimizerOptions(), MUON, OptimizerOptions(weight_decay=0.1)):
        kept = Optimizers([trained], [1e-3], options, {id(p) for p in layer_matrices(model)})
        given = [id(p) for group in kept.param_groups for p in group["params"]]
        assert sorted(given) == sorted(id(p) for p in trained)
