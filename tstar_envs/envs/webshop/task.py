"""What a task of WebShop is: a goal, in a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One goal.

    Attributes:
        id: unique in its shop.
        split: train, valid or test.
        goal: the original's goal fields.
        nouns: of the target's title.
        query: the obvious query for it.
    """

    id: str
    split: str
    goal: Mapping[str, Any]
    nouns: tuple[str, ...]
    query: str
    instruction: str = field(default="")


def task_to_record(task: Task) -> dict[str, Any]:
    """A task as a line of a file."""
    return {
        "id": task.id,
        "split": task.split,
        "query": task.query,
        "nouns": list(task.nouns),
        "goal": dict(task.goal),
    }


def task_from_record(record: dict[str, Any]) -> Task:
    """The task of such a line."""
    goal = record["goal"]
    return Task(
        record["id"], record["split"], goal, tuple(record["nouns"]), record["query"], goal["instruction_text"]
    )
