"""Order of the training tasks: shuffled passes, several environments by weight, and curricula (docs/curricula.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from tstar_envs import StableRandom
from tstar_train.config import Config
from tstar_train.types import GroupFigures, IterationData, Outcome


class Slot(NamedTuple):
    """One place of the training: a task of an environment, by their ids."""

    env: str
    task: str


class Tasks(Protocol):
    """Tasks by position: ids of the run's only environment, or slots that name theirs."""

    def take(self, cursor: int, count: int) -> Sequence[str | Slot]:
        """Return ``count`` tasks from position ``cursor`` on."""


class TaskStream:
    """Endless stream of tasks: each pass is shuffled anew and cut to a multiple of the iteration size.

    Args:
        tasks: task ids.
        size: number of tasks per iteration.
        seed: seed of the shuffles.
    """

    def __init__(self, tasks: Sequence[str], size: int, seed: int | str) -> None:
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


class Interleaving:
    """Assignment of positions to environments: smooth weighted round robin, close to the weights at every prefix.

    The environment that is furthest behind its share comes next, the first one of equals. The order has a period, so that a position
    alone tells its environment.

    Args:
        weights: by environment, above 0.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        exact = [Fraction(repr(weight)) for weight in weights.values()]
        scale = math.lcm(*(weight.denominator for weight in exact))
        whole = [int(weight * scale) for weight in exact]
        common = math.gcd(*whole)
        self._names = list(weights)
        self._weights = [weight // common for weight in whole]
        self._behind = [0] * len(whole)
        self._order: list[int] = []  # of one period, as far as it was asked for

    def counts(self, position: int) -> dict[str, int]:
        """Count each environment's positions before one."""
        periods, rest = divmod(position, sum(self._weights))
        self._extend(rest)
        counts = [periods * weight for weight in self._weights]
        for place in self._order[:rest]:
            counts[place] += 1
        return dict(zip(self._names, counts, strict=True))

    def take(self, position: int, count: int) -> list[str]:
        """Return the environments of ``count`` positions from one on."""
        period = sum(self._weights)
        self._extend(min(period, position % period + count))
        return [self._names[self._order[(position + n) % period]] for n in range(count)]

    def _extend(self, length: int) -> None:
        while len(self._order) < length:
            self._behind = [
                behind + weight for behind, weight in zip(self._behind, self._weights, strict=True)
            ]
            place = max(range(len(self._behind)), key=lambda n: (self._behind[n], -n))
            self._behind[place] -= sum(self._weights)
            self._order.append(place)


@dataclass(frozen=True)
class Estimates:
    """Estimated success of each task that was played; never changed, so that a sampler's stays what it began with.

    Attributes:
        by_env: estimate in [0, 1] by environment and task.
    """

    by_env: Mapping[str, Mapping[str, float]]

    RATE = 0.5  # of the exponential average over a task's visits

    def updated(self, outcomes: Iterable[Outcome]) -> Estimates:
        """Return the estimates after an iteration: the first outcome of a task as it is, later ones averaged exponentially."""
        found = {env: dict(tasks) for env, tasks in self.by_env.items()}
        for outcome in sorted(outcomes):
            tasks = found.setdefault(outcome.env, {})
            old = tasks.get(outcome.task, outcome.success)
            tasks[outcome.task] = old + self.RATE * (outcome.success - old)
        return Estimates(found)

    def metrics(self) -> dict[str, int]:
        """Count the tasks that were played, and those left out of the pool as too hard and too easy."""
        known = [p for tasks in self.by_env.values() for p in tasks.values()]
        return {
            "tasks_seen": len(known),
            "tasks_too_hard": sum(p <= LOW for p in known),
            "tasks_too_easy": sum(p >= HIGH for p in known),
        }

    def record(self) -> dict[str, dict[str, float]]:
        """Return the estimates as JSON values, in order of name."""
        return {env: dict(sorted(tasks.items())) for env, tasks in sorted(self.by_env.items())}


# Estimates up to LOW or from HIGH on leave the pool: such a group hardly ever has contrast.
LOW, HIGH = 0.05, 0.95
# Of 16 draws, 8 take a task that was never played, 7 one of the pool, and 1 a task that was left out of it, so that it can come back.
NEW, POOL, LEFT_OUT = 8, 7, 1
# Share of the tasks, the shortest, that an optimum curriculum begins with.
SHORTEST = 0.1


@dataclass(frozen=True)
class Course:
    """Endless stream of slots over one or several environments, with a curriculum.

    Attributes:
        tasks: task ids by environment, in the order of the options; with ``optimum`` from the shortest optimal solution to the longest.
        order: assigns positions to environments.
        curriculum: ``none``, ``success`` or ``optimum``.
        size: number of tasks per iteration.
        seed: of all draws.
    """

    tasks: Mapping[str, Sequence[str]]
    order: Interleaving
    curriculum: str
    size: int
    seed: int

    def at(self, start: int, grown: float, known: Estimates) -> CourseOfIteration:
        """Return the stream as an iteration sees it.

        Args:
            start: position of the iteration's first slot.
            grown: progress of the curriculum, from 0 to 1.
            known: estimates before the iteration.
        """
        return CourseOfIteration(self, start, grown, known)


@dataclass(frozen=True)
class CourseOfIteration:
    """Slots of one iteration: the same whoever asks for them, in however many parts.

    Attributes:
        course, start, grown, known: see ``Course.at``.
    """

    course: Course
    start: int
    grown: float
    known: Estimates

    def take(self, cursor: int, count: int) -> list[Slot]:
        """Return ``count`` slots from position ``cursor`` on, not before ``start``."""
        envs = self.course.order.take(cursor, count)
        begun, before = (self.course.order.counts(position) for position in (self.start, cursor))
        drawn = {
            env: iter(self._of_env(env, begun[env], before[env], envs.count(env)))
            for env in dict.fromkeys(envs)
        }
        return [Slot(env, next(drawn[env])) for env in envs]

    def _of_env(self, env: str, begun: int, before: int, count: int) -> list[str]:
        """Draw tasks of an environment.

        Args:
            env: id.
            begun: number of its slots before the iteration.
            before: number of its slots before these.
            count: of the draws.
        """
        course, tasks = self.course, list(self.course.tasks[env])
        first, end = before - begun, before - begun + count
        if course.curriculum == "success":
            return self._by_success(env, tasks, begun, end)[first:]
        pool = (
            pool_size(len(tasks), self.grown, course.size) if course.curriculum == "optimum" else len(tasks)
        )
        if pool < len(tasks):
            shuffled = StableRandom(f"{course.seed}/optimum/{env}/{begun}").shuffled(tasks[:pool])
            return [shuffled[n % pool] for n in range(first, end)]
        return TaskStream(tasks, 1, f"{course.seed}/{env}").take(before, count)

    def _by_success(self, env: str, tasks: list[str], begun: int, count: int) -> list[str]:
        """Draw the iteration's first tasks of an environment, each once as long as there are others."""
        rng = StableRandom(f"{self.course.seed}/success/{env}/{begun}")
        estimates = self.known.by_env.get(env, {})
        drawn: list[str] = []
        fresh: list[str] = []
        pool: dict[str, float] = {}
        left_out: list[str] = []
        while len(drawn) < count:
            if not fresh and not pool and not left_out:  # at the start, and when all were drawn
                fresh = [task for task in tasks if task not in estimates]
                seen = [(task, estimates[task]) for task in tasks if task in estimates]
                pool = {task: p * (1 - p) for task, p in seen if LOW < p < HIGH}
                left_out = [task for task, _ in seen if task not in pool]
            chances = [NEW * bool(fresh), POOL * bool(pool), LEFT_OUT * bool(left_out)]
            kind = rng.weighted(chances)
            if kind == 1:
                task = list(pool)[rng.weighted(list(pool.values()))]
                del pool[task]
            else:
                part = left_out if kind else fresh
                task = part.pop(rng.below(len(part)))
            drawn.append(task)
        return drawn


def pool_size(tasks: int, grown: float, least: int) -> int:
    """Compute the number of tasks, the shortest, that an optimum curriculum draws from.

    Args:
        tasks: number of all tasks.
        grown: progress of the curriculum, from 0 to 1.
        least: number of tasks per iteration.
    """
    return min(tasks, max(least, math.ceil(round(tasks * (SHORTEST + (1 - SHORTEST) * grown), 9))))


def course_metrics(config: Config, data: IterationData, known: Estimates) -> dict[str, Any]:
    """Compute the figures of each environment of a run on several, and of a curriculum; empty without either.

    Args:
        config: of the run.
        data: of the iteration, of all ranks.
        known: estimates after it.
    """
    metrics: dict[str, Any] = {}
    if config.mix:
        metrics["by_env"] = {
            env: _of_groups([f for f in data.figures if f.env == env]) for env in config.environments
        }
    if config.curriculum == "optimum" or config.rollout.horizon_growth is not None:
        metrics["curriculum_progress"] = data.grown
    return metrics | (known.metrics() if config.curriculum == "success" else {})


def _of_groups(groups: Sequence[GroupFigures]) -> dict[str, Any]:
    """Compute how groups went; None where nothing could be measured."""
    counts = sum((figures.counts for figures in groups), Counter[str]())
    earned = [reward for figures in groups for reward in figures.earned]

    def share(name: str, of: int) -> float | None:
        return counts[name] / of if of else None

    return {
        "groups": len(groups),
        "reward": float(np.mean(earned)) if earned else None,
        "success": share("successes", counts["episodes"]),
        "invalid_rate": share("invalid", counts["steps"]),
        "episode_length": share("steps", counts["episodes"]),
        "zero_variance_groups": share("equal", len(groups)),
    }
