"""Sampling of an iteration's groups: task order, failures, forks, and dynamic sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

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
UNITS = 4  # an equal share is cut into so many units at most, unless ``tasks_at_once`` is set


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


def units_of(config: Config, tasks: int, processes: int) -> list[range]:
    """Cut the tasks of a round into units of nearly equal size; a process plays those of a unit side by side.

    Args:
        config: the run's options.
        tasks: number of tasks of the round.
        processes: number of processes of the run.

    Returns:
        The places of each unit's tasks in the round.
    """
    rollout, most = config.rollout, config.rollout.tasks_at_once
    if most is not None:
        number = math.ceil(tasks / most)
    elif processes == 1:
        number = 1
    else:
        # More are not played side by side, and fewer would leave a GPU idle, to which a row more costs nearly nothing.
        share = rollout.tasks_per_iteration // processes * rollout.group_size
        number = min(tasks, processes * max(1, min(UNITS, share // rollout.max_sequences)))
    return cut(tasks, number)


def cut(count: int, number: int) -> list[range]:
    """Cut the numbers below ``count`` into consecutive ranges of nearly equal size."""
    return [range(first, last) for first, last in pairwise(count * n // number for n in range(number + 1))]


def sample_groups(
    config: Config,
    algorithm: Algorithm,
    engine: Engine,
    codec: Codec,
    stream: Tasks,
    cursor: int,
    world: Communicator,
    data: IterationData,
    study: Callable[[IterationData], None] = lambda unit: None,
) -> list[Group]:
    """Sample an iteration's groups, and return those that this rank played; all ranks call it.

    Ranks take units of the tasks as they get free. What becomes of a unit depends on its tasks alone, never on who plays it or after
    what. Dropped groups are replaced by sampling more tasks, at most ``dapo.rounds`` times; after that the iteration trains on what it has.

    Args:
        config: the run's options.
        algorithm: algorithm that filters groups and shapes rewards.
        engine: engine that samples replies.
        codec: codec between turns and token ids.
        stream: the tasks.
        cursor: position of the iteration's first task in the stream; at the end the iteration has used ``data.tasks`` tasks of all ranks.
        world: communicator between the ranks.
        data: the iteration's number and temperature; this rank's units and their sums are added to it.
        study: called with each unit once its groups are chosen, before another is taken; it may make no collective call.

    Raises:
        InfrastructureError: most episodes failed, on all ranks together.
    """
    # One process has nobody to share with: it studies the groups of all rounds together.
    together = world.size == 1 and config.rollout.tasks_at_once is None
    missing, first, round_number = config.rollout.tasks_per_iteration, 0, 0
    while missing > 0 and round_number < config.dapo.rounds:
        tasks = stream.take(cursor + first, missing)
        places = units_of(config, len(tasks), world.size)
        # Sums over groups come out differently in the last digit if other ranks hold them.
        taken = world.hand_out(len(places), fixed=algorithm.compares_batch)
        with raise_on_any_rank(world), closing(taken):
            for number in taken:
                if not (together and data.units):
                    data.units.append(data.begun_unit(first + places[number].start))
                if not together and getattr(engine, "rows_at_once", None) is not None:
                    engine.clear_cache()  # a cached row is rounded as it was computed
                unit = data.units[-1]
                _play(config, algorithm, engine, codec, tasks, places[number], first, round_number, unit)
                if not together:
                    study(unit)
        stop_if_most_failed_anywhere(data.units, config.first_episodes, world)
        first, round_number = first + len(tasks), round_number + 1
        # Groups lost to infrastructure errors are not replaced: a service that is down would be called again and again.
        kept, dropped, played = _sums_of(data.units, world)
        lost = played - kept - dropped
        missing = config.rollout.tasks_per_iteration - kept - lost
    if together:
        for unit in data.units:
            study(unit)
    data.units.sort(key=lambda unit: unit.first)
    for unit in data.units:
        data.add(unit)
    return data.groups


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


def _play(
    config: Config,
    algorithm: Algorithm,
    engine: Engine,
    codec: Codec,
    tasks: Sequence[str | Slot],
    places: range,
    first: int,
    round_number: int,
    unit: IterationData,
) -> None:
    """Play a unit's tasks and add the groups to train on to it.

    Args:
        config: the run's options.
        algorithm: algorithm that filters groups and shapes rewards.
        engine: engine that samples replies.
        codec: codec between turns and token ids.
        tasks: all tasks of the round.
        places: of the unit's tasks among them.
        first: number of tasks in the iteration's earlier rounds.
        round_number: from 0.
        unit: changed in place.
    """
    roots = config.first_episodes
    sampling = training_sampling(config, unit.temperature)
    mine = [tasks[n] for n in places]
    # If a pass over the tasks ends within a round, a task may occur twice.
    repeats = [tasks[:n].count(tasks[n]) for n in places]
    # The round is part of the seed, so a repeated task gives different episodes.
    again = f"/again {round_number}" if round_number else ""
    trajectories = play_slots(
        config,
        engine,
        codec,
        mine,
        size=roots,
        seed=f"{config.seed}/rollout/{unit.number}{again}",
        sampling=sampling,
        first_group=first + places.start,
        repeats=repeats,
        grown=unit.grown,
    )
    unit.tasks += len(mine)
    unit.turns += sum(len(t.turns) for t in trajectories)
    unit.tokens += sum(len(turn.reply) for t in trajectories for turn in t.turns)
    unit.failed += [t.episode for t in trajectories if failed(t.episode)]
    unit.overlong += sum(overlong(t.episode) for t in trajectories)
    groups = [
        Group(g) for i in range(len(mine)) if (g := without_failed(trajectories[i * roots : (i + 1) * roots]))
    ]
    if config.curriculum == "success":
        unit.outcomes = [*unit.outcomes, *map(outcome_of, groups)]
    if config.forks:
        again_of = {first + n: repeats[place] for place, n in enumerate(places)}
        for env in config.environments:
            alone, own = config.of(env), [g for g in groups if not config.mix or g.env == env]
            explorer = Explorer(alone, training_spec(alone, unit.grown), engine, codec, sampling, unit)
            explorer.explore(own, f"{config.seed}/fork/{unit.number}{again}", again_of)
    algorithm.shape_rewards([t for g in groups for t in g.members])
    good = [g for g in groups if algorithm.filter_group(g.trajectories)]
    unit.dropped_groups += len(groups) - len(good)
    unit.groups += good


def stop_if_most_failed_anywhere(units: Sequence[IterationData], size: int, world: Communicator) -> None:
    """Stop the iteration if most episodes of all ranks together failed.

    Raises:
        InfrastructureError: see ``stop_if_most_failed``; raised on all ranks.
    """
    failures = [e for part in world.gather([e for unit in units for e in unit.failed]) for e in part]
    tasks = int(world.all_reduce(torch.tensor([sum(unit.tasks for unit in units)])).item())
    with raise_on_any_rank(world):
        stop_if_most_failed(failures, tasks * size)


def _sums_of(units: Sequence[IterationData], world: Communicator) -> list[int]:
    """Count kept groups, dropped groups and played tasks of all ranks."""
    own = [[len(unit.groups), unit.dropped_groups, unit.tasks] for unit in units]
    counts = torch.tensor(own, dtype=torch.int64).reshape(-1, 3).sum(dim=0)
    return [int(n) for n in world.all_reduce(counts)]
