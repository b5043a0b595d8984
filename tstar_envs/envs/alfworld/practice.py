"""Endless practice: fresh games in the training rooms, none of them a held-out one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.alfworld.generate.scenes import fresh_scenes
from tstar_envs.envs.alfworld.rooms import TASK_TYPES, write_scene
from tstar_envs.envs.alfworld.tasks import Task, load_tasks, task_set

TASKS = 160


@lru_cache(maxsize=1)
def held_out_lines() -> frozenset[str]:
    """The shipped games of the other splits than train, as lines of their files."""
    return frozenset(
        f"{str(task.source).rstrip()}"
        for task in load_tasks("all", "mini").tasks.values()
        if task.split != "train"
    )


def practice_set(
    seed: int | str, variants: Sequence[str] = tuple(TASK_TYPES), size: int = TASKS
) -> LoadedTasks[Task]:
    """Fresh train tasks, the task types in turn."""
    held_out = held_out_lines()
    scenes = fresh_scenes(f"practice/{seed}", [TASK_TYPES[variant] for variant in variants])
    kept = islice((scene for scene in scenes if write_scene(scene).rstrip() not in held_out), size)
    return task_set(
        "practice",
        [Task(f"practice-{seed}-{n:04d}", "train", scene.task, scene) for n, scene in enumerate(kept)],
    )
