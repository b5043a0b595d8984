"""Sets of tasks, and the shipped ones; ``public_files`` reads problems by path."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.envs.blocksworld.compact_notation import read_problem
from tstar_envs.envs.blocksworld.task import Task

VARIANTS = ("stack", "unstack")
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class TaskSet:
    """The tasks of an environment.

    Attributes:
        tier: ``mini`` (shipped), ``practice`` or ``path``.
        tasks: task id -> task.
        by_split: split -> task ids in order.
        solved: task ids of problems whose goal holds at the start.
        left_out: what could not be used.
    """

    tier: str
    tasks: Mapping[str, Task]
    by_split: dict[str, tuple[str, ...]]
    solved: tuple[str, ...] = ()
    left_out: LeftOut = NOTHING_LEFT_OUT

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        return self  # never changed after loading, so copies of an environment share it


class ShippedTasks(Mapping[str, Task]):
    """Tasks that are read from their lines when they are first asked for.

    A few episodes need a few tasks; all of them would be a hundred thousand objects for the garbage collector to walk over, which
    takes as long as ten thousand steps.

    Args:
        lines: task id -> its split and its line (``task_line``).
    """

    def __init__(self, lines: dict[str, tuple[str, str]]) -> None:
        self._lines = lines
        self._read: dict[str, Task] = {}

    def __getitem__(self, task_id: str) -> Task:
        found = self._read.get(task_id)
        if found is None:
            split, line = self._lines[task_id]
            length, start, goal = line.split("\t")
            found = self._read[task_id] = Task(task_id, split, read_problem(start, goal), int(length))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def task_set(tier: str, tasks: Iterable[Task]) -> TaskSet:
    """A set of tasks in memory."""
    by_id = {task.id: task for task in tasks}
    by_split = {split: tuple(task.id for task in by_id.values() if task.split == split) for split in SPLITS}
    return TaskSet(tier, by_id, by_split)


def write_task(length: int, start: str, goal: str) -> str:
    """A task as a line of the shipped files: optimal length, start and goal in compact notation, separated by tabs."""
    return f"{length}\t{start}\t{goal}\n"


def shipped_file(variant: str, split: str) -> str:
    """Name of a shipped file, without ``.gz``."""
    return f"{variant}.{split}.txt"


@lru_cache(maxsize=len(VARIANTS))
def load_shipped(variant: str) -> TaskSet:
    """The shipped tasks of a variant."""
    lines: dict[str, tuple[str, str]] = {}
    by_split: dict[str, tuple[str, ...]] = {}
    for split in SPLITS:
        text = gzip.decompress((DATA / f"{shipped_file(variant, split)}.gz").read_bytes()).decode()
        of_split = {
            f"blocksworld-{variant}-mini-{split}-{number:04d}": (split, line)
            for number, line in enumerate(text.splitlines())
        }
        by_split[split] = tuple(of_split)
        lines |= of_split
    return TaskSet("mini", ShippedTasks(lines), by_split)
