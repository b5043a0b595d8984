"""The games of the mini tier, in the compact form in which they ship."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tstar_envs.data.shipped import read_shipped
from tstar_envs.envs.alfworld.game.house import House, read_house
from tstar_envs.envs.alfworld.game.scene import Scene, read_scene
from tstar_envs.envs.alfworld.task import SHIPPED_SPLITS, Task

DATA = Path(__file__).parent / "data"


@lru_cache(maxsize=1)
def shipped_houses() -> dict[int, House]:
    """The houses of the mini tier by scene number."""
    return {house.scene: house for house in map(read_house, read_shipped(DATA / "houses.txt.gz"))}


@lru_cache(maxsize=1)
def shipped_tasks() -> tuple[Task, ...]:
    """The tasks of the mini tier, in the order of the splits."""
    tasks = []
    for split in SHIPPED_SPLITS:
        for number, line in enumerate(read_shipped(DATA / f"{split}.txt.gz")):
            tasks.append(Task(f"alfworld-mini-{split}-{number:04d}", split, line.split("\t", 2)[1], line))
    return tuple(tasks)


def scene_of(task: Task) -> Scene | None:
    """The compact scene of a task, None for a game of the public format."""
    if isinstance(task.source, Path):
        return None
    return read_scene(task.source, shipped_houses()) if isinstance(task.source, str) else task.source
