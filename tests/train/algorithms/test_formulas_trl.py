"""Formulas against TRL's own code on random tensors: its trainers as they are, on tiny random models that need no network."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tstar_train.advantages import gae, grpo, reward_moments, soft_overlong, whiten
from tstar_train.config import OptimConfig
from tstar_train.distributed import SingleProcess
from tstar_train.learner.base import Norms
from tstar_train.learner.batch import Step
from tstar_train.learner.reference import CopiedReference
from tstar_train.learner.rows import correct, weigh
from tstar_train.learner.terms import KLTerm, PolicyTerm
from tstar_train.learner.torch import TorchLearner
from tstar_train.learner.update import Batching, update
from tstar_train.losses import (
    clipped_policy_loss,
    importance_weights,
    kl_k3,
    loss_denominator,
    surgical_loss,
    token_weight,
    value_loss,
)
from tstar_train.types import TokenSequence

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("trl") is None,
        reason="trl is not installed: pip install -c constraints.txt trl",
    ),
    # What TRL and transformers say to one another.
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning"),
]

WORDS, PAD, END = 32, 0, 1
SHAPE = LlamaConfig(
    vocab_size=WORDS,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=PAD,
    eos_token_id=END,
    bos_token_id=None,
    use_cache=False,
    initializer_range=0.5,
    num_labels=1,
)
ROWS, LENGTH = 8, 7
COMMON = {
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def trl():
    """TRL, imported by the first test that needs it: that takes seconds, which collecting the tests should not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # PPO is among what it calls experimental
        import datasets
        import trl
        from trl.experimental import ppo
        from trl.experimental.ppo import ppo_trainer
        from trl.rewards import get_soft_overlong_punishment

        torch.set_num_threads(1)
        yield SimpleNamespace(
            Dataset=datasets.Dataset,
            GRPOConfig=trl.GRPOConfig,
            GRPOTrainer=trl.GRPOTrainer,
            DPOConfig=trl.DPOConfig,
            DPOTrainer=trl.DPOTrainer,
            PPOConfig=ppo.PPOConfig,
            PPOTrainer=ppo.PPOTrainer,
            ppo_trainer=ppo_trainer,
            get_soft_overlong_punishment=get_soft_overlong_punishment,
        )


@pytest.fixture(scope="module")
def tokenizer():
    words = ["<pad>", "<end>", "<unk>", *(f"w{n}" for n in range(3, WORDS))]
    plain = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", padding_side="left"
    )


def random_model(seed, kind=LlamaForCausalLM):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(copy.deepcopy(SHAPE))


@pytest.fixture(scope="module")
def grpo_trainer(trl, tokenizer, tmp_path_factory):
    """TRL's GRPO; its reward function says what ``trainer.given`` holds."""
    folder = tmp_path_factory.mktemp("grpo")
    random_model(0).save_pretrained(folder / "model")
    options = trl.GRPOConfig(
        str(folder),
        per_device_train_batch_size=ROWS,
        num_generations=4,
        max_completion_length=LENGTH,
        beta=0.3,
        temperature=0.7,
        model_init_kwargs={"dtype": "float32"},
        use_bias_correction_kl=False,  # GRPO's KL as published; TRL can multiply it by the ratio
        **COMMON,
    )
    trainer = trl.GRPOTrainer(
        str(folder / "model"),
        reward_funcs=lambda completions, **_: trainer.given,
        args=options,
        train_dataset=trl.Dataset.from_dict({"prompt": ["w3 w4", "w5"]}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


@pytest.mark.parametrize("scale", ["group", "none", "batch"])
def test_group_advantages_are_trls(grpo_trainer, monkeypatch, scale):
    monkeypatch.setattr(grpo_trainer, "scale_rewards", scale)
    drawn = np.random.default_rng(0)
    for given in (
        [0.0, 1.0, 0.0, None, 1.0, 1.0, 1.0, 1.0],
        drawn.random(8).tolist(),
        [*drawn.integers(0, 2, 7).tolist(), None],
    ):
        monkeypatch.setattr(grpo_trainer, "given", given, raising=False)
        theirs = grpo_trainer._generate_and_score_completions(
            [{"prompt": "w3 w4"}] * 4 + [{"prompt": "w5"}] * 4
        )["advantages"]
        # What has no reward is in no group here, and has no advantage there.
        scored = [n for n, reward in enumerate(given) if reward is not None]
        rewards = [given[n] for n in scored]
        ours = grpo(rewards, [n // 4 for n in scored], eps=1e-4, scale=scale == "group")
        if scale == "batch":
            ours = ours / (reward_moments(rewards)[1] + 1e-4)
        assert theirs[scored].numpy() == pytest.approx(ours, rel=1e-4, abs=1e-5)
        assert [theirs[n] for n in range(8) if n not in scored] == [0.0] * (8 - len(scored))


def random_batch(model, temperature, seed=0):
    """Rows as TRL's loss takes them: completions of different lengths with tokens of the environment in them."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, LENGTH + 1, (ROWS, 1), generator=drawn)
    there = torch.arange(LENGTH) < lengths
    own = there & (torch.rand(ROWS, LENGTH, generator=drawn) < 0.7)
    own[:, 0] = True
    rows = {
        "prompt_ids": torch.randint(3, WORDS, (ROWS, 3), generator=drawn),
        "prompt_mask": torch.ones(ROWS, 3, dtype=torch.long),
        "completion_ids": torch.randint(3, WORDS, (ROWS, LENGTH), generator=drawn).where(there, PAD),
        "completion_mask": there.long(),
        "tool_mask": own.long(),
        "advantages": torch.randn(ROWS, generator=drawn, dtype=torch.float64),
        "num_items_in_batch": own.sum(),
    }
    now = logprobs(model, rows, temperature).detach()
    rows["old_per_token_logps"] = now + 0.3 * torch.randn(now.shape, generator=drawn, dtype=now.dtype)
    rows["ref_per_token_logps"] = now + 0.5 * torch.randn(now.shape, generator=drawn, dtype=now.dtype)
    return rows, own


def logprobs(model, rows, temperature):
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    attended = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    logits = model(input_ids=ids, attention_mask=attended).logits[:, 2:-1] / temperature
    return logits.log_softmax(-1).gather(-1, rows["completion_ids"][..., None])[..., 0]


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# What ours calls it, and what it divides by where that is not the batch's own count.
LOSS_TYPES = {
    "grpo": ("seq-mean-token-mean", None),
    "bnpo": ("token-mean", None),
    "dapo": ("token-mean", None),
    "dr_grpo": ("seq-mean-token-sum", ROWS * LENGTH),
}


@pytest.fixture
def double(grpo_trainer, monkeypatch):
    """The trainer with double precision, so that nothing but the formula can differ."""
    monkeypatch.setattr(grpo_trainer, "model", copy.deepcopy(grpo_trainer.model).double().train())
    return grpo_trainer


@pytest.mark.parametrize("kind", LOSS_TYPES)
@pytest.mark.parametrize(("low", "high", "beta"), [(0.2, 0.2, 0.0), (0.2, 0.28, 0.3), (0.05, 0.4, 0.05)])
def test_policy_loss_and_kl_are_trls(double, monkeypatch, kind, low, high, beta):
    for name, value in {"loss_type": kind, "epsilon_low": low, "epsilon_high": high, "beta": beta}.items():
        monkeypatch.setattr(double, name, value)
    rows, own = random_batch(double.model, double.temperature)
    double._metrics["train"].clear()
    theirs = double._compute_loss(double.model, rows)
    their_gradient = gradient(double.model, theirs)

    now = logprobs(double.model, rows, double.temperature)
    aggregation, divisor = LOSS_TYPES[kind]
    policy = clipped_policy_loss(
        now, rows["old_per_token_logps"], rows["advantages"][:, None], own, low, high, aggregation, divisor
    )
    kl = kl_k3(now, rows["ref_per_token_logps"])
    weights = token_weight(own.sum(dim=-1, keepdim=True).double(), aggregation)
    ours = policy.loss + beta * (weights * kl)[own].sum() / (divisor or loss_denominator(own, aggregation))
    # TRL counts tokens in single precision.
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(gradient(double.model, ours), their_gradient, rtol=1e-5, atol=1e-8)
    said = double._metrics["train"]
    assert 0 < policy.clip_fraction.item() == pytest.approx(said["clip_ratio/region_mean"][0], rel=1e-5)
    if beta:
        assert kl[own].mean().item() == pytest.approx(said["kl"][0], rel=1e-6)


def test_micro_batches_add_up_to_trls_dapo_loss(double, monkeypatch):
    monkeypatch.setattr(double, "loss_type", "dapo")
    monkeypatch.setattr(double, "beta", 0.0)
    rows, own = random_batch(double.model, double.temperature)
    parts = [
        {k: v if v.ndim == 0 else v[part] for k, v in rows.items()} for part in (slice(0, 3), slice(3, ROWS))
    ]
    now, total = logprobs(double.model, rows, double.temperature), float(own.sum())
    for rows_of_part, part in zip(parts, (slice(0, 3), slice(3, ROWS)), strict=True):
        ours = clipped_policy_loss(
            now[part],
            rows["old_per_token_logps"][part],
            rows["advantages"][part, None],
            own[part],
            denominator=total,
        )
        assert ours.loss.item() == pytest.approx(
            double._compute_loss(double.model, rows_of_part).item(), rel=1e-9
        )


@pytest.mark.parametrize(("kind", "beta"), [("bnpo", 0.0), ("grpo", 0.3)])
def test_the_gradient_of_an_update_is_trls(double, monkeypatch, kind, beta):
    """Not the formulas alone: rows, micro-batches, weights, temperature and the forward pass that training uses."""
    for name, value in {"loss_type": kind, "beta": beta, "epsilon_high": 0.28}.items():
        monkeypatch.setattr(double, name, value)
    reference = copy.deepcopy(double.model)
    with torch.no_grad():  # near enough that no bound of ours is met, which TRL's estimate does not have
        reference.lm_head.weight.mul_(0.9)
    rows, own = random_batch(double.model, double.temperature)
    rows["ref_per_token_logps"] = logprobs(reference, rows, double.temperature).detach()
    theirs = gradient(double.model, double._compute_loss(double.model, rows))

    sequences = sequences_of(rows, own, kind, rows["old_per_token_logps"])
    ours = update_gradient(double, sequences, beta, CopiedReference(double.model, reference))
    # Advantages and old log-probabilities go through single precision there.
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def sequences_of(rows, own, kind, said):
    """TRL's rows as those of an update; ``said`` are the sampler's log-probabilities."""
    sequences = []
    for n in range(ROWS):
        length = int(rows["completion_mask"][n].sum())
        mask = [0, 0, 0, *own[n, :length].long().tolist()]
        ids = [*rows["prompt_ids"][n].tolist(), *rows["completion_ids"][n, :length].tolist()]
        weight = token_weight(float(sum(mask)), LOSS_TYPES[kind][0])
        advantages = [rows["advantages"][n].item()] * len(mask)
        sequences.append(
            TokenSequence(ids, mask, [0.0, 0.0, 0.0, *said[n, :length].tolist()], advantages, weight)
        )
    return sequences


def update_gradient(double, sequences, beta=0.0, reference=None):
    """Of one step of ours with TRL's model, in micro-batches of few rows."""
    learner, kept = TorchLearner(double.model, reference, SingleProcess(), learning_rate=0.1), []
    learner.apply = lambda factor: kept.append(learner.gradient) or Norms(0.0, {})
    double.model.zero_grad()
    batching = Batching(micro_tokens=24, temperature=double.temperature, pad=PAD, device=torch.device("cpu"))
    terms = [PolicyTerm(0.2, 0.28), KLTerm(beta)]
    update(learner, [Step(sequences)], terms, None, SingleProcess(), factor=1.0, batching=batching)
    return kept[0]


@pytest.mark.parametrize("kind", ["grpo", "dapo"])
@pytest.mark.parametrize("correction", ["token-truncate", "token-mask", "sequence-mask"])
def test_the_importance_correction_is_trls(double, monkeypatch, correction, kind):
    """TRL behind a sampler that is not exact: its weights, its loss, and the gradient of an update."""
    optim = OptimConfig()
    assert optim.correction == double.vllm_importance_sampling_mode.replace("_", "-")
    assert optim.correction_cap == double.vllm_importance_sampling_clip_max
    rows, own = random_batch(double.model, double.temperature)
    old = logprobs(double.model, rows, double.temperature).detach()
    drawn = torch.Generator().manual_seed(1)
    sampled = (old + 0.3 * torch.randn(old.shape, generator=drawn, dtype=old.dtype)).float()
    cut = [int(n) for n in rows["completion_mask"].sum(-1)]
    completions = [row[:n].tolist() for row, n in zip(rows["completion_ids"], cut, strict=True)]
    generated = (
        rows["prompt_ids"].tolist(),
        completions,
        [row[:n].long().tolist() for row, n in zip(own, cut, strict=True)],
        [str(ids) for ids in completions],
        [row[:n].tolist() for row, n in zip(sampled, cut, strict=True)],
        {},
        None,
        None,
    )
    options = {"loss_type": kind, "epsilon_high": 0.28, "beta": 0.0, "use_vllm": True}
    options |= {
        "vllm_importance_sampling_mode": correction.replace("-", "_"),
        "vllm_importance_sampling_clip_max": 1.4,
    }
    for name, value in options.items():
        monkeypatch.setattr(double, name, value)
    monkeypatch.setattr(double, "_generate", lambda prompts: generated)
    monkeypatch.setattr(double, "given", np.random.default_rng(0).random(ROWS).tolist(), raising=False)
    batch = double._generate_and_score_completions([{"prompt": "w3 w4"}] * ROWS)
    torch.testing.assert_close(batch["old_per_token_logps"][own], old[own])
    weights = importance_weights(torch.where(own, old - sampled, 0.0), correction, 1.4)
    theirs = batch["importance_sampling_ratio"].expand_as(weights)
    torch.testing.assert_close(weights[own], theirs[own])
    held = ((weights == 0) | (weights == 1.4))[own].double().mean().item()
    assert 0 < held < 1, "some tokens are above the cap, others are not"

    # The policy has moved since, so that some ratios are clipped.
    batch["old_per_token_logps"] = rows["old_per_token_logps"]
    loss = double._compute_loss(double.model, batch)
    their_gradient = gradient(double.model, loss)
    now = logprobs(double.model, rows, double.temperature)
    advantages = batch["advantages"][:, None] * weights
    moved = rows["old_per_token_logps"]
    ours = clipped_policy_loss(now, moved, advantages, own, 0.2, 0.28, LOSS_TYPES[kind][0])
    assert ours.loss.item() == pytest.approx(loss.item(), rel=1e-5) and ours.clip_fraction > 0
    torch.testing.assert_close(gradient(double.model, ours.loss), their_gradient, rtol=1e-4, atol=1e-7)

    rows["advantages"] = batch["advantages"]
    sequences = sequences_of(rows, own, kind, sampled)
    for sequence, trainers in zip(sequences, sequences_of(rows, own, kind, old), strict=True):
        sequence.old_logprobs = trainers.logprobs
    work = weigh([[s] for s in sequences], correction, 1.4, math.inf)
    assert (work.masked + work.truncated) / work.tokens == pytest.approx(held)
    assert work.weights / work.tokens == pytest.approx(weights[own].mean().item(), rel=1e-6)
    correct(sequences)
    for sequence, later in zip(sequences, sequences_of(rows, own, kind, moved), strict=True):
        sequence.old_logprobs = later.logprobs
    torch.testing.assert_close(update_gradient(double, sequences), their_gradient, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def ppo(trl, tokenizer, tmp_path_factory):
    """One batch of TRL's PPO with its critic, and the variables of its ``train`` where it whitens and where it has its losses."""
    options = trl.PPOConfig(
        str(tmp_path_factory.mktemp("ppo")),
        per_device_train_batch_size=ROWS,
        num_ppo_epochs=3,
        num_mini_batches=1,
        total_episodes=ROWS,
        response_length=LENGTH,
        stop_token="eos",
        num_sample_generations=0,
        kl_coef=0.1,
        gamma=0.9,
        lam=0.8,
        learning_rate=0.02,
        cliprange=0.2,
        cliprange_value=0.2,
        **COMMON,
    )
    trainer = trl.PPOTrainer(
        args=options,
        processing_class=tokenizer,
        model=random_model(1),
        ref_model=random_model(2),
        reward_model=random_model(4, LlamaForSequenceClassification),
        value_model=random_model(3, LlamaForSequenceClassification),
        train_dataset=trl.Dataset.from_dict({"input_ids": [[4, 5, 6]] * ROWS}),
    )
    seen = SimpleNamespace(options=options, whitened=[], losses=[])

    def seeing(function, keep, when):
        def called(*arguments, **named):
            result, frame = function(*arguments, **named), sys._getframe(1)
            if frame.f_code.co_name == "train" and when in frame.f_locals:
                keep.append(
                    {k: v.detach().clone() for k, v in frame.f_locals.items() if torch.is_tensor(v)}
                    | {"result": result}
                )
                keep[-1]["rows"] = frame.f_locals.get("micro_batch_inds")
            return result

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trl.ppo_trainer,
            "masked_whiten",
            seeing(trl.ppo_trainer.masked_whiten, seen.whitened, "advantages"),
        )
        # The last of its means is the share of clipped ratios, when it has all losses.
        patch.setattr(
            trl.ppo_trainer, "masked_mean", seeing(trl.ppo_trainer.masked_mean, seen.losses, "pg_loss")
        )
        trainer.train()
    assert len(seen.whitened) == 1 and len(seen.losses) == 3
    return seen


def test_gae_and_whitening_are_trls(ppo):
    [they] = ppo.whitened
    # TRL's score stands one place behind an answer that ends early, and the critic's value there still counts.
    scored = ~they["padding_mask_p1"].numpy()
    ours, returns = gae(they["rewards"], they["values"], scored, ppo.options.gamma, ppo.options.lam)
    assert ours[scored] == pytest.approx(they["advantages"].numpy()[scored], rel=1e-4, abs=1e-5)
    assert returns[scored] == pytest.approx(they["returns"].numpy()[scored], rel=1e-4, abs=1e-5)
    own = ~they["padding_mask"].numpy()
    assert not own.all() and own.any(axis=1).all(), "answers of different lengths"
    assert whiten(they["advantages"], own)[own] == pytest.approx(
        they["result"].numpy()[own], rel=1e-4, abs=1e-5
    )


def test_gae_steps_over_tokens_of_the_environment_as_if_trl_had_never_seen_them(ppo):
    [they] = ppo.whitened
    drawn = np.random.default_rng(0)
    for row, length in enumerate((~they["padding_mask_p1"]).sum(dim=1).tolist()):
        places = np.sort(drawn.permutation(3 * LENGTH)[:length])
        rewards, values = drawn.normal(size=3 * LENGTH), drawn.normal(size=3 * LENGTH)
        rewards[places], values[places] = they["rewards"][row, :length], they["values"][row, :length]
        mask = np.isin(np.arange(3 * LENGTH), places)
        ours, _ = gae(rewards, values, mask, ppo.options.gamma, ppo.options.lam)
        assert ours[places] == pytest.approx(they["advantages"][row, :length].numpy(), rel=1e-4, abs=1e-5)


def test_ppos_losses_are_trls(ppo):
    clipped = []
    for they in ppo.losses:
        rows = they["rows"]
        value = value_loss(
            they["vpred"], they["mb_return"], they["mb_values"], ~they["padding_mask_p1"][rows], clip=0.2
        )
        assert value.loss.item() == pytest.approx(they["vf_loss"].item(), rel=1e-5)
        assert value.clip_fraction.item() == pytest.approx(they["vf_clipfrac"].item())
        own = ~they["padding_mask"][rows]
        policy = clipped_policy_loss(they["new_logprobs"], they["mb_logprobs"], they["mb_advantage"], own)
        assert policy.loss.item() == pytest.approx(they["pg_loss"].item(), rel=1e-4, abs=1e-6)
        assert policy.clip_fraction.item() == pytest.approx(they["result"].item())
        clipped.append((value.clip_fraction.item(), policy.clip_fraction.item()))
    assert clipped[0] == (0.0, 0.0) and min(clipped[-1]) > 0, (
        "the first epoch is where it was sampled, the last is not"
    )


def test_whitening_any_tokens_is_trls(trl):
    drawn = torch.Generator().manual_seed(0)
    for _ in range(20):
        values, mask = (
            torch.randn(4, 5, generator=drawn, dtype=torch.float64) * 3,
            torch.rand(4, 5, generator=drawn) < 0.6,
        )
        mask[0, :2] = True  # one token has no variance: TRL divides by zero there, ours is 0
        theirs = trl.ppo_trainer.masked_whiten(values, mask)[mask]
        assert whiten(values, mask)[mask.numpy()] == pytest.approx(
            theirs.numpy(), rel=1e-6
        )  # it counts tokens in single precision


def test_the_soft_overlong_penalty_is_trls(trl):
    for most, buffer in ((100, 20), (64, 64), (7, 3), (10, 0)):
        theirs = trl.get_soft_overlong_punishment(most, buffer)([[0] * n for n in range(most + 1)])
        assert [soft_overlong(n, most, buffer) for n in range(most + 1)] == pytest.approx(theirs)


def test_the_surgical_loss_is_trls_dpo(trl, tokenizer, tmp_path):
    options = trl.DPOConfig(str(tmp_path), beta=0.3, per_device_train_batch_size=4, **COMMON)
    data = trl.Dataset.from_dict({"prompt": ["w3 w4"], "chosen": ["w5"], "rejected": ["w6"]})
    reference = random_model(1)
    trainer = trl.DPOTrainer(
        random_model(0), reference, options, train_dataset=data, processing_class=tokenizer
    )
    trainer.model.double(), trainer.ref_model.double()
    drawn = torch.Generator().manual_seed(0)
    pairs, context, length = 4, 3, 9
    ids = torch.randint(3, WORDS, (2 * pairs, length), generator=drawn)
    ids[pairs:, :context] = ids[:pairs, :context]  # a pair has one context
    there = torch.arange(length) < torch.randint(context + 1, length + 1, (2 * pairs, 1), generator=drawn)
    thought = there & (torch.arange(length) >= context)
    rows = {
        "input_ids": ids.where(there, PAD),
        "attention_mask": there.long(),
        "completion_mask": thought.long(),
    }
    theirs = trainer._compute_loss(trainer.model, rows, return_outputs=False)
    their_gradient = gradient(trainer.model, theirs)

    def spans(model):
        logits = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits[:, :-1]
        chosen = logits.log_softmax(-1).gather(-1, rows["input_ids"][:, 1:, None])[..., 0]
        return torch.where(thought[:, 1:], chosen, 0.0).sum(dim=1).split(pairs)

    (rectified, rejected), (rectified_then, rejected_then) = spans(trainer.model), spans(trainer.ref_model)
    ours = surgical_loss(rectified, rectified_then, rejected, rejected_then, beta=0.3)
    assert ours.loss.item() == pytest.approx(theirs.item(), rel=1e-9) and theirs.item() != pytest.approx(
        math.log(2), abs=0.01
    )
    torch.testing.assert_close(gradient(trainer.model, ours.loss), their_gradient, rtol=1e-7, atol=1e-10)
    said = trainer._metrics["train"]
    assert ours.accuracy.item() == pytest.approx(said["rewards/accuracies"][0])
    assert 0.3 * ours.margin.item() == pytest.approx(said["rewards/margins"][0], rel=1e-6)
