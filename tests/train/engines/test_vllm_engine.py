"""The vLLM engine against the local one: run by scripts/test_vllm.sh in an environment that has vLLM, skipped elsewhere."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_vllm.sh makes an environment with it")

import vllm
from policies import HOTPOT, random_policy
from transformers import AutoModelForCausalLM
from vllm import _custom_ops

from scripts.studies.small_models import save_small
from tstar_envs import UnknownOption
from tstar_train.engines import vllm as subject
from tstar_train.engines.check import EngineMismatch, check_agreement, sync_engine
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.vllm import BLOCK, VLLMEngine
from tstar_train.learner.base import tied
from tstar_train.policy.kv import ContextTooLong
from tstar_train.policy.model import load_policy

LIMIT = 400


def weights_of(policy):
    return [
        (name, tensor) for name, tensor in policy.model.state_dict().items() if not tied(policy.model, name)
    ]


@pytest.fixture(scope="module")
def policy():
    return random_policy(0)


@pytest.fixture(scope="module")
def engine(policy):
    return VLLMEngine(policy, batch=32, limit=LIMIT, gib=1.0)


@pytest.fixture
def synced(policy, engine):
    sync_engine(policy, engine, weights_of(policy))
    return engine


def text(length, start=0):
    return [(5 + 29 * (start + n)) % 1000 for n in range(length)]


def flat(scores):
    return [value for group in scores for value in group]


def test_it_asks_for_weights_first(policy, engine):
    engine.release()
    with pytest.raises(RuntimeError, match="call sync before"):
        engine.generate([text(5)], ["s"], max_tokens=2)
    with pytest.raises(RuntimeError, match="again after release"):
        engine.logprobs([text(5)], [[[3]]])
    sync_engine(policy, engine, weights_of(policy))
    assert engine.generate([text(5)], ["s"], max_tokens=2)


def test_weights_that_never_came_are_found_out(policy, engine):
    """The engine is made without weights: nothing that it says before they come may pass for the policy's."""
    with pytest.raises(EngineMismatch, match=r"still differ by up to [\d.]+ nats"):
        sync_engine(random_policy(1), engine, weights_of(policy))


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_of_samples_are_the_local_engines(policy, synced, temperature):
    contexts = [text(20), text(70, 3), text(33, 9)]
    samples = synced.generate(
        contexts, [f"{n}" for n in range(6)], max_tokens=24, temperature=temperature, copies=2
    )
    with torch.no_grad():
        for number, sample in enumerate(samples):
            context = contexts[number // 2]
            logits = policy.model(torch.tensor([context + sample.ids])).logits[0, len(context) - 1 : -1]
            theirs = torch.log_softmax(logits / (temperature or 1.0), dim=-1).gather(
                -1, torch.tensor(sample.ids)[:, None]
            )[:, 0]
            assert torch.allclose(torch.tensor(sample.logprobs), theirs, atol=1e-4)
            if not temperature:
                assert sample.ids == logits.argmax(-1).tolist()
    if not temperature:
        local = LocalEngine(policy).generate(contexts, list("abc"), max_tokens=24, temperature=0.0)
        assert [s.ids for s in samples[::2]] == [s.ids for s in local]


def test_equal_seeds_equal_samples_and_others_differ(synced):
    contexts = [text(20), text(70, 3)]
    first = synced.generate(contexts, ["a", "b"], max_tokens=16)
    turned = synced.generate(contexts[::-1], ["b", "a"], max_tokens=16)
    assert [s.ids for s in first] == [s.ids for s in turned[::-1]]
    many = synced.generate([contexts[0]], [f"seed {n}" for n in range(12)], max_tokens=16, copies=12)
    assert len({tuple(s.ids) for s in many}) > 6


def test_samples_are_distributed_as_the_policy(policy, synced):
    count, context = 3000, text(20)
    samples = synced.generate(
        [context], [f"draw {n}" for n in range(count)], max_tokens=1, temperature=0.7, copies=count
    )
    with torch.no_grad():
        expected = torch.softmax(policy.model(torch.tensor([context])).logits[0, -1] / 0.7, dim=-1)
    seen = torch.bincount(torch.tensor([s.ids[0] for s in samples]), minlength=len(expected)) / count
    likely = expected.topk(8).indices
    assert torch.all(
        (seen - expected)[likely].abs()
        < 5 * (expected[likely] * (1 - expected[likely]) / count).sqrt() + 1e-9
    )


def test_a_reply_keeps_the_token_that_ended_it(policy, synced):
    context = text(20)
    greedy = synced.generate([context], ["x"], max_tokens=12, temperature=0.0)[0]
    end = greedy.ids[3]
    cut = synced.generate([context], ["x"], max_tokens=12, temperature=0.0, ends=[end])[0]
    assert cut.ids == greedy.ids[: greedy.ids.index(end) + 1] and len(cut.logprobs) == len(cut.ids)
    assert (
        cut.ids
        == LocalEngine(policy).generate([context], ["x"], max_tokens=12, temperature=0.0, ends=[end])[0].ids
    )
    (own,) = policy.codec.ends
    with torch.no_grad():
        old = policy.model.get_output_embeddings().weight[own].clone()
        policy.model.get_output_embeddings().weight[own] = (
            40 * policy.model.get_output_embeddings().weight[greedy.ids[0]]
        )
    try:
        sync_engine(policy, synced, weights_of(policy))
        assert synced.generate([context], ["x"], max_tokens=12, temperature=0.0)[0].ids[-1] == own
    finally:
        with torch.no_grad():
            policy.model.get_output_embeddings().weight[own] = old


def test_scores_are_the_local_engines(policy, synced):
    contexts = [text(50), text(64, 2), text(7, 5)]
    tails = [[text(9, 4), text(1, 7), []], [text(70, 8)], [text(3, 1), text(40, 1)]]
    ours, theirs = synced.logprobs(contexts, tails), LocalEngine(policy).logprobs(contexts, tails)
    assert [len(group) for group in ours] == [3, 1, 2] and ours[0][2] == 0.0
    assert flat(ours) == pytest.approx(flat(theirs), abs=1e-3)


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 3])
def test_scores_stay_right_where_the_cache_holds_the_continuation(policy, synced, length):
    """vLLM says nothing true about prompt tokens that it took from the cache, and it keeps those that it sampled or scored itself."""
    context = text(length)
    sample = synced.generate([context], ["long"], max_tokens=4 * BLOCK)[0]
    tails = [sample.ids, sample.ids[: 2 * BLOCK], [*sample.ids[: 2 * BLOCK], 7, 8]]
    theirs = LocalEngine(policy).logprobs([context], [tails])
    for _ in range(2):
        assert flat(synced.logprobs([context], [tails])) == pytest.approx(flat(theirs), abs=2e-3)


def test_the_prefix_cache_is_read_when_scoring(synced, monkeypatch):
    cached, generate = [], synced.llm.generate

    def watched(*arguments, **options):
        outputs = generate(*arguments, **options)
        cached.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(synced.llm, "generate", watched)
    context = text(8 * BLOCK + 5)
    synced.logprobs([context], [[text(4, 1)]])
    synced.logprobs([context], [[text(4, 50), text(5, 90)]])
    assert cached == [0, 8 * BLOCK, 8 * BLOCK]


def test_after_a_sync_it_has_the_new_weights(policy, synced):
    other, contexts, tails = random_policy(1), [text(50), text(80, 2)], [[text(9, 4)], [text(20, 8)]]
    old = flat(synced.logprobs(contexts, tails))
    sync_engine(other, synced, weights_of(other))
    new = flat(synced.logprobs(contexts, tails))
    assert new == pytest.approx(flat(LocalEngine(other).logprobs(contexts, tails)), abs=1e-3)
    assert min(abs(a - b) for a, b in zip(old, new, strict=True)) > 0.1


def test_limits_are_the_local_engines(synced):
    assert synced.limit == LIMIT
    full = synced.generate([text(LIMIT - 3)], ["s"], max_tokens=9)[0]
    assert len(full.ids) <= 3
    assert math.isfinite(synced.logprobs([text(LIMIT - 4)], [[text(4)]])[0][0])
    with pytest.raises(ContextTooLong):
        synced.generate([text(LIMIT)], ["s"], max_tokens=9)
    with pytest.raises(ContextTooLong):
        synced.logprobs([text(LIMIT - 3)], [[text(4)]])


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gemma2", "phi4-mini", "smollm3", "gpt-neox"])
def test_models_of_other_architectures(tmp_path, name):
    save_small(name, tmp_path)
    loaded = load_policy(str(tmp_path), "sokoban")
    engine = VLLMEngine(loaded, batch=8, limit=200, gib=1.0)
    sync_engine(loaded, engine, weights_of(loaded))
    assert check_agreement(loaded, engine) < 1e-4
    if not loaded.model.config.tie_word_embeddings:
        with pytest.raises(
            EngineMismatch, match=r"still differ by up to"
        ):  # one matrix that changed and was not handed over
            loaded.model.lm_head.weight.data.mul_(1.5)
            sync_engine(loaded, engine, [pair for pair in weights_of(loaded) if pair[0] != "lm_head.weight"])


class ByReloading(VLLMEngine):
    """Hands weights over as ``collective_rpc("reload_weights")`` does, which does not complain where nothing changes."""

    def load_weights(self, weights):
        self.llm.collective_rpc(lambda worker: worker.reload_weights(weights_iterator=weights))


@pytest.mark.parametrize(
    ("kind", "said"),
    [(VLLMEngine, "failed to load the weights"), (ByReloading, r"still differ by up to [\d.]+ nats")],
)
def test_packed_weights_that_stay_stale_stop_the_run(policy, monkeypatch, kind, said):
    """The trap: with oneDNN on, vLLM's CPU build computes with a packed copy of what was loaded first."""
    with monkeypatch.context() as patch:
        patch.setattr(subject, "keep_weights_plain", lambda: None)
        patch.setattr(_custom_ops, "_supports_onednn", True)
        trapped = kind(policy, batch=8, limit=200, gib=1.0)
        with pytest.raises(EngineMismatch, match=said):
            sync_engine(policy, trapped, weights_of(policy))
    freed = kind(policy, batch=8, limit=200, gib=1.0)
    sync_engine(policy, freed, weights_of(policy))
    assert check_agreement(policy, freed) < 1e-4


def test_it_starts_beside_numba(policy):
    """bm25s imports numba where there is one, as vLLM's dependencies bring it; the CPU build stumbled over an object of llvmlite's."""
    HOTPOT.load_class()(retriever="bm25")
    assert {"bm25s", "llvmlite.binding.ffi"} <= sys.modules.keys()
    beside = VLLMEngine(policy, batch=8, limit=200, gib=1.0)
    sync_engine(policy, beside, weights_of(policy))
    assert check_agreement(policy, beside) < 1e-4


def test_a_policy_on_another_device_is_refused_before_an_engine_is_made(monkeypatch):
    monkeypatch.setattr(vllm, "LLM", None)
    elsewhere = random_policy(0)
    elsewhere.model.to("meta")
    with pytest.raises(
        UnknownOption,
        match=r"vLLM samples on cpu, and the policy is on meta; give --device cpu, or leave out",
    ):
        VLLMEngine(elsewhere, batch=8, limit=200, gib=1.0)


def run(tmp_path, name, *more):
    command = [
        sys.executable,
        "-m",
        "tstar_train",
        "--env",
        "sokoban-easy",
        "--iterations",
        "1",
        "--rollout.tasks-per-iteration",
        "2",
        "--rollout.group-size",
        "4",
        "--evaluation.tasks",
        "4",
        "--evaluation.samples",
        "1",
        "--optim.num-minibatches",
        "1",
        "--out",
        str(tmp_path / name),
        *more,
    ]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]


def test_it_trains_and_resumes_as_the_local_engine(tmp_path):
    [ours] = run(tmp_path, "vllm", "--engine", "vllm")
    [theirs] = run(tmp_path, "local", "--processes", "1")
    # The local engine's samples need no correction.
    assert {name for name in ours if not name.startswith("correction_")} == theirs.keys()
    assert 0 < ours["logprob_difference_max"] < 1e-3 and ours["clip_fraction"] == 0.0
    assert ours["gradient_norm"] > 0 and theirs["gradient_norm"] > 0
    greedy = [
        json.loads((tmp_path / name / "evaluation.json").read_text())["before"]["greedy_per_task"]
        for name in ("vllm", "local")
    ]
    assert greedy[0] == greedy[1]
    command = [sys.executable, "-m", "tstar_train", "--resume", str(tmp_path / "vllm"), "--iterations", "2"]
    subprocess.run(command, check=True, capture_output=True, timeout=500)
    lines = (tmp_path / "vllm" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2 and json.loads(lines[1])["logprob_difference_max"] < 1e-3


SERVED = """
import sys
from vllm import LLM, SamplingParams, TokensPrompt
served = LLM(model=sys.argv[1], dtype="float32", max_model_len=256, enforce_eager=True, gpu_memory_utilization=0.1)
greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
[given] = served.generate([TokensPrompt(prompt_token_ids=[5, 9, 12, 40, 7])], greedy)
print("said", list(given.outputs[0].token_ids))
"""


def test_vllm_serves_a_checkpoint_as_it_stands(tmp_path):
    run(tmp_path, "trained", "--processes", "1")
    checkpoint = tmp_path / "trained" / "checkpoints" / "000001"
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(checkpoint)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = [5, 9, 12, 40, 7]
    for _ in range(8):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert f"said {ids[5:]}" in done.stdout.splitlines()


def test_each_of_two_ranks_has_an_engine_of_its_own(tmp_path):
    [metrics] = run(tmp_path, "ranks", "--engine", "vllm", "--processes", "2")
    assert 0 < metrics["logprob_difference_max"] < 1e-3 and metrics["gradient_norm"] > 0


def test_forks_and_the_credit_of_actions(tmp_path):
    """Scored and synced again before the second optimizer step, with ways imitated."""
    named = "--explore.share 0.25 --explore.where policy --explore.credit graph --graft.source way --optim.num-minibatches 2"
    more = "--seed 2 --rollout.horizon 8 --evaluation.tasks 2 --evaluation.no-greedy"
    [metrics] = run(tmp_path, "forks", "--engine", "vllm", *named.split(), *more.split())
    assert (
        metrics["forks"] > 0 < metrics["ways"]
        and metrics["gradient_norm"] > 0
        and 0 < metrics["logprob_difference_max"] < 1e-3
    )
    assert metrics["turns_sampled"] > 0 and metrics["forks_failed"] == 0
