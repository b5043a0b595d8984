"""CPU seconds of an iteration with T-STAR and without, by phase, both sides interleaved in one process.

    python scripts/bench_overhead.py [--envs hotpotqa sokoban-easy blocksworld-stack] [--iterations 5] [--samples 16]

Both sides play the built-in policy with its preset, the same tasks with the same seeds. The learning rate is next to nothing, so that
every iteration plays the same episodes on both sides and only what is done with them differs; the optimizer's steps are taken. The
first iteration of each side warms up and is not counted. A ratio is the median of the iterations' own ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch

from tstar_envs import find_entry
from tstar_train.build import build
from tstar_train.config import Config
from tstar_train.loop import Trainer, iterate
from tstar_train.presets import choose
from tstar_train.world import Alone

FAMILIES = ("hotpotqa", "sokoban-easy", "blocksworld-stack")


def config_of(env: str, samples: int | None) -> Config:
    """The preset of an environment's built-in policy, standing still."""
    config = choose(find_entry(env), "auto")[0]
    tree = config.tree if samples is None else replace(config.tree, kl_samples=samples)
    return replace(config, processes=1, tree=tree, optim=replace(config.optim, learning_rate=1e-12))


def seconds_of(trainer: Trainer, number: int) -> dict[str, float]:
    """CPU seconds of one iteration by phase, and ``all``."""
    began = time.process_time()
    result = iterate(trainer, number, now=time.process_time)
    return {**result.seconds, "all": time.process_time() - began}


def line(env: str, mine: list[dict[str, float]], others: list[dict[str, float]]) -> str:
    """One row of the table."""
    ratios = [a["all"] / b["all"] for a, b in zip(mine, others, strict=True)]

    def median(side: list[dict[str, float]], *phases: str) -> str:
        return " + ".join(f"{statistics.median(s[phase] for s in side):.2f}" for phase in phases)

    phases = ("rollout", "tree", "valuation", "grafting", "update")
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"| {env} | {median(others, 'all')} | {median(mine, 'all')} | {spread} | {median(others, *phases)} | {median(mine, *phases)} |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", nargs="+", default=list(FAMILIES))
    parser.add_argument("--iterations", type=int, default=5, help="of each side and environment, after one to warm up")
    parser.add_argument("--samples", type=int, help="of the KL; the preset's where it is not given")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("phases: rollout + tree + valuation + grafting + update; CPU seconds of one thread, medians\n")
    print("| environment | GRPO | T-STAR | ratio | phases of GRPO | phases of T-STAR |\n|---|---|---|---|---|---|")
    for env in asked.envs:
        config = config_of(env, asked.samples)
        sides = [build(replace(config, tstar=tstar), Alone()) for tstar in (True, False)]
        spent: list[list[dict[str, float]]] = [[], []]
        for number in range(asked.iterations + 1):
            for side in (0, 1) if number % 2 else (1, 0):  # whoever comes first finds colder caches
                spent[side].append(seconds_of(sides[side], number))
        print(line(env, spent[0][1:], spent[1][1:]), flush=True)


if __name__ == "__main__":
    main()
