"""Collect and select: play tasks until there are as many groups to learn from as an iteration has, or rounds enough were played."""

from __future__ import annotations

from dataclasses import replace

import torch

from tstar_envs import find_entry
from tstar_train.algorithms.base import Algorithm
from tstar_train.config import Config
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.failures import failed, stop_if_most_failed
from tstar_train.rollout.group import Played, without_failed
from tstar_train.rollout.player import Sampling, overlong
from tstar_train.rollout.stream import TaskStream
from tstar_train.rollout.types import Trajectory
from tstar_train.world import World, together


def training_spec(config: Config) -> EnvSpec:
    """The environment as training plays it: with its further options, and episodes never longer than the environment's own."""
    options = {**config.env_options, **config.training_options}
    own, wanted = options.get("horizon") or find_entry(config.env).horizon, config.rollout.horizon
    return EnvSpec(config.env, options if wanted is None else {**options, "horizon": min(own, wanted)})


def sampling_of(config: Config, temperature: float) -> Sampling:
    """The rollout options as the collector takes them."""
    rollout = config.rollout
    return Sampling(rollout.max_tokens, temperature, rollout.context, rollout.history)


def sample_groups(
    config: Config,
    algorithm: Algorithm,
    engine: Engine,
    codec: Codec,
    stream: TaskStream,
    cursor: int,
    number: int,
    temperature: float,
    world: World,
    played: Played,
) -> list[list[Trajectory]]:
    """The groups that this rank learns from; all ranks call it.

    Each rank plays its part of the iteration's tasks. Where the algorithm keeps only some groups, those that are missing are replaced
    by groups of further tasks, up to ``dapo.rounds`` rounds in all; then what there is has to do.

    Args:
        config: of the run.
        algorithm: which groups it keeps, and what it changes in their rewards.
        engine: samples replies.
        codec: turns to ids.
        stream: the tasks.
        cursor: where the iteration begins in the stream; it has used ``played.tasks`` of all ranks at the end.
        number: of the iteration, from 0.
        temperature: of the samples.
        world: the ranks.
        played: this rank's counts; changed.

    Raises:
        InfrastructureError: most episodes failed, on all ranks together.
    """
    kept: list[list[Trajectory]] = []
    spec, size = training_spec(config), config.rollout.group
    sampling = replace(sampling_of(config, temperature), progress=config.rollout.progress_credit > 0)
    missing, wanted = (
        _missing_by_rank(config.rollout.tasks // world.size, world),
        config.rollout.tasks // world.size,
    )
    first, round_number = 0, 0
    while sum(missing) and round_number < config.dapo.rounds:
        tasks = stream.take(cursor + first, sum(missing))
        place = sum(missing[: world.rank])
        mine = tasks[place : place + missing[world.rank]]
        # Where a pass over the tasks ends within a round, one of them may come twice.
        repeats = [tasks[:n].count(tasks[n]) for n in range(place, place + len(mine))]
        # A task that comes twice is not the same episode twice.
        again = f"/again {round_number}" if round_number else ""
        with together(world):
            trajectories = collect(
                spec,
                engine,
                codec,
                mine,
                size=size,
                split=config.split,
                seed=f"{config.seed}/rollout/{number}{again}",
                sampling=sampling,
                first_group=first + place,
                repeats=repeats,
            )
            played.tasks += len(mine)
            played.failed += [t.episode for t in trajectories if failed(t.episode)]
            played.overlong += sum(overlong(t.episode) for t in trajectories)
            groups = [
                g for i in range(len(mine)) if (g := without_failed(trajectories[i * size : (i + 1) * size]))
            ]
            algorithm.shape([t for g in groups for t in g])
            good = [g for g in groups if algorithm.keeps(g)]
            played.dropped_groups += len(groups) - len(good)
            kept += good
        stop_if_most_failed_anywhere(played, size, world)
        first, round_number = first + len(tasks), round_number + 1
        # A group that infrastructure took is not played again: what is down would be asked without end.
        lost = played.tasks - len(kept) - played.dropped_groups
        missing = _missing_by_rank(wanted - len(kept) - lost, world)
    return kept


def stop_if_most_failed_anywhere(played: Played, size: int, world: World) -> None:
    """Stop as ``stop_if_most_failed`` does, counting all ranks together.

    Raises:
        InfrastructureError: on all ranks.
    """
    failures = [e for part in world.gather(played.failed) for e in part]
    tasks = int(world.sum(torch.tensor([played.tasks])).item())
    with together(world):
        stop_if_most_failed(failures, tasks * size)


def _missing_by_rank(mine: int, world: World) -> list[int]:
    counts = torch.zeros(world.size, dtype=torch.int64)
    counts[world.rank] = max(0, mine)
    return [int(n) for n in world.sum(counts)]
