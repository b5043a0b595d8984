"""Horizon: the number of steps of an episode, fixed or a multiple of the task's optimum.

A horizon below the optimum silently makes a task impossible. If the optimum is known (Sokoban, Blocksworld), ``horizon`` may be
"optimal" or "optimal*2", and ``reach`` counts the tasks that cannot be won within the horizon.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from time import monotonic
from typing import NamedTuple, Protocol

from tstar_envs.errors import UnknownOption
from tstar_envs.utils import is_whole

_FACTOR = re.compile(r"optimal(?:\s*\*\s*([0-9]{1,4}(?:\.[0-9]{1,4})?))?")
_LOG = logging.getLogger("tstar_envs")


def read_factor(horizon: str) -> Fraction:
    """Parse the k of "optimal*k"; 1 for "optimal".

    Raises:
        UnknownOption: another text, or a k below 1.
    """
    found = _FACTOR.fullmatch(horizon.strip())
    factor = Fraction(found[1] or 1) if found else Fraction(0)
    if factor < 1:
        raise UnknownOption(
            f"horizon must be a whole number of at least 1, 'optimal' or 'optimal*k' with k from 1, got {horizon!r:.80}"
        )
    return factor


def read_horizon(
    horizon: int | str | None, optimum_known: bool, family: str
) -> tuple[Fraction | None, int | None]:
    """Parse the option ``horizon``.

    Returns:
        (k, None) for "optimal*k", (None, steps) for a number, (None, None) for the family's default.

    Raises:
        UnknownOption: another value, or the optimum of the family's tasks is not known.
    """
    if isinstance(horizon, str):
        factor = read_factor(horizon)
        if not optimum_known:
            raise UnknownOption(
                f"horizon={horizon!r}: the optimum is not known in {family}; give a whole number"
            )
        return factor, None
    if horizon is not None and (not is_whole(horizon) or horizon < 1):
        raise UnknownOption(
            f"horizon must be a whole number of at least 1 (or None for the default), got {horizon!r}"
        )
    return None, None if horizon is None else int(horizon)


def steps_of(factor: Fraction, optimum: float | None, task_id: str) -> int:
    """Compute the steps of an episode: k times the optimum, rounded up, at least one.

    Raises:
        UnknownOption: the task cannot be won and has no optimum.
    """
    if optimum is None:
        raise UnknownOption(
            f"task {task_id!r} cannot be won, so that it has no optimum: give horizon= a whole number"
        )
    return max(1, math.ceil(factor * Fraction(optimum)))


class OptimumKnown(Protocol):
    """Environment of a family whose optimum is known."""

    horizon: int

    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """List the task ids of a split; see ``TextEnv``."""

    def least_steps(self, task_id: str, seconds: float) -> int | None:
        """Bound the steps of a solution from below by a short search; None if unwinnable."""


class Reach(NamedTuple):
    """Number of tasks of a split that cannot be won within a horizon.

    Attributes:
        tasks: tasks of the split.
        looked_at: tasks that were searched, evenly spread over the split.
        over: tasks that need more steps than the horizon.
        lost: tasks that cannot be won at all.
        horizon: number of steps.
    """

    tasks: int
    looked_at: int
    over: int
    lost: int
    horizon: int

    def __str__(self) -> str:
        whole = self.looked_at == self.tasks
        looked = (
            f"the {self.tasks:,} tasks"
            if whole
            else f"{self.looked_at:,} tasks looked at (of {self.tasks:,})"
        )
        lost = f", and {self.lost:,} cannot be won at all" if self.lost else ""
        return f"{self.over:,} of {looked} need more than {self.horizon:,} steps, as far as a short search tells{lost}"


def reach(env: OptimumKnown, split: str | None = None, most: int = 1000, seconds: float = 20.0) -> Reach:
    """Count the tasks that cannot be won within the horizon of an environment.

    Args:
        env: the environment (``env.unwrapped``).
        split: split of the tasks; None is the environment's own.
        most: maximum number of tasks to search, evenly spread.
        seconds: time limit; no further task is searched after it.
    """
    ids = env.task_ids(split)
    count = min(most, len(ids))
    chosen = [ids[number * len(ids) // count] for number in range(count)]
    over = lost = looked_at = 0
    end = monotonic() + seconds
    for task_id in chosen:
        left = end - monotonic()
        if left <= 0:
            break
        least = env.least_steps(task_id, min(1.0, left))
        looked_at += 1
        lost += least is None
        over += least is not None and least > env.horizon
    return Reach(len(ids), looked_at, over, lost, env.horizon)


def warn_if_horizon_is_short(env: OptimumKnown, path: object) -> None:
    """Warn if tasks by path need more than the default steps (16 tasks, at most a second)."""
    found = reach(env, most=16, seconds=1.0)
    if found.over:
        _LOG.warning(
            "%s: %s. Nobody can win these: give another horizon, for example horizon='optimal*2'", path, found
        )


def check_seconds(seconds: object) -> None:
    """Raise UnknownOption unless a value of the option ``solver_seconds`` is positive."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UnknownOption(f"solver_seconds must be a number above 0, got {seconds!r:.80}")
