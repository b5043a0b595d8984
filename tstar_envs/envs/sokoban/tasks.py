"""Sets of tasks, and the shipped ones; ``level_files`` reads levels by path."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tstar_envs.choices import SPLITS
from tstar_envs.data.shipped import read_shipped_records
from tstar_envs.data.tasks import LoadedTasks, ReadWhenAsked, ids_by_split
from tstar_envs.envs.sokoban.level_files.xsb import level_rows, parse_level, read_level
from tstar_envs.envs.sokoban.task import Task

DATA = Path(__file__).parent / "data"


Text = tuple[str, str, str, str]  # split, XSB text, solution or "", where it stands


def task_set(name: str, tier: str, tasks: Iterable[tuple[str, str, str, str, str]]) -> LoadedTasks[Task]:
    """A task set from (id, split, XSB text, solution, place in its file) of each level; a level is parsed when it is first used."""
    texts: dict[str, Text] = {
        task_id: (split, text, moves, where) for task_id, split, text, moves, where in tasks
    }
    # Only a text by path may be anything but what print_level writes.
    read = _read_public if tier == "path" else _read_own
    by_split = ids_by_split((task_id, text[0]) for task_id, text in texts.items())
    return LoadedTasks(name, tier, ReadWhenAsked(texts, read), by_split)


def _read_public(task_id: str, text: Text) -> Task:
    return Task(task_id, text[0], *parse_level(text[1], text[3]), text[2])


def _read_own(task_id: str, text: Text) -> Task:
    return Task(task_id, text[0], *read_level(text[1]), text[2])


def write_task(task: Task) -> str:
    """A task as a line of the shipped files."""
    text = "\n".join(level_rows(task.room, task.start))
    return json.dumps({"split": task.split, "level": text, "optimal": len(task.moves), "moves": task.moves})


@lru_cache(maxsize=8)
def load_shipped(difficulty: str) -> LoadedTasks[Task]:
    """The shipped levels of a difficulty."""
    path = DATA / f"{difficulty}.jsonl.gz"
    counts = dict.fromkeys(SPLITS, 0)
    rows = []
    for number, record in enumerate(read_shipped_records(path), start=1):
        split = record["split"]
        task_id = f"sokoban-{difficulty}-mini-{split}-{counts[split]:04d}"
        counts[split] += 1
        rows.append((task_id, split, record["level"], record["moves"], f"{path}, line {number}"))
    return task_set(f"Sokoban-{difficulty}", "mini", rows)
