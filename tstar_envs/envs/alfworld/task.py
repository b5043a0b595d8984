"""What a task of ALFWorld is: a game, by its scene or its file, in a split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.data.tasks import LoadedTasks, ids_by_split
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.game.scene import Scene
from tstar_envs.envs.alfworld.task_types import TASK_TYPES

# As the field reports it, the test split is ALFWorld's valid_seen; both names are accepted wherever a split is asked for.
SHIPPED_SPLITS = ("train", "valid", "test", "valid_unseen")
# ``valid_train`` is a folder of the download with 200 games out of train; nobody reports it as a test.
SPLITS = (*SHIPPED_SPLITS, "valid_train")
SPLIT_ALIASES = {"valid_seen": "test"}


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        id: unique in its set.
        split: one of ``SPLITS``.
        task_type: ALFRED's name of the type.
        source: a scene, a line of the shipped files, or the path of a ``game.tw-pddl`` file.
        stamp: time and size of that file when the task was found, so that a changed one is read anew.
    """

    id: str
    split: str
    task_type: str
    source: Scene | str | Path
    stamp: tuple[int, int] = (0, 0)

    def __hash__(self) -> int:
        return hash(self.id)


def task_set(
    tier: str, tasks: Iterable[Task], variant: str = "all", left_out: LeftOut = NOTHING_LEFT_OUT
) -> LoadedTasks[Task]:
    """A set of tasks; ``variant`` keeps one task type (a key of ``TASK_TYPES``), "all" keeps all.

    Its splits are the shipped ones, and ``valid_train`` where there is a task of it.
    """
    tasks = tuple(tasks)
    further = [split for split in SPLITS[len(SHIPPED_SPLITS) :] if any(task.split == split for task in tasks)]
    by_id = {task.id: task for task in tasks if variant == "all" or task.task_type == TASK_TYPES[variant]}
    by_split = ids_by_split(((task.id, task.split) for task in by_id.values()), (*SHIPPED_SPLITS, *further))
    name = "ALFWorld" if variant == "all" else f"ALFWorld-{variant}"
    return LoadedTasks(name, tier, by_id, by_split, left_out=left_out)


class LoadedTask(NamedTuple):
    """A task and its game, which is loaded when the task is taken."""

    task: Task
    game: Game
