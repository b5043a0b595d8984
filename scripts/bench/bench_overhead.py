"""Measure the CPU seconds of an iteration of GRPO, of the paper's T-STAR (each --graft.keep) and of T-STAR by state, by phase, interleaved.

    python scripts/bench/bench_overhead.py [--envs hotpotqa sokoban-easy blocksworld-stack] [--iterations 5] [--samples 16]
    python scripts/bench/bench_overhead.py --other ../before    # an iteration of the preset here and in another checkout, in turn

All sides play the built-in policy with its preset, the same tasks with the same seeds. The learning rate is next to nothing, so that
every iteration plays the same episodes on all sides and only what is done with them differs; the optimizer's steps are taken. With
--graft.keep all, pairs are drawn from all iterations so far, at least 16 an iteration. The first iteration of each side warms up and is
not counted. A ratio is the median of the iterations' own ratios, of seconds per sampled turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from spread import spread

from tstar_envs import find_entry
from tstar_train.build import build
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.loop import Trainer, iterate
from tstar_train.presets import choose, with_nodes

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("hotpotqa", "sokoban-easy", "blocksworld-stack")
PHASES = ("rollout", "tree", "valuation", "grafting", "update")


def config_of(env: str, samples: int | None) -> Config:
    """The preset of an environment's built-in policy with the paper's tree, standing still."""
    config = with_nodes(choose(find_entry(env), "auto")[0], "depth")
    tree = config.tree if samples is None else replace(config.tree, kl_samples=samples)
    return replace(config, processes=1, tree=tree, optim=replace(config.optim, learning_rate=1e-12))


def seconds_of(trainer: Trainer, number: int) -> dict[str, float]:
    """CPU seconds of one iteration by phase, and ``all``; ``turns`` is the number of turns that it sampled."""
    began, turns = time.process_time(), trainer.turns
    result = iterate(trainer, number, now=time.process_time)
    return {**result.seconds, "all": time.process_time() - began, "turns": trainer.turns - turns}


def keeping(config: Config, keep: Literal["all", "iteration"]) -> Config:
    """A configuration with another ``graft.keep``."""
    return replace(config, graft=replace(config.graft, keep=keep))


def sides_of(config: Config) -> dict[str, Config]:
    """What is compared, the base first."""
    by_depth, by_state = config, with_nodes(config, "state")
    solved = replace(by_state, tree=replace(by_state.tree, values="bellman"))
    ways = replace(solved, graft=replace(solved.graft, enabled=True, source="way"))
    forks = replace(solved, explore=replace(solved.explore, share=0.5))
    untried = replace(forks, explore=replace(forks.explore, first="untried"), graft=ways.graft)
    return {
        "GRPO": replace(config, tstar=False),
        "T-STAR, the paper's tree, --graft.keep iteration": keeping(by_depth, "iteration"),
        "T-STAR, the paper's tree, --graft.keep all": keeping(by_depth, "all"),
        "T-STAR by state": by_state,
        "--tree.values bellman": solved,
        "--graft.source way": ways,
        "--explore.share 0.5": forks,
        "--explore.share 0.5 --graft.source way": replace(forks, graft=ways.graft),
        "--explore.share 0.5 --explore.first untried --graft.source way": untried,
    }


def line(env: str, name: str, spent: list[dict[str, float]], base: list[dict[str, float]]) -> str:
    """One row of the table; forks begin in the middle of an episode, so their side plays fewer turns."""
    ratios = [(a["all"] / a["turns"]) / (b["all"] / b["turns"]) for a, b in zip(spent, base, strict=True)]
    turns = statistics.median(s["turns"] for s in spent)
    seconds = [f"{statistics.median(s[phase] for s in spent):.3f}" for phase in ("all", *PHASES)]
    over = "" if spent is base else spread(ratios)
    return f"| {env} | {name} | {over} | {turns:,.0f} | " + " | ".join(seconds) + " |"


def summary(env: str, found: dict[str, list[dict[str, float]]]) -> str:
    """One row of the second table: what the paper's tree and nodes by state add to GRPO."""
    base, tree, state = (
        found[name]
        for name in ("GRPO", "T-STAR, the paper's tree, --graft.keep iteration", "T-STAR by state")
    )
    over = [spread([a["all"] / b["all"] for a, b in zip(side, base, strict=True)]) for side in (tree, state)]
    alone, its_tree, graph = (
        statistics.median(s[phase] for s in side)
        for side, phase in ((base, "all"), (tree, "tree"), (state, "tree"))
    )
    update = statistics.median(a["update"] - b["update"] for a, b in zip(tree, base, strict=True))
    return f"| {env} | {alone:.2f} | {over[0]} | {its_tree:.2f} | {update:.2f} | {over[1]} | {graph:.3f} |"


def alone(env: str, iterations: int) -> list[dict[str, float]]:
    """CPU seconds of iterations of an environment's preset, the first not counted."""
    trainer = build(config_of(env, None), SingleProcess())
    return [seconds_of(trainer, number) for number in range(iterations + 1)][1:]


def beside(other: Path, envs: list[str], iterations: int, rounds: int) -> None:
    """Print a table of the presets' iterations in two checkouts, which take turns in processes of their own."""
    print(f"| environment | before | now | now over before | {' | '.join(PHASES)} |\n" + "|---" * 9 + "|")
    for env in envs:
        found: dict[Path, list[list[dict[str, float]]]] = {other: [], ROOT: []}
        for _ in range(rounds):
            for root, measured in found.items():
                done = subprocess.run(
                    [sys.executable, __file__, "--child", "--envs", env, "--iterations", str(iterations)],
                    env={**os.environ, "PYTHONPATH": str(root)},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise SystemExit(done.stderr)
                measured.append(json.loads(done.stdout.splitlines()[-1]))
        medians = {
            root: [
                {name: statistics.median(s[name] for s in spent) for name in ("all", *PHASES)}
                for spent in measured
            ]
            for root, measured in found.items()
        }
        ratios = [a["all"] / b["all"] for a, b in zip(medians[ROOT], medians[other], strict=True)]
        cells = [
            " to ".join(f"{statistics.median(m[phase] for m in medians[root]):.2f}" for root in found)
            for phase in PHASES
        ]
        whole = [f"{statistics.median(m['all'] for m in medians[root]):.2f}" for root in found]
        print(f"| {env} | {' | '.join(whole)} | {spread(ratios)} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--envs", nargs="+", default=list(FAMILIES), help="environment ids (default: one of each family)"
    )
    parser.add_argument(
        "--iterations",
        type=int,
        default=5,
        help="measured iterations per method and environment, after one to warm up (default: %(default)s)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        help="samples per context that estimate the KL divergence (default: the preset's)",
    )
    parser.add_argument("--other", type=Path, help="another checkout to measure the presets in, in turn")
    parser.add_argument("--rounds", type=int, default=3, help="with --other (default: %(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.child:
        print(json.dumps(alone(asked.envs[0], asked.iterations)))
        return
    if asked.other is not None:
        if not (asked.other / "tstar_train").is_dir():
            parser.error(
                f"--other {asked.other} is no checkout of this project: it has no folder tstar_train"
            )
        print("CPU seconds of one thread, medians of the rounds' median iterations; phases before to now\n")
        beside(asked.other.resolve(), asked.envs, asked.iterations, asked.rounds)
        return
    print("CPU seconds of one thread, medians of iterations\n")
    titles = [
        "environment",
        "method",
        "over GRPO at equal turns",
        "turns",
        "all, s",
        *(f"{p}, s" for p in PHASES),
    ]
    print(f"| {' | '.join(titles)} |\n" + "|---" * len(titles) + "|")
    rows = []
    for env in asked.envs:
        sides = sides_of(config_of(env, asked.samples))
        trainers = [build(config, SingleProcess()) for config in sides.values()]
        spent: list[list[dict[str, float]]] = [[] for _ in trainers]
        for number in range(asked.iterations + 1):
            # Whoever comes first finds colder caches, so each does in turn.
            for place in range(len(trainers)):
                side = (place + number) % len(trainers)
                spent[side].append(seconds_of(trainers[side], number))
        for name, seconds in zip(sides, spent, strict=True):
            print(line(env, name, seconds[1:], spent[0][1:]), flush=True)
        rows.append(summary(env, {name: s[1:] for name, s in zip(sides, spent, strict=True)}))
    print(
        "\n| environment | GRPO, s | the paper's tree, over GRPO | its tree, s | its update beyond GRPO's, s "
        f"| by state, over GRPO | its graph, s |\n{'|---' * 7}|"
    )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
