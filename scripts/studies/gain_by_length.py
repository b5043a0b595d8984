"""Gain of T-STAR over its base against the length of a task (docs/results/dynamics.md): under 10 steps, 10 to 15, and over 15.

    python scripts/studies/gain_by_length.py                                  # all groups of the records that have both methods
    python scripts/studies/gain_by_length.py --groups blocksworld sokoban     # some of them

The length of a task is its optimum where the environment knows it (Sokoban's moves, of which a turn of -medium and -hard holds several;
Blocksworld's operators), else the steps that the expert takes, which knows the whole state (``oracle``). It is not the length of the
policy's episodes, which depends on the policy. Differences are paired by task, of means over the seeds that both methods have; intervals
are 95 % bootstrap intervals over tasks; of fewer than 20 tasks only the number is printed. The paper (Analysis) reports +5 to +8 points
beyond 15 steps and +2 to +4 below 10.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from tstar_envs import TextEnv, UnknownOption
from tstar_train.build import held_out_tasks, make_env

try:
    from scripts.studies.compare_algorithms import RESULTS, config_of, planned, read
    from scripts.studies.compared_tables import interval, methods_of, paired
except ModuleNotFoundError:  # run as a script of this folder
    from compare_algorithms import RESULTS, config_of, planned, read
    from compared_tables import interval, methods_of, paired

BINS = (("under 10", 0, 9), ("10 to 15", 10, 15), ("over 15", 16, 10**9))
HORIZON = 1_000  # the expert's: enough for every task
DRAWS = 10_000  # of the bootstrap
LEAST = 20  # tasks of which a mean says something
# By record: what is compared, T-STAR in its forms with the algorithm that it stands on.
PAIRS = {
    "algorithms": (
        ("tstar-paper", "grpo"),
        ("tstar-grpo", "grpo"),
        ("tstar-state", "grpo"),
        ("bellman", "grpo"),
        ("forks-way", "grpo"),
    ),
    "evidence": (("tstar-grpo", "grpo"), ("graph-grpo", "grpo")),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Print the gain over the base by the length of the task."""

    groups: tuple[str, ...] = ()
    """Groups of the plans; default: all on test tasks."""


def length_of(env: TextEnv[Any, Any], task: str) -> int:
    """Find the length of a task: its optimum, else the expert's steps.

    Args:
        env: environment that holds the task.
        task: id of the task.

    Raises:
        UnknownOption: the expert does not solve it.
    """
    _, info = env.reset(options={"task": task})
    if info.get("optimal_length") is not None:
        return int(info["optimal_length"])
    steps, done = 0, False
    while not done:
        reply = env.oracle()
        if reply is None:
            break
        _, _, terminated, truncated, info = env.step(reply)
        steps, done = steps + 1, terminated or truncated
    if not info.get("success"):
        raise UnknownOption(f"the expert does not solve task {task!r} within its horizon")
    return steps


def lengths_of(plan: Mapping[str, Any], group: str, count: int) -> np.ndarray:
    """Find the lengths of the held-out tasks of a group, shape (count,)."""
    run = next(planned(dict(plan), [group]))
    config = config_of(run, Path())
    config = dataclasses.replace(config, env_options={**config.env_options, "horizon": HORIZON})
    env = make_env(config)
    return np.array([length_of(env, task) for task in held_out_tasks(env, config)[:count]])


def unpaired(longer: np.ndarray, shorter: np.ndarray, seed: int = 0) -> str:
    """Difference of the means of two sets of tasks, with its 95 % bootstrap interval over the tasks of each."""
    rng = np.random.default_rng(seed)
    means = [rng.choice(part, (DRAWS, len(part))).mean(axis=1) for part in (longer, shorter)]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return f"{longer.mean() - shorter.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def rows(
    lines: Sequence[dict[str, Any]], group: str, pairs: Sequence[tuple[str, str]], lengths: np.ndarray
) -> Iterator[str]:
    """Yield a table row for each pair of methods that the record has; its last cell is empty where only one length has enough tasks.

    Args:
        lines: the record.
        group: of the record.
        pairs: method and base.
        lengths: of each held-out task, in the record's order.
    """
    methods = methods_of(list(lines), group)
    for first, base in pairs:
        if first not in methods or base not in methods:
            continue
        gains = paired(methods[first], methods[base], "sampled")
        seeds = len(set(methods[first].seeds) & set(methods[base].seeds))
        parts = [gains[(lengths >= low) & (lengths <= high)] for _, low, high in BINS]
        cells = [
            f"{interval(part)}, {len(part)}" if len(part) >= LEAST else f"({len(part)})" for part in parts
        ]
        kept = [part for part in parts if len(part) >= LEAST]
        if not kept:
            continue
        cells.append(unpaired(kept[-1], kept[0]) if len(kept) > 1 else "")
        yield f"| {group}: {first} - {base} | {seeds} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    options = tyro.cli(Options, description=__doc__)
    head = " | ".join(f"{name} steps, tasks" for name, _, _ in BINS)
    print(
        f"| difference at T=1 | seeds | {head} | longest - shortest |",
        "|---" * (3 + len(BINS)) + "|",
        sep="\n",
    )
    found = False
    for record, pairs in PAIRS.items():
        plan = tomllib.loads((RESULTS / f"{record}.toml").read_text())
        lines = read(RESULTS / f"{record}.jsonl")
        for group in plan["groups"]:
            name = group["name"]
            methods = methods_of(lines, name)
            wanted = name in options.groups if options.groups else group["split"] == "test"
            if not wanted or not any(set(pair) <= set(methods) for pair in pairs):
                continue
            count = len(next(iter(methods.values())).lines[0]["after"]["greedy"])
            for row in rows(lines, name, pairs, lengths_of(plan, name, count)):
                print(row, flush=True)
            found = True
    if not found:
        raise UnknownOption(f"no record in {RESULTS} has runs of {', '.join(options.groups) or 'any group'}")


if __name__ == "__main__":
    main()
