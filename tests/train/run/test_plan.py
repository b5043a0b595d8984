"""The plan of a run (``--dry-run``): its arithmetic against what a model of 100M parameters really takes, and what it says."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from train_process import run
from transformers import Phi3Config, Qwen2Config

from scripts.studies.small_models import save_small, small_model
from tstar_train.__main__ import main
from tstar_train.config import LoraConfig
from tstar_train.learner.reference import CopiedReference, average_on_device
from tstar_train.plan import operations, plan, plan_lines
from tstar_train.policy.lora import add_adapters
from tstar_train.presets import LARGE, large

ROOT = Path(__file__).resolve().parents[3]
QWEN_3B = Qwen2Config(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=11008,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=2,
    max_position_embeddings=32768,
    tie_word_embeddings=True,
)
GIB = 1 << 30

MEASURE = """
import json, resource, sys
import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from tstar_train.config import Config, LoraConfig, OptimConfig, RolloutConfig
from tstar_train.learner.batch import MicroBatch
from tstar_train.learner.reference import AdapterReference, CopiedReference
from tstar_train.learner.torch import TorchLearner
from tstar_train.plan import plan
from tstar_train.policy.lora import add_adapters
from tstar_train.policy.model import recompute_layers
from tstar_train.distributed import SingleProcess

half, recompute, rank = json.loads(sys.argv[1])
torch.set_num_threads(2)
described = Qwen2Config(vocab_size=32000, hidden_size=768, intermediate_size=2560, num_hidden_layers=10, num_attention_heads=12,
                        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True)
config = Config(env="tstar/Sokoban-easy", model="x", rollout=RolloutConfig(max_tokens=256, context_tokens=1024, tasks_per_iteration=2,
                                     group_size=2),
                optim=OptimConfig(dtype="bfloat16" if half else "float32", gradient_checkpointing=recompute, micro_tokens=1024),
                lora=LoraConfig(rank))
made = plan(config, described, 1)
torch.ones(8, 8) @ torch.ones(8, 8)
import peft, torch._dynamo  # what is imported is no part of the plan
from pathlib import Path
start = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
model = AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16 if half else torch.float32).eval()
if rank:
    add_adapters(model, rank, 32)
if recompute:
    recompute_layers(model)
average = AdapterReference(model) if rank else CopiedReference(model)
learner = TorchLearner(model, average, SingleProcess(), learning_rate=1e-5, recompute=recompute)
ids = torch.randint(0, 32000, (4, 256))
wanted = torch.ones_like(ids, dtype=torch.bool)
wanted[:, 0] = False
for _ in range(2):
    learner.reference(MicroBatch(ids, wanted))
    learner.backward(-learner.forward(MicroBatch(ids, wanted)).logprobs.mean())
    learner.end_part("base"), learner.add_part("base"), learner.apply(1.0)
    learner.end_iteration()
# Of this process alone: getrusage's figure is at least what the process that started it had.
(highest,) = [int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
peak = highest - start
update = sum(made.always.values()) + sum(made.update.values()) + sum(made.host.values())
counted = sum(p.numel() for p in model.parameters())
print(json.dumps({"planned": update, "measured": peak, "parameters": made.parameters, "counted": counted}))
"""

MEASURE_SAMPLING = """
import dataclasses, json, resource
from pathlib import Path
from types import SimpleNamespace
import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from tstar_train.config import Config, RolloutConfig
from tstar_train.engines.local import LocalEngine
from tstar_train.plan import plan
from tstar_train.policy import kv
from tstar_train.policy.model import Policy

torch.set_num_threads(2)
kv.BOUND = 1 << 26  # of the real one the same would take minutes
rows, limit, reply = 6, 1024, 8
described = Qwen2Config(vocab_size=4000, hidden_size=768, intermediate_size=2560, num_hidden_layers=2, num_attention_heads=12,
                        num_key_value_heads=4, max_position_embeddings=limit, tie_word_embeddings=True)
config = Config(env="tstar/Sokoban-easy", model="x",
                rollout=RolloutConfig(max_tokens=reply, context_tokens=limit, tasks_per_iteration=2, group_size=rows // 2))
made = plan(config, described, 1)
torch.ones(8, 8) @ torch.ones(8, 8)
import torch._dynamo
start = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
model = AutoModelForCausalLM.from_config(described, dtype=torch.float32).eval()
policy = Policy(model, SimpleNamespace(ends=frozenset([1]), end=1, pad=0), None, "x")
engine = LocalEngine(policy, config.rollout.max_sequences, limit, config.rollout.cache_gib)
contexts = torch.randint(2, 4000, (rows, limit - reply)).tolist()
engine.generate(contexts, [f"{row}" for row in range(rows)], max_tokens=reply, keys=list(range(rows)))
(highest,) = [int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
at_once = rows * kv.activations_of(model.config, 4, False).of_row(limit, limit)
planned = made.always["weights"] + sum(made.sampling.values())
print(json.dumps({"planned": planned, "measured": highest - start, "sampling": made.sampling, "at once": at_once,
                  "capacity": engine._cache.capacity, "limit": limit}))
"""


@pytest.mark.slow
def test_contexts_at_the_limit_take_what_is_planned():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE_SAMPLING],
        capture_output=True,
        text=True,
        cwd=ROOT,
        # What is freed goes back at once: of so small a model the C library keeps nearly half of all for itself.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["capacity"] == found["limit"], "doubling stops there"
    assert found["at once"] > 4 * found["sampling"]["activations of contexts"]
    assert 0.8 < found["measured"] / found["planned"] < 1.1, found


@pytest.mark.parametrize(
    ("half", "recompute", "rank"),
    [
        pytest.param(False, False, 0, marks=pytest.mark.slow, id="single"),
        pytest.param(True, True, 0, marks=pytest.mark.slow, id="half, recomputed"),
        pytest.param(False, True, 0, marks=pytest.mark.slow, id="single, recomputed"),
        pytest.param(True, True, 16, marks=pytest.mark.slow, id="adapters on half, recomputed"),
    ],
)
def test_what_is_planned_is_what_it_takes(half, recompute, rank):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE, json.dumps([half, recompute, rank])],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (
        found["parameters"] == pytest.approx(found["counted"], rel=0.05 if rank else 0)
        and found["parameters"] > 95e6
    )
    assert 0.7 < found["measured"] / found["planned"] < 1.1, found


def test_three_billion_parameters_fit_where_they_are_said_to(monkeypatch):
    """With T-STAR: adapters on one device of 80 GB, the whole model on two with ZeRO-2."""
    monkeypatch.setattr("tstar_train.plan.device_bytes", lambda device: 80 * GIB)
    config = large("tstar/ALFWorld", "qwen2.5-3b", None)
    adapters = plan(dataclasses.replace(config, lora=LoraConfig(rank=32)), QWEN_3B, 1)
    assert (
        adapters.parameters == pytest.approx(3.09e9, rel=0.01)
        and adapters.trained < 0.03 * adapters.parameters
    )
    assert adapters.peak < 40 * GIB
    whole = plan(config, QWEN_3B, 1)
    shared = plan(dataclasses.replace(config, learner="deepspeed"), QWEN_3B, 2)
    assert shared.peak < 60 * GIB and shared.always["optimizer (two moments)"] == 4 * shared.parameters
    copied = plan(dataclasses.replace(config, engine="vllm"), QWEN_3B, 1)
    assert (
        sum(copied.sampling.values()) == sum(whole.sampling.values()) + 2 * whole.parameters
        and copied.update == whole.update
    )
    pages = plan(dataclasses.replace(config, engine="paged"), QWEN_3B, 1)
    # A quarter of --rollout.cache-gib is for scoring; all other pages are there from the start.
    assert 5 * GIB < pages.sampling["keys and values"] <= 6 * GIB and pages.update == whole.update
    assert adapters.peak < whole.peak and whole.host["float32 reference"] == 4 * whole.parameters
    single = plan(
        dataclasses.replace(config, optim=dataclasses.replace(config.optim, dtype="float32")), QWEN_3B, 1
    )
    assert single.always["reference"] == 4 * single.parameters and "float32 reference" not in single.host


@pytest.mark.parametrize(
    ("processes", "gib", "where"), [(1, 80, "host"), (1, 141, "always"), (2, 80, "always"), (1, 24, "host")]
)
def test_the_average_of_a_half_precision_model_stays_on_a_device_with_room(
    monkeypatch, processes, gib, where
):
    """Before, one process kept it in main memory whatever its device had room for."""
    monkeypatch.setattr("tstar_train.plan.device_bytes", lambda device: gib * GIB)
    made = plan(large("tstar/ALFWorld", "qwen2.5-3b", None), QWEN_3B, processes)
    assert getattr(made, where)["float32 reference"] == 4 * made.parameters // processes
    assert ("float32 reference" in made.host) + ("float32 reference" in made.always) == 1
    assert average_on_device(made.parameters, processes, gib * GIB) == (where == "always")


@pytest.mark.parametrize("room", [0, 1 << 40])
def test_the_average_is_where_the_plan_says(monkeypatch, room):
    monkeypatch.setattr("tstar_train.learner.reference.device_bytes", lambda device: room)
    given = []
    monkeypatch.setattr("tstar_train.learner.reference.Shards", lambda *arguments: given.append(arguments[2]))
    model = small_model("qwen2", 300).to(torch.bfloat16)
    monkeypatch.setattr(type(model), "device", torch.device("meta"))
    CopiedReference(model)
    assert given == [torch.device("meta" if room else "cpu")]


def test_every_large_preset_has_the_papers_table():
    for name in LARGE:
        config = large("tstar/ALFWorld", name, None)
        assert (
            config.rollout.tasks_per_iteration,
            config.rollout.group_size,
            config.rollout.horizon,
            config.rollout.context_tokens,
        ) == (4, 8, 20, 4096)
        assert (
            config.optim.learning_rate,
            config.tree.eps_kl,
            config.tree.kl_samples,
            config.graft.surgical_weight,
        ) == (5e-6, 0.25, 16, 0.15)
        assert (config.iterations, config.optim.dtype, config.optim.gradient_checkpointing, config.model) == (
            160,
            "bfloat16",
            True,
            LARGE[name],
        )
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 32.0,
        "short_factor": [1.0] * 36,
        "long_factor": [1.0] * 36,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 4096,
    }
    phi = Phi3Config(
        max_position_embeddings=131072, original_max_position_embeddings=4096, rope_parameters=scaling
    )
    assert plan(large("tstar/ALFWorld", "phi-4-mini", None), phi, 1).limit == 4096


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma3", "phi4-mini", "opt"])
def test_what_is_trained_is_counted_as_it_is(name, rank):
    model = small_model(name, 600)
    config = large("tstar/ALFWorld", "qwen2.5-3b", None)
    config = dataclasses.replace(
        config,
        lora=LoraConfig(rank=rank),
        rollout=dataclasses.replace(config.rollout, max_tokens=64),
        tstar=False,
    )
    made = plan(config, model.config, 1)
    assert made.parameters == sum(p.numel() for p in model.parameters())
    if rank:
        add_adapters(model, rank, 8)
    assert made.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemma3-multimodal", "inside a larger one"),
        ("mamba", "no attention"),
        ("mistral-window", "leaves no room for a context"),
    ],
)
def test_what_the_configuration_alone_rules_out_is_said_by_a_dry_run_too(name, said, tmp_path, capsys):
    save_small(name, tmp_path / name)
    capsys.readouterr()
    assert main(["--env", "sokoban-easy", "--model", str(tmp_path / name), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert said in error and name in error and error.count("\n") == 1


def test_what_does_not_fit_is_said_with_what_helps():
    config = large("tstar/ALFWorld", "qwen2.5-3b", None)
    lines = plan_lines(plan(config, QWEN_3B, 1), config, "cpu", 1000)
    assert (
        "does not fit" in lines[-1]
        and "--lora.rank 32" in lines[-1]
        and "--optim.gradient-checkpointing" not in lines[-1]
    )
    adapters = dataclasses.replace(config, lora=LoraConfig(rank=8))
    assert "--lora.rank" not in plan_lines(plan(adapters, QWEN_3B, 1), adapters, "cpu", 1000)[-1]


def test_the_plan_names_the_importance_correction():
    config = large("tstar/ALFWorld", "qwen2.5-3b", None)
    copied = dataclasses.replace(config, engine="vllm")
    off = dataclasses.replace(copied, optim=dataclasses.replace(config.optim, correction="none"))
    for one, said in (
        (config, "none, since the local engine samples with the trainer's own weights"),
        (
            dataclasses.replace(config, engine="paged"),
            "none, since the paged engine samples with the trainer's own weights",
        ),
        (copied, "sequence-mask with ratios up to 3"),
        (off, "none (--optim.correction)"),
    ):
        lines = plan_lines(plan(one, QWEN_3B, 1), one, "cpu", 1)
        assert sum(line.startswith(f"importance correction: {said}") for line in lines) == 1


def test_each_epoch_computes_the_update_again():
    """One forward pass to sample; forward and backward, three times as much, in each epoch."""
    config = large("tstar/ALFWorld", "qwen2.5-3b", None)
    config = dataclasses.replace(
        config, optim=dataclasses.replace(config.optim, gradient_checkpointing=False)
    )
    once, thrice = (
        dataclasses.replace(config, optim=dataclasses.replace(config.optim, epochs=epochs))
        for epochs in (1, 3)
    )
    made = plan(config, QWEN_3B, 1)
    assert operations(made, once) == 2 * made.parameters * made.sampled_tokens * 4
    assert operations(made, thrice) == 2 * made.parameters * made.sampled_tokens * 10


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    out = tmp_path / "run"
    dry = ["--env", "sokoban-easy", "--dry-run", "--out", str(out)]
    assert main(dry) == 0
    printed = capsys.readouterr().out
    assert "this fits" in printed and "peak of a process" in printed and not out.exists()
    assert main([*dry, "--model", "/nowhere"]) == 2
    assert "no such folder" in capsys.readouterr().err and not out.exists()
    assert main([*dry, "--preset", "qwen2.5-3b"]) == 2
    assert "Qwen/Qwen2.5-3B-Instruct" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("given", "planned"),
    [
        pytest.param((), (12, 12), marks=pytest.mark.slow),
        pytest.param(("--episodes", 5), (8, 8), marks=pytest.mark.slow),
        (("--algo", "dapo", "--dapo.rounds", 3, "--episodes", 5), (6, 16)),
        pytest.param(("--episodes", 4), (4, 4), marks=pytest.mark.slow),
        pytest.param(("--episodes", 100), (12, 12), marks=pytest.mark.slow),
        pytest.param(("--turns", 5), (8, 8), marks=pytest.mark.slow),  # of one turn each
        pytest.param(("--algo", "gigpo", "--episodes", 1), (4, 4), marks=pytest.mark.slow),
        pytest.param(("--algo", "dapo", "--dapo.rounds", 3), (12, 36), marks=pytest.mark.slow),
        pytest.param(("--algo", "dapo", "--dapo.rounds", 1), (12, 12), marks=pytest.mark.slow),
    ],
)
def test_as_many_episodes_as_the_run_plays(
    tmp_path: Path, given: tuple[object, ...], planned: tuple[int, int]
) -> None:
    """Those that dynamic sampling drops included: each task that was taken was played."""
    options = (
        *(
            "--env",
            "hotpotqa",
            "--iterations",
            3,
            "--rollout.tasks-per-iteration",
            2,
            "--rollout.group-size",
            2,
            "--processes",
            1,
        ),
        *(
            "--rollout.horizon",
            1,
            "--rollout.max-tokens",
            8,
            "--evaluation.tasks",
            1,
            "--evaluation.samples",
            1,
        ),
        *("--evaluation.validate-every", 0, *given),
    )
    said = run(tmp_path, *options, "--dry-run").stdout
    least, most = planned
    wanted = f"{least}" if least == most else f"{least} to {most} (--dapo.rounds)"
    assert f"the run: {wanted} episodes of training, and 4 that measure" in " ".join(said.split())
    assert ("tokens of further rounds of sampling" in said) == (least < most)
    run(tmp_path, *options, "--out", tmp_path / "run")
    state = next(iter(sorted((tmp_path / "run" / "checkpoints").glob("*/state.json"), reverse=True)))
    assert least <= 2 * json.loads(state.read_text())["cursor"] <= most
