"""Measure the CPU seconds of an update whose rows share their prefixes, beside one that computes each row whole.

    python scripts/bench/bench_sharing.py [--envs hotpotqa sokoban-easy blocksworld-stack] [--rounds 5]

GRPO with the preset of the built-in policy; both sides take the same step on the same episodes, in turn in one process. The learning rate
is next to nothing. The first step of each warms up and is not counted. "Tokens shared" is the share of the rows' tokens that a
shared prefix can save; "reads shared" is the share of the keys and values that sampling reads and that one read for all members of a group
would save.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from bench_overhead import FAMILIES, config_of
from spread import spread

from tstar_train.build import build
from tstar_train.distributed import SingleProcess
from tstar_train.learner.prefixes import chunks_of
from tstar_train.learner.torch import TorchLearner
from tstar_train.loop import IterationData, PhaseTimer, Trainer, begin, make_sequences, sample, update_policy
from tstar_train.policy.kv import common_prefix
from tstar_train.types import Trajectory


class Apart(TorchLearner):
    """A learner that computes each row whole."""

    @property
    def sharing(self) -> None:
        """See ``Learner``."""
        return None


def played(env: str) -> tuple[Trainer, IterationData]:
    """A trainer and its first iteration, up to the update."""
    trainer = build(replace(config_of(env, None), tstar=False), SingleProcess())
    data = begin(trainer, 0, 0.0)
    sample(trainer, data, PhaseTimer(time.process_time, trainer.policy.model.device))
    make_sequences(trainer, data)
    return trainer, data


def update_seconds(trainer: Trainer, data: IterationData) -> float:
    """CPU seconds of one update."""
    began = time.process_time()
    update_policy(trainer, data)
    return time.process_time() - began


def tokens_shared(rows: Sequence[Sequence[int]]) -> float:
    """Share of the tokens of distinct rows that shared prefixes can save, padding not counted."""
    distinct = [list(row) for row in {tuple(row) for row in rows}]
    computed = 0
    for chunk in chunks_of(distinct, 1 << 30):
        begun = max(0, chunk.shared - 1)
        computed += begun + sum(len(distinct[row]) - begun for row in chunk.rows)
    return 1 - computed / sum(map(len, distinct))


def reads_shared(groups: Sequence[Sequence[Trajectory]]) -> float:
    """Share of the keys and values read in sampling that one read for the members of a group would save."""
    read = saved = 0.0
    for members in groups:
        for turn in range(max(len(m.turns) for m in members)):
            playing = [m.turns[turn] for m in members if len(m.turns) > turn]
            ordered = sorted(tuple(t.context) for t in playing)
            begun = common_prefix(ordered[0], ordered[-1])
            for one in playing:
                read += len(one.reply) * (len(one.context) + len(one.reply) / 2)
                saved += len(one.reply) * begun * (1 - 1 / len(playing))
    return saved / read


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--envs", nargs="+", default=list(FAMILIES), help="environment ids (default: one of each family)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="measured updates of each side (default: %(default)s)"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("CPU seconds of one thread, medians of the rounds\n")
    print(
        "| environment | tokens shared | update, s | rows whole, s | over rows whole | reads shared |\n"
        + "|---" * 6
        + "|"
    )
    for env in asked.envs:
        trainer, data = played(env)
        sides: dict[str, type[TorchLearner]] = {"shared": TorchLearner, "whole": Apart}
        spent: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(asked.rounds + 1):
            # Whoever comes first finds colder caches, so each does in turn.
            for name in sorted(sides, reverse=bool(number % 2)):
                trainer.learner.__class__ = sides[name]
                spent[name].append(update_seconds(trainer, data))
        shared, whole = (spent[name][1:] for name in sides)
        saved = tokens_shared([row.ids for row in data.sequences])
        reads = reads_shared([group.trajectories for group in data.groups])
        ratio = spread([a / b for a, b in zip(shared, whole, strict=True)])
        print(
            f"| {env} | {saved:.0%} | {statistics.median(shared):.2f} | {statistics.median(whole):.2f} | {ratio} | {reads:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
