"""Sampling of an iteration's groups: task order, failures, forks, and dynamic sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tstar_envs import Episode, InfrastructureError, StableRandom
from tstar_train.algorithms.base import Algorithm
from tstar_train.config import Config
from tstar_train.distributed import Communicator, raise_on_any_rank
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec
from tstar_train.rollout.collect import collect, sampling_of, training_spec
from tstar_train.rollout.explore import Explorer
from tstar_train.rollout.player import Sampling
from tstar_train.types import Group, IterationData, failed, overlong, without_failed

MOST = 0.5  # maximum share of failed episodes; above it a run stops


def stop_if_most_failed(failures: Sequence[Episode], played: int) -> None:
    """Stop an iteration if most of its episodes failed.

    Args:
        failures: the failed episodes.
        played: number of all episodes.

    Raises:
        InfrastructureError: more than ``MOST`` of the episodes failed; the message has the error of the last one.
    """
    if len(failures) > MOST * played:
        raise InfrastructureError(
            f"{len(failures)} of {played} episodes failed and are excluded, the last error: {failures[-1].error}"
        )


class TaskStream:
    """Endless stream of tasks: each pass is shuffled anew and cut to a multiple of the iteration size.

    Args:
        tasks: task ids.
        size: number of tasks per iteration.
        seed: seed of the shuffles.
    """

    def __init__(self, tasks: Sequence[str], size: int, seed: int) -> None:
        self._tasks = list(tasks)
        self._usable = len(tasks) // size * size
        self._seed = seed

    def take(self, cursor: int, count: int) -> list[str]:
        """Return ``count`` tasks from position ``cursor`` on."""
        taken: list[str] = []
        while len(taken) < count:
            turn, position = divmod(cursor + len(taken), self._usable)
            order = StableRandom(f"{self._seed}/tasks/{turn}").shuffled(self._tasks)
            taken += order[position : min(self._usable, position + count - len(taken))]
        return taken


def training_sampling(config: Config, temperature: float) -> Sampling:
    """Return the sampling options of training episodes, with what their credit and their forks need."""
    return replace(
        sampling_of(config, temperature),
        progress=config.rollout.progress_credit > 0,
        snapshots=config.forks or (config.tstar and config.graft.verify),
    )


def sample_groups(
    config: Config,
    algorithm: Algorithm,
    engine: Engine,
    codec: Codec,
    stream: TaskStream,
    cursor: int,
    world: Communicator,
    data: IterationData,
) -> list[Group]:
    """Sample the groups that this rank trains on; all ranks call it.

    Each rank plays its share of the iteration's tasks. Dropped groups are replaced by sampling more tasks, at most ``dapo.rounds`` times;
    after that the iteration trains on what it has.

    Args:
        config: the run's options.
        algorithm: algorithm that filters groups and shapes rewards.
        engine: engine that samples replies.
        codec: codec between turns and token ids.
        stream: the tasks.
        cursor: position of the iteration's first task in the stream; at the end the iteration has used ``data.tasks`` tasks of all ranks.
        world: communicator between the ranks.
        data: the iteration's number and temperature; this rank's counts are added to it.

    Raises:
        InfrastructureError: most episodes failed, on all ranks together.
    """
    kept: list[Group] = []
    spec, roots = training_spec(config), config.first_episodes
    sampling = training_sampling(config, data.temperature)
    missing, wanted = (
        _missing_by_rank(config.rollout.tasks_per_iteration // world.size, world),
        config.rollout.tasks_per_iteration // world.size,
    )
    first, round_number = 0, 0
    while sum(missing) and round_number < config.dapo.rounds:
        tasks = stream.take(cursor + first, sum(missing))
        place = sum(missing[: world.rank])
        mine = tasks[place : place + missing[world.rank]]
        # If a pass over the tasks ends within a round, a task may occur twice.
        repeats = [tasks[:n].count(tasks[n]) for n in range(place, place + len(mine))]
        # The round is part of the seed, so a repeated task gives different episodes.
        again = f"/again {round_number}" if round_number else ""
        with raise_on_any_rank(world):
            trajectories = collect(
                spec,
                engine,
                codec,
                mine,
                size=roots,
                split=config.split,
                seed=f"{config.seed}/rollout/{data.number}{again}",
                sampling=sampling,
                first_group=first + place,
                repeats=repeats,
            )
            data.tasks += len(mine)
            data.turns += sum(len(t.turns) for t in trajectories)
            data.tokens += sum(len(turn.reply) for t in trajectories for turn in t.turns)
            data.failed += [t.episode for t in trajectories if failed(t.episode)]
            data.overlong += sum(overlong(t.episode) for t in trajectories)
            groups = [
                Group(g)
                for i in range(len(mine))
                if (g := without_failed(trajectories[i * roots : (i + 1) * roots]))
            ]
            if config.forks:
                again_of = {first + place + n: repeats[n] for n in range(len(mine))}
                explorer = Explorer(config, spec, engine, codec, sampling, data)
                explorer.explore(groups, f"{config.seed}/fork/{data.number}{again}", again_of)
            algorithm.shape_rewards([t for g in groups for t in g.members])
            good = [g for g in groups if algorithm.filter_group(g.trajectories)]
            data.dropped_groups += len(groups) - len(good)
            kept += good
        stop_if_most_failed_anywhere(data, roots, world)
        first, round_number = first + len(tasks), round_number + 1
        # Groups lost to infrastructure errors are not replaced: a service that is down would be called again and again.
        lost = data.tasks - len(kept) - data.dropped_groups
        missing = _missing_by_rank(wanted - len(kept) - lost, world)
    return kept


def stop_if_most_failed_anywhere(data: IterationData, size: int, world: Communicator) -> None:
    """Stop the iteration if most episodes of all ranks together failed.

    Raises:
        InfrastructureError: see ``stop_if_most_failed``; raised on all ranks.
    """
    failures = [e for part in world.gather(data.failed) for e in part]
    tasks = int(world.all_reduce(torch.tensor([data.tasks])).item())
    with raise_on_any_rank(world):
        stop_if_most_failed(failures, tasks * size)


def _missing_by_rank(mine: int, world: Communicator) -> list[int]:
    counts = torch.zeros(world.size, dtype=torch.int64)
    counts[world.rank] = max(0, mine)
    return [int(n) for n in world.all_reduce(counts)]
