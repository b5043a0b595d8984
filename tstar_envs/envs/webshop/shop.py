"""Shops: a catalogue with its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.data.tasks import LoadedTasks, ids_by_split
from tstar_envs.envs.webshop.catalogue import Catalogue


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Shop(LoadedTasks[Task]):
    """The tasks of a shop and its catalogue; they travel between processes by how the shop is opened.

    Attributes:
        catalogue: the products and their index.
        opener: a function and its arguments, which give this shop again.
    """

    catalogue: Catalogue
    opener: tuple[Callable[..., Shop], tuple[Any, ...]]

    def __reduce__(self) -> tuple[Callable[..., Shop], tuple[Any, ...]]:
        return self.opener


def make_shop(
    tier: str,
    catalogue: Catalogue,
    tasks: list[Task],
    opener: Callable[..., Shop],
    *arguments: Any,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> Shop:
    """A shop of these tasks, which ``opener(*arguments)`` gives again."""
    return Shop(
        "WebShop",
        tier,
        {task.id: task for task in tasks},
        ids_by_split((task.id, task.split) for task in tasks),
        left_out=left_out,
        catalogue=catalogue,
        opener=(opener, arguments),
    )
