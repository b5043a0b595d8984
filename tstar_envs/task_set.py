"""Tasks that travel with their hash, so that a table made in another harness can say which tasks it is of.

    tasks = tstar_envs.task_set("tstar/Sokoban-easy", panel="v1")      # or split="train"
    tasks.ids, tasks.hash

Of a panel's tasks it is the panel's own hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.errors import UnknownOption
from tstar_envs.panel import hash_of
from tstar_envs.panel import panel as panel_of
from tstar_envs.registry import find_entry


@dataclass(frozen=True)
class TaskSet:
    """Some tasks of an environment.

    Attributes:
        env: Gymnasium id.
        split: that they are of.
        rules_version: that they are played under.
        ids: in order.
        hash: over all of this, what each task holds, and what they are played in; of a panel's tasks it is the panel's own.
        panel: the panel's version, None where they are no panel's.
        options: of the environment that they are played in; no part of the hash.
    """

    env: str
    split: str
    rules_version: str
    ids: tuple[str, ...]
    hash: str
    panel: str | None
    options: dict[str, Any]

    def make(self) -> TextEnv[Any, Any]:
        """A new environment that plays them; wrappers of Gymnasium are left off."""
        return find_entry(self.env).make(split=self.split, **self.options)

    def id_at(self, index: int) -> str:
        """A task by its place.

        Raises:
            UnknownOption: there is no such place.
        """
        if not 0 <= index < len(self.ids):
            raise UnknownOption(
                f"there is no task {index}: {self.env}, split {self.split!r}, has {len(self.ids)} here, from 0"
            )
        return self.ids[index]

    def record(self) -> dict[str, Any]:
        """What a table or a log says of them."""
        return {
            "env": self.env,
            "split": self.split,
            "rules_version": self.rules_version,
            "panel": self.panel,
            "tasks_hash": self.hash,
        }


def task_set(
    env: str, *, split: str = "test", panel: str | None = None, limit: int | None = None, **options: Any
) -> TaskSet:
    """Tasks of an environment with their hash.

    Args:
        env: Gymnasium id or short name.
        split: all tasks of this split, in its order.
        panel: those of a panel (``v1``) instead; ``split`` is then the panel's.
        limit: only so many, from the first on.
        options: of the environment.

    Raises:
        UnknownOption: no such environment, split, panel or option, or a limit below 1.
        PanelMismatch: the environment as made here does not play the panel's tasks.
    """
    if limit is not None and limit < 1:
        raise UnknownOption(f"limit must be 1 or more, got {limit}")
    entry = find_entry(env)
    part = panel_of(panel)[entry.id] if panel is not None else None
    split = part.split if part is not None else split
    made = entry.make(split=split, **options)
    try:
        if panel is not None:
            panel_of(panel).check(made, entry.id)
        ids = tuple((part.tasks if part is not None else made.task_ids(split))[:limit])
        if part is not None and len(ids) == len(part.tasks):
            own = part.hash
        else:
            digests = {task: made.task_digest(task) for task in ids}
            own = hash_of(entry.id, split, entry.rules_version, made.world_digest(), digests)
    finally:
        made.close()
    return TaskSet(entry.id, split, entry.rules_version, ids, own, panel, dict(options))
