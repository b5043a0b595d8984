"""Sets of tasks, and the shipped ones; ``level_files`` reads levels by path."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.envs.sokoban.level_files.xsb import level_rows, parse_level, read_level
from tstar_envs.envs.sokoban.task import Task
from tstar_envs.errors import UnknownTask

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, eq=False)
class TaskSet:
    """The tasks of an environment; a level is read when it is first asked for.

    Attributes:
        name: for error messages.
        tier: ``mini`` (shipped), ``practice`` or ``path``.
        by_split: task ids of each split.
        texts: task id -> (split, XSB text, solution or "", where it stands).
        solved: task ids of levels that are solved at the start.
        left_out: what could not be used.
        read: the levels that were asked for.
    """

    name: str
    tier: str
    by_split: dict[str, tuple[str, ...]]
    texts: dict[str, tuple[str, str, str, str]]
    solved: tuple[str, ...] = ()
    left_out: LeftOut = NOTHING_LEFT_OUT
    read: dict[str, Task] = field(default_factory=dict, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        return self  # never changed after loading, so copies of an environment share it

    def task(self, task_id: str) -> Task:
        """One task by id.

        Raises:
            UnknownTask: there is none of that id.
        """
        if task_id in self.read:
            return self.read[task_id]
        try:
            split, text, moves, where = self.texts[task_id]
        except KeyError:
            raise UnknownTask(
                f"no task {task_id!r} in {self.name} ({self.tier}); see env.unwrapped.task_ids(split)"
            ) from None
        # Only a text by path may be anything but what print_level writes.
        room, start = parse_level(text, where) if self.tier == "path" else read_level(text)
        task = self.read[task_id] = Task(task_id, split, room, start, moves)
        return task


def task_set(name: str, tier: str, tasks: Iterable[tuple[str, str, str, str, str]]) -> TaskSet:
    """From (id, split, XSB text, solution, where it stands)."""
    texts: dict[str, tuple[str, str, str, str]] = {}
    by_split: dict[str, list[str]] = {split: [] for split in SPLITS}
    for task_id, split, *rest in tasks:
        texts[task_id] = (split, rest[0], rest[1], rest[2])
        by_split[split].append(task_id)
    return TaskSet(name, tier, {split: tuple(ids) for split, ids in by_split.items()}, texts)


def write_task(task: Task) -> str:
    """A task as a line of the shipped files."""
    text = "\n".join(level_rows(task.room, task.start))
    return json.dumps({"split": task.split, "level": text, "optimal": len(task.moves), "moves": task.moves})


@lru_cache(maxsize=8)
def load_shipped(difficulty: str) -> TaskSet:
    """The shipped levels of a difficulty."""
    path = DATA / f"{difficulty}.jsonl.gz"
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode("ascii").splitlines()]
    counts = dict.fromkeys(SPLITS, 0)
    rows = []
    for number, record in enumerate(records, start=1):
        split = record["split"]
        task_id = f"sokoban-{difficulty}-mini-{split}-{counts[split]:04d}"
        counts[split] += 1
        rows.append((task_id, split, record["level"], record["moves"], f"{path}, line {number}"))
    return task_set(f"Sokoban-{difficulty}", "mini", rows)
