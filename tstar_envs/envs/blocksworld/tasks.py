"""Task sets: shipped tasks, and sets in memory; ``files.load_path`` reads problems by path."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tstar_envs.data.shipped import read_shipped
from tstar_envs.data.tasks import LoadedTasks, ReadWhenAsked, ids_by_split
from tstar_envs.envs.blocksworld.language import read_problem
from tstar_envs.envs.blocksworld.problem import Task
from tstar_envs.utils import SPLITS

VARIANTS = ("stack", "unstack")
DATA = Path(__file__).parent / "data"


def task_set(tier: str, tasks: Iterable[Task]) -> LoadedTasks[Task]:
    """Create a set of tasks in memory."""
    by_id = {task.id: task for task in tasks}
    by_split = ids_by_split((task.id, task.split) for task in by_id.values())
    return LoadedTasks("Blocksworld", tier, by_id, by_split)


def write_task(length: int, start: str, goal: str) -> str:
    """Serialize a task as a line of the shipped files.

    The fields are optimal length, start and goal in compact notation, separated by tabs.
    """
    return f"{length}\t{start}\t{goal}\n"


def shipped_file(variant: str, split: str) -> str:
    """Get the name of a shipped file, without ``.gz``."""
    return f"{variant}.{split}.txt"


@lru_cache(maxsize=len(VARIANTS))
def load_shipped(variant: str) -> LoadedTasks[Task]:
    """Load the shipped tasks of a variant."""
    lines = {
        f"blocksworld-{variant}-mini-{split}-{number:04d}": (split, line)
        for split in SPLITS
        for number, line in enumerate(read_shipped(DATA / f"{shipped_file(variant, split)}.gz"))
    }
    by_split = ids_by_split((task_id, split) for task_id, (split, _) in lines.items())
    return LoadedTasks(f"Blocksworld-{variant}", "mini", ReadWhenAsked(lines, _read), by_split)


def _read(task_id: str, text: tuple[str, str]) -> Task:
    length, start, goal = text[1].split("\t")
    return Task(task_id, text[0], read_problem(start, goal), int(length))
