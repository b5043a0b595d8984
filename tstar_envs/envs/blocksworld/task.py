"""A task of Blocksworld: a problem, that is named blocks, a start and a goal."""

from __future__ import annotations

from dataclasses import dataclass

from tstar_envs.envs.blocksworld.goal import Goal
from tstar_envs.envs.blocksworld.state import State


@dataclass(frozen=True)
class Problem:
    """Block number b is called ``names[b]``; ``start`` and ``goal`` speak of numbers."""

    names: tuple[str, ...]
    start: State
    goal: Goal


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        id: unique in its set.
        split: train, valid or test.
        problem: start and goal.
        optimal_length: operators of a shortest plan, None where it is not stored.
    """

    id: str
    split: str
    problem: Problem
    optimal_length: int | None = None

    def __hash__(self) -> int:
        # Of all its parts it would cost more than a step, and a view is looked up in every reset.
        return hash(self.id)
