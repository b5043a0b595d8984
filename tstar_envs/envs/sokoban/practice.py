"""Endless practice: fresh levels in rooms of the train split, for warm starts and curricula.

The split of a room is a function of its shape (``symmetry.split_of_room``), so no practice level is in a room that any
level of valid or test has, shipped or fresh, up to the eight symmetries.
"""

from __future__ import annotations

from tstar_envs.envs.sokoban.draw import generate_level
from tstar_envs.envs.sokoban.levels import print_level
from tstar_envs.envs.sokoban.tasks import LevelSet, level_set

LEVELS = 64


def practice_set(seed: int | str, difficulty: str, levels: int = LEVELS) -> LevelSet:
    """So many fresh train levels, the same for the same seed."""
    rows = []
    for number in range(levels):
        level = generate_level(f"practice/{seed}/{number}", difficulty, "train")
        task_id = f"sokoban-{difficulty}-practice-{seed}-{number:04d}"
        rows.append((task_id, "train", print_level(level.room, level.start), level.moves, f"practice level {number} of seed {seed!r}"))
    return level_set(f"Sokoban-{difficulty}", "practice", rows)
