"""The parts ``plan``, ``plan-small`` and ``zero-3b`` of ``check_gpu.py``: planned and measured memory of random Qwen2.5 shapes."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_parts import bench_of
from gpu_runs import ROOT, SHORT, Bench, Program, memory, phases, records, training

from tstar_train.build import build
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.learner.batch import MicroBatch
from tstar_train.loop import PhaseTimer, Trainer, iterate
from tstar_train.plan import load_model_config, plan
from tstar_train.presets import large, with_options
from tstar_train.rollout.stream import TaskStream

GIB = 1 << 30
TURNS, MOST_TOKENS, CASE_SECONDS = 2, 256, 90.0  # of an iteration that is timed; a case's time
QUESTIONS = ROOT / "tstar_envs/envs/search_qa/data/hotpotqa.train.jsonl.gz"
# Way -> what it trains and how.
WAYS: dict[str, dict[str, Any]] = {
    "adapters": {"lora.rank": 32},
    "whole": {},
    "whole, ZeRO-2": {"learner": "deepspeed", "optim.zero_stage": 2},
}


def config_of(model: Path, way: str, device: str, tiny: bool) -> Config:
    """``--preset qwen2.5-3b`` on questions, of as many turns as there is time for."""
    preset = large("tstar/HotpotQA", "qwen2.5-3b", str(model))
    config = with_options(preset, {"device": device, "iterations": 2, **WAYS[way]})
    rollout = replace(config.rollout, horizon=TURNS)
    if tiny:
        rollout = replace(rollout, tasks_per_iteration=2, group_size=4, max_tokens=96, context_tokens=1536)
    return replace(config, rollout=rollout)


def yes_or_no() -> list[str]:
    """Training questions whose answer is yes or no, which chance finds."""
    content = gzip.decompress(QUESTIONS.read_bytes()).decode().splitlines()
    return [line["id"] for line in map(json.loads, content) if set(line["golden_answers"]) & {"yes", "no"}]


def at_the_bounds(trainer: Trainer, limit: int) -> PhaseTimer:
    """The largest that the plan reckons with: all rows sampled from behind full contexts, and a row of full length in the update.

    Returns:
        Phases ``sampling``, ``reference``, ``backward`` and ``step``: seconds of the second time, GiB at once of either.
    """
    config, model, learner = trainer.config, trainer.policy.model, trainer.learner
    numbers, size = torch.Generator().manual_seed(0), int(model.config.vocab_size)
    rows, replies = config.rollout.tasks_per_iteration * config.rollout.group_size, 8

    def ids(count: int, length: int) -> torch.Tensor:
        return torch.randint(0, size, (count, length), generator=numbers)

    timer, most = PhaseTimer(time.perf_counter, model.device), dict[str, float]()
    for turn in range(2):
        contexts = ids(rows, limit - replies).tolist()
        trainer.engine.generate(contexts, [f"{turn}/{row}" for row in range(rows)], max_tokens=replies)
        trainer.engine.release()
        timer.phase("sampling")
        row = ids(1, limit).to(model.device)
        wanted = torch.ones_like(row, dtype=torch.bool)
        wanted[:, 0] = False
        micro = MicroBatch(row, wanted)
        learner.reference(micro)
        timer.phase("reference")
        learner.backward(-learner.forward(micro).logprobs.mean())
        timer.phase("backward")
        learner.end_part("base")
        learner.add_part("base")
        learner.apply(1.0)
        learner.end_iteration()
        timer.phase("step")
        most = {name: max(gib, most.get(name, 0.0)) for name, gib in timer.memory.items()}
    timer.memory = most
    return timer


def measure(model: Path, way: str, device: str, tiny: bool) -> dict[str, Any]:
    """The bounds, then an iteration, in this process, without a run's checkpoints (a whole one of 3B has 55 GB)."""
    config = config_of(model, way, device, tiny)
    made = plan(config, load_model_config(config), 1)
    always = sum(made.always.values())
    row: dict[str, Any] = {
        "planned_always": always / GIB,
        "planned_sampling": (always + sum(made.sampling.values())) / GIB,
        "planned_update": (always + sum(made.update.values())) / GIB,
    }
    try:
        began = time.perf_counter()
        trainer = build(config, SingleProcess())
        trainer.stream = TaskStream(yes_or_no(), config.rollout.tasks_per_iteration, config.seed)
        row |= {"seconds_to_build": time.perf_counter() - began, "held_after_build": held(device)}
        timer = at_the_bounds(trainer, made.limit)
        row |= {f"measured_{name}": gib for name, gib in timer.memory.items()}
        row |= {"held_after_steps": held(device), "seconds_at_the_bounds": timer.seconds}
        if device != "cpu":
            row["reserved"] = torch.cuda.max_memory_reserved() / GIB
    except torch.OutOfMemoryError as error:
        return row | {"result": f"out of memory: {str(error).partition(chr(10))[0]:.200}"}
    print(json.dumps(row | {"result": "the bounds alone"}), flush=True)  # should time run out
    shorter = min(MOST_TOKENS, config.rollout.max_tokens)
    trainer.config = replace(config, rollout=replace(config.rollout, max_tokens=shorter))
    result = iterate(trainer, 1)
    names = (
        "response_tokens",
        "success",
        "tree_nodes_before",
        "tree_nodes_after",
        "tree_divergent_nodes",
        "kl_scored",
        "grafts",
        "gradient_norm",
        "logprob_difference_max",
    )
    happened = {name: result.metrics.get(name) for name in names}
    return row | {
        "result": "ok",
        "what_happened": happened,
        "seconds": result.seconds,
        "memory": result.memory,
    }


def held(device: str) -> float:
    """GiB of tensors."""
    return torch.cuda.memory_allocated() / GIB if device != "cpu" else 0.0


def by_command_line(bench: Bench, model: Path, until: float) -> None:
    """The command of docs/llm.md with adapters, as short as can be, and one iteration more from its checkpoint."""
    run = bench.folder / "lora-run"
    given = [
        "--env",
        "hotpotqa",
        "--preset",
        "qwen2.5-3b",
        "--model",
        model,
        "--lora.rank",
        "32",
        "--device",
        bench.device,
    ]
    given += ["--iterations", "2", "--rollout.horizon", "1", "--env-option", "horizon=1", *SHORT]
    given += ["--rollout.max-tokens", "64"] if bench.tiny else ["--rollout.max-tokens", "256"]
    planned = training(bench, bench.folder / "dry", *given, "--dry-run").done(until - time.monotonic())
    bench.say(
        "--dry-run of 0.5B with adapters",
        said=[line for line in planned.printed.splitlines() if line.strip()],
    )
    done = training(bench, run, *given).done(until - time.monotonic())
    again = [sys.executable, "-m", "tstar_train", "--resume", run, "--iterations", 3]
    resumed = Program(again, bench.folder / "lora-resumed.log").done(until - time.monotonic())
    bench.say(
        "python -m tstar_train, 0.5B with adapters",
        result=done.said,
        resumed=resumed.said,
        iterations=len(records(run / "metrics.jsonl")),
        memory_gib=memory(run),
        phases=phases(run),
        whole_run_seconds=done.seconds,
    )


def compared(bench: Bench, size: str, ways: Sequence[str], until: float, most: float = CASE_SECONDS) -> None:
    """Each case is a process of its own, since what one leaves behind would be measured in the next."""
    model = bench.folder / size
    maker = [sys.executable, Path(__file__).with_name("gpu_models.py"), size, model, bench.device]
    made = Program(maker, bench.folder / f"make-{size}.log").done(until - time.monotonic())
    bench.say("models", size=size, made=made.said, seconds=made.seconds)
    for way in ways:
        given = [sys.executable, __file__, "--case", model, way, bench.device, int(bench.tiny)]
        log = bench.folder / f"plan-{size}-{way}.log".replace(" ", "")
        # A whole model in half precision averages its weights on the CPU.
        threads = {} if bench.tiny else {"OMP_NUM_THREADS": "8"}
        done = Program(given, log, threads).done(min(most, until - time.monotonic()))
        lines = [line for line in done.printed.splitlines() if line.startswith("{")]
        row = json.loads(lines[-1]) if lines else {"result": done.said}
        iteration = {name: row.pop(name) for name in ("what_happened", "seconds", "memory") if name in row}
        bench.say("GiB, planned and measured", size=size, way=way, **row)
        happened = iteration.pop("what_happened", {})
        bench.say("an iteration", size=size, way=way, result=done.said, **happened, **iteration)


def main(bench: Bench, until: float) -> None:
    """See the module."""
    large_size, small_size = ("tiny", "tiny") if bench.tiny else ("3B", "0.5B")
    if bench.part == "plan":
        compared(bench, large_size, list(WAYS), until)
    elif bench.part == "zero-3b":
        compared(bench, large_size, ["whole, ZeRO-2"], until, until - time.monotonic())
    else:
        compared(bench, small_size, ["whole", "adapters"], until)
        by_command_line(bench, bench.folder / small_size, until)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        case = argparse.ArgumentParser()
        for name in ("model", "way", "device", "tiny"):
            case.add_argument(name)
        asked = case.parse_args(sys.argv[2:])
        found = measure(Path(asked.model), asked.way, asked.device, asked.tiny == "1")
        print(json.dumps(found))
    else:
        main(*bench_of(["plan", "plan-small", "zero-3b"]))
