"""The parts of ``check_gpu.py`` that need no model of their own: parity, zero, ranks and tests."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_runs import ROOT, SHORT, Bench, Program, figures, memory, phases, records, seconds, training

ONE = ["--processes", "1"]
STAGE = ["--optim.zero-stage", "2"]  # the figures of docs/results/gpu.md are of ZeRO-2
COMPARED = ("success", "base_loss", "gradient_norm", "tree_nodes_after", "grafts", "logprob_difference_max")


def options(env: str, bench: Bench, iterations: int) -> list[str]:
    """A short run of a built-in policy."""
    small = "--rollout.tasks-per-iteration 4 --rollout.group-size 4".split() if bench.tiny else []
    return ["--env", env, "--iterations", str(iterations), *SHORT, *small]


def first_replies(run: Path) -> dict[tuple[str, int, int], str]:
    """What the policy wrote in the first iteration, by task, member and turn, of the groups whose episodes are kept."""
    episodes = [line for line in records(run / "episodes.jsonl") if line["extra"]["iteration"] == 1]
    return {
        (episode["task"], episode["sample"], turn): step["reply"]
        for episode in episodes
        for turn, step in enumerate(episode["steps"])
    }


def parity(bench: Bench, until: float) -> None:
    """The same seed on the CPU and on the GPU, then another iteration from the checkpoint; one program at a time on the GPU."""
    envs, iterations = ("sokoban-easy", "hotpotqa"), 2 if bench.tiny else 3
    gpu = ["--device", bench.device]
    ways = {"cpu": ["--device", "cpu"], "gpu": gpu, "gpu, half": [*gpu, "--optim.dtype", "bfloat16"]}
    runs = {(env, way): bench.folder / f"{env}-{way[-4:]}" for env in envs for way in ways}

    def start(env: str, way: str) -> Program:
        return training(bench, runs[env, way], *options(env, bench, iterations), *ONE, *ways[way])

    def end(env: str, way: str, program: Program) -> None:
        done, run = program.done(until - time.monotonic()), runs[env, way]
        taken = {"seconds": seconds(run), "phases": phases(run), "memory_gib": memory(run)}
        bench.say(env, on=way, result=done.said, **figures(run, *COMPARED), **taken)

    on_the_cpu = {env: start(env, "cpu") for env in envs}
    for env in envs:
        end(env, "gpu", start(env, "gpu"))
    for env, program in on_the_cpu.items():
        end(env, "cpu", program)
        own, other = (first_replies(runs[env, way]) for way in ("cpu", "gpu"))
        both = own.keys() & other.keys()
        equal = sum(own[key] == other[key] for key in both)
        counts = {"on_both": len(both), "equal": equal, "on_one_only": len(own.keys() ^ other.keys())}
        bench.say("replies of the first iteration, CPU against GPU", env=env, **counts)
    for env in envs:
        run = runs[env, "gpu"]
        again = [sys.executable, "-m", "tstar_train", "--resume", run, "--iterations", iterations + 1]
        done = Program(again, bench.folder / f"{env}-resumed.log").done(until - time.monotonic())
        bench.say("resumed on the GPU", env=env, result=done.said, **figures(runs[env, "gpu"], *COMPARED[:3]))
        end(env, "gpu, half", start(env, "gpu, half"))


def zero(bench: Bench, until: float) -> None:
    """Plain torch and ZeRO-2, one process each."""
    started = {}
    for optimizer in ("torch", "deepspeed"):
        run = bench.folder / f"zero-{optimizer}"
        given = [
            *options("sokoban-easy", bench, 3),
            *ONE,
            "--device",
            bench.device,
            "--learner",
            optimizer,
            *STAGE,
        ]
        started[optimizer] = run, training(bench, run, *given)
    for optimizer, (run, program) in started.items():
        done = program.done(until - time.monotonic())
        logged = figures(run, "success", "base_loss", "gradient_norm")
        taken = {"seconds": seconds(run), "memory_gib": memory(run)}
        bench.say("sokoban-easy", optimizer=optimizer, result=done.said, **logged, **taken)


def ranks(bench: Bench, until: float) -> None:
    """Two processes on one GPU: refused with what to do where each wants one of its own, else the figures of one process."""
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    first = f"{bench.device}:0" if bench.device == "cuda" else "cpu"
    shared = ["--device", first]
    cases: dict[str, tuple[list[str], list[str]]] = {
        "one process": ([], [*shared, *ONE]),
        "torchrun, two, --device auto": (torchrun, []),
        f"torchrun, two, --device {first}": (torchrun, shared),
        f"torchrun, two, --device {first}, ZeRO-2": (torchrun, [*shared, "--learner", "deepspeed", *STAGE]),
        f"--processes 2 --device {first}": ([], [*shared, "--processes", "2"]),
    }
    started = {}
    for number, (name, (launcher, given)) in enumerate(cases.items()):
        run = bench.folder / f"ranks-{number}"
        base = options("sokoban-easy", bench, 2)
        started[name] = run, training(bench, run, *base, *given, launcher=launcher)
    for name, (run, program) in started.items():
        done = program.done(until - time.monotonic())
        logged = figures(run, "success", "base_loss", "gradient_norm")
        traces = done.errors.count("Traceback (most recent call last)")
        bench.say("two processes", how=name, result=done.said, stack_traces=traces, **logged)


def tests(bench: Bench, until: float) -> None:
    """tests/train with the GPU in sight, and what failed again without it."""
    ignored = [] if installed("selenium") else [f"--ignore={path}" for path in of_browsers()]
    chosen = (
        ["tests/train/run/test_clock.py", "tests/train/learner/test_finite.py"]
        if bench.tiny
        else ["tests/train"]
    )
    workers = "1" if bench.tiny else "8"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-vv",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "--tb=line",
        "-n",
        workers,
    ]
    in_sight = {"TSTAR_TEST_ON_GPU": "1"}
    everything = [*command, "--dist", "worksteal", *ignored, *chosen]
    done = Program(everything, bench.folder / "tests.log", in_sight).done(until - time.monotonic() - 40)
    ended = results(done.printed)
    failed = [name for name, how in ended.items() if how in ("FAILED", "ERROR")]
    counts = {
        how.lower(): list(ended.values()).count(how) for how in ("PASSED", "FAILED", "ERROR", "SKIPPED")
    }
    bench.say("tests", run="with the GPU", ended=done.said[:80], **counts, seconds=done.seconds)
    again: dict[str, str] = {}
    if failed:
        rest = Program([*command, *failed[:60]], bench.folder / "again.log").done(until - time.monotonic())
        again = results(rest.printed)
        counts = {
            how.lower(): list(again.values()).count(how) for how in ("PASSED", "FAILED", "ERROR", "SKIPPED")
        }
        bench.say(
            "tests", run="what failed, without the GPU", ended=rest.said[:80], **counts, seconds=rest.seconds
        )
    reasons = dict(re.findall(r"^(?:FAILED|ERROR) (.+?) - (.*)$", done.printed, re.MULTILINE))
    for name in failed[:40]:
        without = again.get(name, "not run").lower()
        bench.say("what failed", test=name, without_the_gpu=without, reason=reasons.get(name, "")[:240])


def results(printed: str) -> dict[str, str]:
    """How each test ended, of what ``pytest -v -n`` printed so far."""
    found = re.findall(
        r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) (.*?)\s*$", printed, re.MULTILINE
    )
    return {name: how for how, name in found}


def installed(name: str) -> bool:
    """Whether a package can be imported."""
    return find_spec(name) is not None


def of_browsers() -> list[str]:
    """Test files that drive a browser, which cannot be collected without its package."""
    found = (ROOT / "tests/train").rglob("test_*.py")
    return [
        str(path) for path in found if re.search(r"^from (chromium|selenium)", path.read_text(), re.MULTILINE)
    ]


FUNCTIONS: dict[str, Callable[[Bench, float], None]] = {
    "parity": parity,
    "zero": zero,
    "ranks": ranks,
    "tests": tests,
}


def bench_of(names: Any) -> tuple[Bench, float]:
    """What ``check_gpu.py`` asks of a part's program: the bench, and when it is to end, by ``time.monotonic``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(names))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=300.0)
    asked = parser.parse_args()
    end = time.monotonic() + asked.limit - 3  # to write down what was found
    return Bench(asked.device, asked.folder, asked.lines, asked.part), end


if __name__ == "__main__":
    bench, until = bench_of(FUNCTIONS)
    FUNCTIONS[bench.part](bench, until)
