"""Sampling of an iteration's groups: task order, failures, forks, and dynamic sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tstar_envs import Episode, InfrastructureError
from tstar_train.algorithms.base import Algorithm
from tstar_train.config import Config
from tstar_train.distributed import Communicator, raise_on_any_rank
from tstar_train.engines.base import Engine
from tstar_train.policy.codec import Codec
from tstar_train.rollout.collect import collect, sampling_of, training_spec
from tstar_train.rollout.explore import Explorer
from tstar_train.rollout.player import Sampling
from tstar_train.rollout.stream import Slot, Tasks
from tstar_train.types import Group, IterationData, Outcome, Trajectory, failed, overlong, without_failed

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
    stream: Tasks,
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
    roots = config.first_episodes
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
            trajectories = play_slots(
                config,
                engine,
                codec,
                mine,
                size=roots,
                seed=f"{config.seed}/rollout/{data.number}{again}",
                sampling=sampling,
                first_group=first + place,
                repeats=repeats,
                grown=data.grown,
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
            if config.curriculum == "success":
                data.outcomes = [*data.outcomes, *map(outcome_of, groups)]
            if config.forks:
                again_of = {first + place + n: repeats[n] for n in range(len(mine))}
                for env in config.environments:
                    alone, own = config.of(env), [g for g in groups if not config.mix or g.env == env]
                    explorer = Explorer(
                        alone, training_spec(alone, data.grown), engine, codec, sampling, data
                    )
                    explorer.explore(own, f"{config.seed}/fork/{data.number}{again}", again_of)
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


def play_slots(
    config: Config,
    engine: Engine,
    codec: Codec,
    tasks: Sequence[str | Slot],
    *,
    size: int,
    seed: str,
    sampling: Sampling,
    first_group: int,
    repeats: Sequence[int],
    grown: float,
) -> list[Trajectory]:
    """Play groups of tasks, those of each environment together, in the order of the environments.

    Args:
        config: the run's options.
        engine, codec, size, seed, sampling, first_group, repeats: see ``collect``.
        tasks: ids of the run's only environment, or slots.
        grown: see ``training_spec``.

    Returns:
        Trajectories in order of ``tasks``, then member.
    """
    envs = [task.env if isinstance(task, Slot) else config.environments[0] for task in tasks]
    ids = [task.task if isinstance(task, Slot) else task for task in tasks]
    played: dict[int, list[Trajectory]] = {}
    for env in config.environments:
        places = [n for n, of in enumerate(envs) if of == env]
        if not places:
            continue
        trajectories = collect(
            training_spec(config.of(env), grown),
            engine,
            codec,
            [ids[n] for n in places],
            size=size,
            split=config.split,
            seed=f"{seed}/{env}" if config.mix else seed,
            sampling=sampling,
            repeats=[repeats[n] for n in places],
        )
        for row, trajectory in enumerate(trajectories):
            trajectory.group = first_group + places[row // size]
            played.setdefault(places[row // size], []).append(trajectory)
    return [trajectory for place in sorted(played) for trajectory in played[place]]


def outcome_of(group: Group) -> Outcome:
    """Return what a success curriculum learns from a group."""
    first, solved = group.trajectories[0], [t.episode.success for t in group.trajectories]
    return Outcome(first.group, first.episode.env, first.episode.task, sum(solved) / len(solved))


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
