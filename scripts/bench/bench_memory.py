"""Measure the memory of many environments in one process, of every family, beside another checkout.

    git worktree add ../before f093721
    python scripts/bench/bench_memory.py --other ../before

Each measurement is a process of its own: it makes one environment and resets it, which loads the family's data, and then the others, each
at the next task of the train split. Memory is the private memory of the process (``Private_*`` of smaps, Linux). What an instance takes is
the growth from the first to the last, divided by their number: its state, and what is kept of its task. The sides run in turn.
"""

from __future__ import annotations

import gc
import json
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from spread import spread

ROOT = Path(__file__).resolve().parents[2]
CHILD = "--one"  # first argument of a process that this program starts


@dataclass(frozen=True)
class Options:
    """Measure the memory of many environments in one process."""

    other: Path | None = None
    """Another checkout to measure beside this one."""
    what: tuple[str, ...] = (
        "tstar/ALFWorld",
        "tstar/WebShop",
        "tstar/Sokoban-easy",
        "tstar/Blocksworld-stack",
        "tstar/HotpotQA",
    )
    """Ids of the environments to measure."""
    instances: int = 1024
    """Environments that live at the same time."""
    rounds: int = 3
    """Measurements of each side."""


def main(options: Options) -> None:
    """Print a row for each environment."""
    if options.instances < 2 or options.rounds < 1:
        raise SystemExit("--instances must be 2 or more, and --rounds 1 or more")
    sides = {"now": ROOT} | ({"before": options.other.resolve()} if options.other else {})
    titles = [f"kB an instance, {side}" for side in sides] + [f"MB in all, {side}" for side in sides]
    ratios = ["now : before"] if "before" in sides else []
    print(f"| {options.instances:,} environments | {' | '.join([*titles, *ratios])} |")
    print(f"|{'---|' * (1 + len(titles) + len(ratios))}")
    for env in options.what:
        each: dict[str, list[float]] = {side: [] for side in sides}
        whole: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, root in sides.items():
                first, last = _measured(root, env, options.instances)
                each[side].append((last - first) / (options.instances - 1))
                whole[side].append(last / 1024)
        cells = [f"{statistics.median(found):.2f}" for found in each.values()]
        cells += [f"{statistics.median(found):.0f}" for found in whole.values()]
        if ratios:
            cells.append(spread([now / old for now, old in zip(each["now"], each["before"], strict=True)], 2))
        print(f"| {env.removeprefix('tstar/')} | {' | '.join(cells)} |", flush=True)


def _measured(root: Path, env: str, instances: int) -> tuple[float, float]:
    """Measure with the packages of a checkout: kB with the first environment, and with all."""
    done = subprocess.run(
        [sys.executable, __file__, CHILD, env, str(instances)],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{env} in {root} ended with status {done.returncode}")
    first, last = json.loads(done.stdout)
    return first, last


def _live(env: str, instances: int) -> tuple[float, float]:
    """Hold environments at once, and measure the memory with the first and with all, in kB."""
    import gymnasium as gym

    import tstar_envs  # noqa: F401 - registers the ids

    kept, found = [], []
    tasks: list[str] = []
    for number in range(instances):
        made = gym.make(env, split="train", disable_env_checker=True).unwrapped
        tasks = tasks or made.task_ids()
        # The results of the reset are held as a loop over episodes holds them.
        kept.append((made, made.reset(options={"task": tasks[number % len(tasks)]})))
        if number in (0, instances - 1):
            gc.collect()
            found.append(_private())
    return found[0], found[1]


def _private() -> float:
    text = Path("/proc/self/smaps_rollup").read_text()
    return float(sum(int(size) for size in re.findall(r"^Private_\w+:\s+(\d+) kB$", text, re.MULTILINE)))


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(_live(sys.argv[2], int(sys.argv[3]))))
    else:
        main(tyro.cli(Options))
