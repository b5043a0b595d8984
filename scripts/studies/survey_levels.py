"""How near the held-out Sokoban levels are to the train levels, and how many of them share a room.

    python scripts/studies/survey_levels.py

Two levels are alike here if boxes, targets and player stand in the same places to one another and the shipped solutions are the same,
up to the eight symmetries: only walls then differ. (Equal levels, and rooms in two splits, do
not occur: tests/envs/sokoban/test_sokoban_data.py.)
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

from tstar_envs.envs.sokoban import Task
from tstar_envs.envs.sokoban.generate import room_key
from tstar_envs.envs.sokoban.level import LETTERS, cells
from tstar_envs.envs.sokoban.tasks import DIFFICULTIES, load_shipped

WAYS = dict(zip(LETTERS, ((-1, 0), (1, 0), (0, -1), (0, 1)), strict=True))
Place = tuple[int, int]
SYMMETRIES: tuple[Callable[[Place], Place], ...] = tuple(
    lambda place, a=a, b=b, swap=swap: (a * place[swap], b * place[1 - swap])
    for a in (1, -1)
    for b in (1, -1)
    for swap in (0, 1)
)


def likeness(level: Task) -> Any:
    """Equal exactly for levels that are alike."""
    room, (boxes, player) = level.room, level.start
    origin = room.place(player)

    def from_player(bits: int) -> list[Place]:
        return [(row - origin[0], column - origin[1]) for row, column in map(room.place, cells(bits))]

    return min(
        (
            sorted(map(turn, from_player(boxes))),
            sorted(map(turn, from_player(room.targets))),
            [turn(WAYS[m]) for m in level.moves],
        )
        for turn in SYMMETRIES
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    print(
        "| difficulty | test levels | alike one of train | rooms of them | levels of the five fullest rooms |\n|---|---|---|---|---|"
    )
    for difficulty in DIFFICULTIES:
        levels = load_shipped(difficulty)
        train = [likeness(levels.task(task)) for task in levels.by_split["train"]]
        test = [levels.task(task) for task in levels.by_split["test"]]
        alike = sum(likeness(level) in train for level in test)
        rooms = Counter(room_key(level.room) for level in test)
        print(
            f"| {difficulty} | {len(test)} | {alike} | {len(rooms)} | {', '.join(str(n) for _, n in rooms.most_common(5))} |"
        )


if __name__ == "__main__":
    main()
