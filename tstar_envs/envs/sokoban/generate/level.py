"""The level generator: a random room, the exact distances of all its states, and one of them of the wanted optimal length.

The same seed gives the same level on every machine and Python version.
"""

from __future__ import annotations

from tstar_envs.choices import SPLITS, check_option
from tstar_envs.envs.sokoban.difficulties import DIFFICULTIES, Difficulty
from tstar_envs.envs.sokoban.generate.retrograde import DistanceTable
from tstar_envs.envs.sokoban.generate.statistics import solution_statistics
from tstar_envs.envs.sokoban.generate.symmetry import split_of_room
from tstar_envs.envs.sokoban.solver.solution import solution
from tstar_envs.envs.sokoban.state import State, cells
from tstar_envs.envs.sokoban.task import Room, Task
from tstar_envs.stable_random import StableRandom

TURN = 0.35  # chance that the carving walk turns before a step
BROAD = 0.3  # chance that it carves a neighbouring cell as well


def generate_level(seed: int | str, difficulty: str = "easy", split: str | None = None) -> Task:
    """A fresh level.

    Args:
        seed: same seed, same level.
        difficulty: easy, medium or hard.
        split: only rooms that belong to this split (see ``symmetry.split_of_room``), None for any. A level made for train
            shares its room, up to symmetry, with no level of valid or test, shipped or fresh.

    Returns:
        The level, with its solution; its id is ``sokoban-<difficulty>-fresh-<seed>``.

    Raises:
        UnknownOption: no such difficulty or split.
    """
    check_option("difficulty", difficulty, tuple(DIFFICULTIES))
    check_option("split", split, (None, *SPLITS))
    rng = StableRandom(f"sokoban/{difficulty}/{seed}")
    bounds = DIFFICULTIES[difficulty]
    while True:
        floor, size = _carve(rng, bounds)
        owner = split_of_room(Room(size, size, floor, 0))
        if split not in (None, owner):
            continue
        found = _place(rng, bounds, floor, size)
        if found is not None:
            return Task(f"sokoban-{difficulty}-fresh-{seed}", owner, *found)


def _carve(rng: StableRandom, bounds: Difficulty) -> tuple[int, int]:
    """A connected floor as a bit set, and the side of its square: a walk that keeps its direction for a while."""
    size = rng.choice(bounds.sizes)
    offsets = (-size, size, -1, 1)
    inside = sum(1 << row * size + column for row in range(1, size - 1) for column in range(1, size - 1))
    least, most = bounds.floor
    wanted = min(least + rng.below(most - least + 1), (size - 2) ** 2)
    cell = (1 + rng.below(size - 2)) * size + 1 + rng.below(size - 2)
    floor, count = 1 << cell, 1
    offset = rng.choice(offsets)
    while count < wanted:
        if rng.chance(TURN) or not inside >> cell + offset & 1:
            offset = rng.choice(offsets)
            continue
        cell += offset
        beside = cell + rng.choice(offsets) if rng.chance(BROAD) else cell
        floor |= (1 << cell | 1 << beside) & inside
        count = floor.bit_count()
    return floor, size


def _place(rng: StableRandom, bounds: Difficulty, floor: int, size: int) -> tuple[Room, State, str] | None:
    """Targets, boxes and player for a room, with the solution; None if this try gives no level within the bounds."""
    places = rng.shuffled(list(cells(floor)))
    room = Room(size, size, floor, sum(1 << cell for cell in places[: bounds.boxes]))
    table = DistanceTable(room, bounds.boxes, bounds.longest)
    if len(table.layers) <= bounds.shortest:
        return None
    length = bounds.shortest + rng.below(len(table.layers) - bounds.shortest)
    layer = table.layers[length].items()
    starts = [
        (layout, player)
        for layout, players in layer
        if not layout & room.targets
        for player in cells(players)
    ]
    if not starts:
        return None
    start = rng.choice(starts)
    moves = solution(room, start, length, table)
    # A push is known to lose only if no distance at all is known for its result.
    whole = DistanceTable(room, bounds.boxes) if bounds.trap and len(table.layers) > bounds.longest else table
    found = solution_statistics(room, start, moves, whole)
    if found.pushes < bounds.pushes or found.lines < bounds.lines or (bounds.trap and not found.traps):
        return None
    return room, start, moves
