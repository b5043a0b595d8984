"""Loaded tasks of an environment, and tasks parsed on first access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.errors import UnknownTask
from tstar_envs.utils import SPLITS

Task = TypeVar("Task")
Text = TypeVar("Text")


class ReadWhenAsked(Mapping[str, Task], Generic[Text, Task]):
    """Mapping of tasks by id; each is parsed on first access.

    A few episodes need only a few tasks. All tasks of a large set would be a hundred thousand objects for the garbage collector to
    traverse, which takes as long as ten thousand steps.

    Args:
        texts: task id -> text of the task.
        read: parser of a text.
    """

    def __init__(self, texts: Mapping[str, Text], read: Callable[[str, Text], Task]) -> None:
        self.texts = texts
        self.read = read
        self._read: dict[str, Task] = {}

    def __getitem__(self, task_id: str) -> Task:
        found = self._read.get(task_id)
        if found is None:
            found = self._read[task_id] = self.read(task_id, self.texts[task_id])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class LoadedTasks(Generic[Task]):
    """Loaded tasks of an environment.

    Attributes:
        name: name of the environment in error messages.
        tier: ``mini`` (shipped), ``full`` (published), ``practice`` (generated) or ``path``.
        tasks: task id -> task.
        by_split: split -> task ids in order.
        solved: ids of tasks whose goal holds at the start.
        left_out: unusable items.
    """

    name: str
    tier: str
    tasks: Mapping[str, Task]
    by_split: Mapping[str, tuple[str, ...]]
    solved: tuple[str, ...] = ()
    left_out: LeftOut = NOTHING_LEFT_OUT

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # immutable after loading, so copies of an environment share it

    def task(self, task_id: str) -> Task:
        """Look up a task by id.

        Raises:
            UnknownTask: unknown id.
        """
        try:
            return self.tasks[task_id]
        except KeyError:
            raise UnknownTask(
                f"no task {task_id!r} in {self.name} ({self.tier}); see env.unwrapped.task_ids(split)"
            ) from None


def ids_by_split(
    tasks: Iterable[tuple[str, str]], splits: Iterable[str] = SPLITS
) -> dict[str, tuple[str, ...]]:
    """Group task ids by split in order, from the (id, split) of each task; splits without tasks are included."""
    found: dict[str, list[str]] = {split: [] for split in splits}
    for task_id, split in tasks:
        found[split].append(task_id)
    return {split: tuple(ids) for split, ids in found.items()}
