"""Endless practice: fresh levels in rooms of the train split, each set's in rooms of their own, for warm starts and curricula.

The split of a room is a function of its shape (``generate.symmetry.split_of_room``), so no practice level is in a room that any
level of valid or test has, shipped or fresh, up to the eight symmetries. A few rooms are drawn again and again (of 4,000 easy
levels more than a quarter are in one), and who practises them in that proportion learns them by heart.
"""

from __future__ import annotations

from itertools import count

from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.sokoban.generate import generate_level, room_key
from tstar_envs.envs.sokoban.level import Task, print_level
from tstar_envs.envs.sokoban.tasks import task_set

__all__ = ["TASKS", "generate_level", "practice_set"]

TASKS = 64


def practice_set(seed: int | str, difficulty: str, tasks: int = TASKS) -> LoadedTasks[Task]:
    """Fresh train levels, no two in the same room up to symmetry, and the same for the same seed."""
    rows: list[tuple[str, str, str, str, str]] = []
    rooms: set[str] = set()
    for number in count():
        if len(rows) == tasks:
            break
        level = generate_level(f"practice/{seed}/{number}", difficulty, "train")
        if (room := room_key(level.room)) in rooms:
            continue
        rooms.add(room)
        task_id = f"sokoban-{difficulty}-practice-{seed}-{len(rows):04d}"
        text, where = print_level(level.room, level.start), f"practice level {number} of seed {seed!r}"
        rows.append((task_id, "train", text, level.moves, where))
    return task_set(f"Sokoban-{difficulty}", "practice", rows)
