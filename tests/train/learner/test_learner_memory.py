"""Ways to train a larger model: half precision with masters, adapters, recomputed layers, a gradient that is not copied."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from scripts.studies.small_models import small_model
from tstar_envs import BadData
from tstar_train.distributed import SingleProcess
from tstar_train.engines.check import check_agreement
from tstar_train.engines.local import LocalEngine
from tstar_train.learner import torch as torch_learner
from tstar_train.learner.batch import MicroBatch
from tstar_train.learner.reference import AdapterReference, CopiedReference
from tstar_train.learner.torch import MasterWeights, TorchLearner
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.lora import (
    adapted_weights,
    add_adapters,
    base_weights,
    has_adapters,
    merged_weights,
    save_adapters,
)
from tstar_train.policy.model import Policy, recompute_layers
from tstar_train.policy.tokenizer import train_tokenizer

NAMES = ["qwen2", "gemma2", "gpt2", "phi4-mini"]  # tied and untied, fused projections, biases


def micro(rows=3, length=20, seed=0):
    ids = torch.randint(2, 290, (rows, length), generator=torch.Generator().manual_seed(seed))
    wanted = torch.zeros_like(ids, dtype=torch.bool)
    wanted[:, length // 2 :] = True
    return MicroBatch(ids, wanted)


def loss_of(learner, seed=0):
    return -learner.forward(micro(seed=seed)).logprobs.mean()


def step(learner, seed=0, parts=1):
    for part in range(parts):
        learner.backward(loss_of(learner, seed + part) / parts)
        learner.end_part(f"part {part}")
        learner.add_part(f"part {part}")
    return learner.apply(1.0).whole


def learner_of(model, rate=1e-3, reference=True, **options):
    average = None
    if reference:
        average = AdapterReference(model) if has_adapters(model) else CopiedReference(model)
    return TorchLearner(model, average, SingleProcess(), learning_rate=rate, alpha=0.5, **options)


@pytest.mark.parametrize("name", NAMES)
def test_adapters_begin_as_the_model_and_merge_into_what_it_computes(name):
    plain = small_model(name, 300)
    model = copy.deepcopy(plain)
    add_adapters(model, 4, 8)
    learner, before = learner_of(model), {n: p.detach().clone() for n, p in model.named_parameters()}
    given = micro().ids
    with torch.no_grad():
        torch.testing.assert_close(model(given).logits, plain(given).logits)
    for number in range(3):
        step(learner, number)
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed and all(".lora_" in n for n in changed)
    merged = copy.deepcopy(plain)
    missing, unexpected = merged.load_state_dict(dict(merged_weights(model)), strict=False)
    assert not missing and not unexpected
    with torch.no_grad():
        torch.testing.assert_close(merged(given).logits, model(given).logits, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(plain(given).logits, model(given).logits, atol=1e-3)


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft asks for it
@pytest.mark.parametrize("name", NAMES)
def test_peft_reads_the_saved_adapters_onto_the_frozen_weights(name, tmp_path):
    plain = small_model(name, 300)
    model = copy.deepcopy(plain)
    add_adapters(model, 4, 8)
    for number in range(3):
        step(learner_of(model), number)
    save_adapters(model, tmp_path)
    frozen = {n: torch.zeros_like(p) for n, p in plain.state_dict().items()}
    plain.load_state_dict(frozen | dict(base_weights(model)))
    loaded, given = PeftModel.from_pretrained(plain, tmp_path), micro().ids
    with torch.no_grad():
        torch.testing.assert_close(loaded(given).logits, model(given).logits)
        with loaded.disable_adapter():
            assert not torch.allclose(loaded(given).logits, model(given).logits, atol=1e-3)
    layers = [n.removesuffix(".weight") for n, _ in adapted_weights(model)]
    assert layers and all(hasattr(loaded.base_model.model.get_submodule(n), "lora_A") for n in layers)


def test_the_reference_of_adapters_is_their_average_and_leaves_the_policy_as_it_is():
    model = small_model("qwen2", 300)
    add_adapters(model, 4, 8)
    learner = learner_of(model)
    start, _ = learner.reference(micro()), step(learner)
    torch.testing.assert_close(learner.reference(micro()), start)  # it has not followed yet
    now = learner.frozen(micro()).logprobs
    learner.end_iteration()
    torch.testing.assert_close(learner.frozen(micro()).logprobs, now)
    between = learner.reference(micro())
    assert not torch.allclose(between, start) and not torch.allclose(between, now)
    twin = copy.deepcopy(model)
    for (n, p), average in zip(
        [x for x in twin.named_parameters() if x[1].requires_grad],
        learner.average.state().values(),
        strict=True,
    ):
        assert ".lora_" in n
        p.data = average.clone()
    torch.testing.assert_close(learner_of(twin).frozen(micro()).logprobs, between)


@pytest.mark.parametrize("kind", ["whole", "half", "adapters", "half adapters"])
def test_a_checkpoint_goes_on_bit_for_bit_and_is_an_ordinary_model(kind, tmp_path):
    def made():
        model = small_model("qwen2", 300)
        if "half" in kind:
            model = model.to(torch.bfloat16)
        if "adapters" in kind:
            add_adapters(model, 4, 8)
        return model, learner_of(model)

    (model, learner), (other, again) = made(), made()
    step(learner)
    learner.end_iteration()
    learner.state().write(tmp_path)
    again.load(tmp_path)
    for each in (learner, again):
        step(each, 5)
        each.end_iteration()
    for (name, mine), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    assert all(
        torch.equal(a, b)
        for a, b in zip(learner.average.state().values(), again.average.state().values(), strict=True)
    )
    learner.state().write(tmp_path)
    model.config.save_pretrained(tmp_path)
    Path(tmp_path / "policy.safetensors").rename(tmp_path / "model.safetensors")
    ordinary, info = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=model.dtype, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        near = {"atol": 3e-2, "rtol": 0.05} if "half" in kind else {"atol": 1e-4, "rtol": 1e-4}
        torch.testing.assert_close(ordinary(micro().ids).logits, model(micro().ids).logits, **near)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    learner_of(small_model("gpt2", 300)).state().write(tmp_path)
    with pytest.raises(BadData, match="belongs to another model"):
        learner_of(small_model("qwen2", 300)).load(tmp_path)


def test_small_steps_are_not_rounded_away():
    """At a rate of 1e-6 few half-precision weights move in one step, and would not in any number of them; their masters do."""
    model = small_model("qwen2", 300).to(torch.bfloat16)
    weight = model.model.layers[0].mlp.up_proj.weight
    before = weight.detach().clone()
    learner = learner_of(model, rate=1e-6)
    step(learner)
    once = (weight != before).float().mean()
    for _ in range(200):
        step(learner)
    assert once < 0.02 and (weight != before).float().mean() > 10 * once + 0.1
    reference = learner.average.state()["model.layers.0.mlp.up_proj.weight"]
    for _ in range(3):
        learner.end_iteration()
    assert not torch.equal(reference, before.float()), "neither is the average"


def test_gradients_of_half_precision_add_up_in_single_precision():
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    masters = MasterWeights([parameter])
    for _ in range(1000):
        (parameter * 0.01).sum().backward()
    assert parameter.grad is None and masters.parameters[0].grad.item() == pytest.approx(
        10.0, rel=0.01
    )  # bfloat16 would stop at 4


@pytest.mark.parametrize("name", NAMES)
def test_recomputed_layers_give_the_same_step(name):
    plain, again = small_model(name, 300), small_model(name, 300)
    recompute_layers(again)
    calls = []
    layer = next(m for n, m in again.named_modules() if n.endswith(("down_proj", "mlp.c_proj")))
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    norms = step(learner_of(plain)), step(learner_of(again, recompute=True))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and len(calls) == 2, (
        "forward, and once more in the backward pass"
    )
    for mine, theirs in zip(plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not again.training


def test_recomputed_layers_work_under_adapters():
    model = small_model("qwen2", 300)
    add_adapters(model, 4, 8)
    recompute_layers(model)
    assert step(learner_of(model, recompute=True)) > 0


@pytest.mark.parametrize("parts", [1, 2])
def test_the_gradient_of_a_large_model_is_the_same_without_copies(monkeypatch, parts):
    one, other = small_model("qwen2", 300), small_model("qwen2", 300)
    first = step(learner_of(one, max_norm=0.1), parts=parts)
    monkeypatch.setattr(torch_learner, "PARTS_BELOW", 0)
    learner = learner_of(other, max_norm=0.1)
    assert step(learner, parts=parts) == pytest.approx(first, rel=1e-5) and not learner.parts
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("half", [False, True])
def test_sampler_and_trainer_agree_under_adapters(half):
    tokenizer = train_tokenizer(["a b c d e f g"], 280)
    model = small_model("qwen2", 300)
    model = model.to(torch.bfloat16) if half else model
    add_adapters(model, 4, 8)
    step(learner_of(model))
    policy = Policy(model, PlainCodec(tokenizer, with_prompt=True), tokenizer, "adapted")
    assert check_agreement(policy, LocalEngine(policy)) < (0.25 if half else 1e-4)
