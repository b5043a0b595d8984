"""Eight ranks of unequal speed on one machine: how busy they are, how rows are balanced, what is gathered (docs/results/ranks.md).

    python scripts/bench/bench_ranks.py --rounds 3        # about 6 minutes on two cores

The ranks are processes that talk over gloo and run whole iterations of the trainer. Only the sampler is pretended: it answers with ready
replies after a time that it sleeps, so that eight ranks are as fast as they should be on any machine. A call for the replies of ROWS
episodes takes SPEED x (FIXED + EACH x ROWS) seconds; SPEED rises from 1 on the first rank to ``--slowest`` on the last. Lengths of episodes
have a long tail. All sides play the same episodes, in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import pickle
import statistics
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from spread import spread

import tstar_train.loop as loop
from tstar_envs import find_entry
from tstar_train.build import trainer_of
from tstar_train.config import Config, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.distributed import Communicator, launched
from tstar_train.engines.base import Sample
from tstar_train.policy.model import load_policy
from tstar_train.recipes.recipe import policy_name

ENV = "hotpotqa"
# Seconds of a call, and of each of its rows, on the fastest rank.
COSTS = {"a call costs by its rows": (0.01, 0.02), "a call costs the same": (0.3, 0.002)}
REPLIES = (
    "Thought: The question starts from a name.\nAction: search[Kelmond Ebgan]",
    "Thought: That is the answer.\nAction: finish[Norway]",
)


def chance(*names: object) -> float:
    """A number from 0 to 1 that depends on names alone."""
    digest = hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / (1 << 64)


class Pretended:
    """An engine that sleeps in place of sampling; an episode's seed decides how long it lasts."""

    shares_weights, limit = False, 4096

    def __init__(self, codec: Any, speed: float, horizon: int) -> None:
        self._replies = [codec.reply(text) for text in REPLIES]
        self._speed, self._horizon = speed, horizon
        self.fixed, self.each = 0.0, 0.0

    def generate(self, contexts: Sequence[Any], seeds: Sequence[str], **options: Any) -> list[Sample]:
        time.sleep(self._speed * (self.fixed + self.each * len(contexts)))
        samples = []
        for seed in seeds:
            episode, _, turn = seed.rpartition("/")
            # A quarter of the episodes end at once, one in five lasts to the horizon.
            ends = int(turn) + 1 >= min(self._horizon, int(1.5 / (1e-3 + chance(episode))))
            ids = self._replies[ends]
            samples.append(Sample(list(ids), [-1.0] * len(ids)))
        return samples

    def logprobs(self, contexts: Sequence[Any], continuations: Sequence[Any]) -> list[list[float]]:
        return [[0.0] * len(group) for group in continuations]

    def sync(self, weights: Any) -> None:
        return

    def clear_cache(self) -> None:
        return

    def release(self) -> None:
        return


class Watched:
    """A communicator that notes when this rank plays, and how many bytes it gives to others."""

    def __init__(self, world: Communicator) -> None:
        self._world = world
        self.begun = self.done = 0.0
        self.units = 0
        self.given = dict.fromkeys(("gather", "exchange"), 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def hand_out(self, count: int, fixed: bool = False) -> Generator[int, None, None]:
        self.begun, self.units = time.monotonic(), 0
        for number in self._world.hand_out(count, fixed):
            self.units += 1
            yield number
        self.done = time.monotonic()

    def gather(self, value: Any) -> list[Any]:
        if self._world.rank:
            self.given["gather"] += len(pickle.dumps(value))
        return self._world.gather(value)

    def exchange(self, parts: Sequence[Any]) -> list[Any]:
        others = [part for rank, part in enumerate(parts) if rank != self._world.rank]
        self.given["exchange"] += sum(len(pickle.dumps(part)) for part in others)
        return self._world.exchange(parts)


def config_of(tasks: int, group: int, horizon: int) -> Config:
    return Config(
        env=ENV,
        env_options={"topk": 1, "horizon": horizon},
        rollout=RolloutConfig(tasks_per_iteration=tasks, group_size=group, max_tokens=48),
        tree=TreeConfig(nodes="state", statistics_everywhere=True),
        graft=GraftConfig(enabled=False),
        optim=OptimConfig(max_logprob_difference=1e9, correction="none", learning_rate=0.0),
    )


def rank_of(world: Communicator, config: Config, slowest: float, sides: Sequence[int], rounds: int) -> Any:
    """Play all sides in turn; return on the first rank what each rank measured in each."""
    torch.set_num_threads(1)
    watched = Watched(world)
    policy = load_policy("tiny", policy_name(find_entry(ENV)))
    trainer = trainer_of(config, policy, watched)  # type: ignore[arg-type]
    speed = 1 + (slowest - 1) * world.rank / max(1, world.size - 1)
    trainer.engine = engine = Pretended(policy.codec, speed, config.env_options["horizon"])  # type: ignore[assignment]
    # Rewards of pretended episodes are all alike; each turn gets credit, so that all rows are computed.
    trainer.algorithm.episode_advantages = (
        lambda group: [  # type: ignore[method-assign]
            np.linspace(-1.0, 1.0, 1 + len(t.turns))[1:] for t in group
        ]
    )
    noted: dict[str, Any] = {}
    places, gathered = loop.places_of, loop.gathered

    def places_of(episodes: Any, costs: Any, world: Communicator) -> list[int]:
        found = places(episodes, costs, world)
        noted["stayed"], noted["moved"] = sum(costs), list(zip(found, costs, strict=True))
        return found

    def all_gathered(config: Config, data: Any, world: Communicator) -> Any:
        noted["whole"] = len(pickle.dumps(data)) if world.rank else 0
        before = watched.given["gather"]
        found = gathered(config, data, world)
        noted["gathered"] = watched.given["gather"] - before
        return found

    loop.sync_engine = lambda *_: None  # type: ignore[assignment]  # it would see that nothing is sampled
    loop.places_of, loop.gathered = places_of, all_gathered
    measured = []
    for number, kind, side in itertools.product(range(rounds), COSTS, sides):
        engine.fixed, engine.each = COSTS[kind]
        trainer.config = replaced(config, side)
        watched.given["exchange"] = 0
        world.gather(None)
        begun = time.monotonic()
        loop.iterate(trainer, number)
        trainer.whole = True
        mine = {
            "busy": watched.done - watched.begun,
            "begun": watched.begun,
            "done": watched.done,
            "seconds": time.monotonic() - begun,
            "units": watched.units,
            "sent": watched.given["exchange"],
            **noted,
        }
        measured.append((kind, side, world.gather(mine)))
        if not world.rank:
            print(
                f"round {number + 1}, {kind}, {side} at once: {mine['seconds']:.1f} s",
                file=sys.stderr,
            )
    return measured


def replaced(config: Config, side: int) -> Config:
    """The configuration with so many tasks at once."""
    return replace(config, rollout=replace(config.rollout, tasks_at_once=side))


def other_rank(world: Communicator, **options: Any) -> None:
    rank_of(world, **options)


def figures(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of an iteration of all ranks."""
    lasted = max(r["done"] for r in ranks) - min(r["begun"] for r in ranks)
    tokens = [0] * len(ranks)
    for rank in ranks:
        for place, cost in rank["moved"]:
            tokens[place] += cost
    stayed = [r["stayed"] for r in ranks]
    return {
        "rollout": lasted,
        "utilisation": 100 * sum(r["busy"] for r in ranks) / (len(ranks) * lasted),
        "least": min(r["units"] for r in ranks),
        "most": max(r["units"] for r in ranks),
        "unbalanced": max(stayed) / statistics.fmean(stayed),
        "balanced": max(tokens) / statistics.fmean(tokens),
        "whole": sum(r["whole"] for r in ranks) / 1e6,
        "gathered": sum(r["gathered"] for r in ranks) / 1e6,
        "sent": sum(r["sent"] for r in ranks) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=8, help="processes (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=64, help="tasks an iteration (default: %(default)s)")
    parser.add_argument("--group", type=int, default=4, help="episodes a task (default: %(default)s)")
    parser.add_argument(
        "--horizon", type=int, default=8, help="turns of the longest episodes (default: %(default)s)"
    )
    parser.add_argument(
        "--slowest", type=float, default=3.0, help="how much slower the last rank is (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="iterations of each side (default: %(default)s)"
    )
    given = parser.parse_args()
    share = given.tasks // given.ranks
    sides = sorted({share, max(1, share // 4), 1}, reverse=True)
    options = {
        "config": config_of(given.tasks, given.group, given.horizon),
        "slowest": given.slowest,
        "sides": sides,
        "rounds": given.rounds,
    }
    with launched(given.ranks, partial(other_rank, **options), 10.0) as world:
        found = rank_of(world, **options)
    every = {
        (kind, side): [figures(ranks) for *what, ranks in found if what == [kind, side]]
        for kind in COSTS
        for side in sides
    }
    for kind, (fixed, each) in COSTS.items():
        print(f"{kind}: {fixed:g} s, and {each:g} s a row\n")
        print(
            "| `--rollout.tasks-at-once` | rollout, seconds | ranks busy, % | units a rank | rows moved, MB |"
        )
        print("|---|---|---|---|---|")
        for side in sides:
            of = {name: [one[name] for one in every[kind, side]] for name in every[kind, side][0]}
            name = f"{side}{' (an equal share)' if side == share else ''}"
            units = f"{min(of['least']):.0f} to {max(of['most']):.0f}"
            print(
                f"| {name} | {spread(of['rollout'], 1)} | {spread(of['utilisation'], 0)} | {units} | {spread(of['sent'])} |"
            )
        print()
    first, free = ([one for kind in COSTS for one in every[kind, side]] for side in (share, 1))
    print("| | before | now |\n|---|---|---|")
    print(
        f"| most tokens of a rank, over the mean | {spread([one['unbalanced'] for one in first])} | "
        f"{spread([one['balanced'] for one in free])} |"
    )
    print(
        f"| gathered on the first rank, MB an iteration | {spread([one['whole'] for one in first])} | "
        f"{spread([one['gathered'] for one in free])} |"
    )


if __name__ == "__main__":
    main()
