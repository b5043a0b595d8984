"""Fresh levels of a wanted optimal length: a random room, all its states with their exact distances, and one of them.

The same seed gives the same level on every machine and Python version.
"""

from __future__ import annotations

from dataclasses import dataclass

from tstar_envs.choices import SPLITS, check_option
from tstar_envs.envs.sokoban.levels import Level, Room, State, cells
from tstar_envs.envs.sokoban.plan import solution
from tstar_envs.envs.sokoban.retrograde import DistanceTable
from tstar_envs.envs.sokoban.rules import LETTERS, move, open_moves
from tstar_envs.envs.sokoban.symmetry import split_of_room
from tstar_envs.stable_random import StableRandom

TURN = 0.35  # chance that the carving walk turns before a step
BROAD = 0.3  # chance that it carves a neighbouring cell as well


@dataclass(frozen=True, slots=True)
class Tier:
    """What makes a difficulty.

    Attributes:
        horizon: default number of steps.
        sizes: sides of the square rooms, walls included.
        boxes: how many.
        floor: least and most floor cells.
        shortest: least optimal length, in moves.
        longest: greatest optimal length.
        pushes: least number of pushes in the solution.
        lines: least number of box-lines (pushes of one box in one direction on end count as one).
        trap: whether some push that is open along the solution must lose.
    """

    horizon: int
    sizes: tuple[int, ...]
    boxes: int
    floor: tuple[int, int]
    shortest: int
    longest: int
    pushes: int
    lines: int = 1
    trap: bool = False


TIERS: dict[str, Tier] = {
    "easy": Tier(20, (6, 7), 1, (8, 18), 5, 12, pushes=2),
    "medium": Tier(40, (7, 8), 2, (12, 24), 13, 24, pushes=2),
    "hard": Tier(60, (8, 9, 10), 3, (18, 30), 25, 40, pushes=7, lines=4, trap=True),
}


@dataclass(frozen=True, slots=True)
class Measures:
    """Figures of a solution; see ``Tier``."""

    pushes: int
    lines: int
    traps: int


def generate_level(seed: int | str, difficulty: str = "easy", split: str | None = None) -> Level:
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
    check_option("difficulty", difficulty, tuple(TIERS))
    check_option("split", split, (None, *SPLITS))
    draw = StableRandom(f"sokoban/{difficulty}/{seed}")
    tier = TIERS[difficulty]
    while True:
        floor, size = _carve(draw, tier)
        owner = split_of_room(Room(size, size, floor, 0))
        if split not in (None, owner):
            continue
        found = _place(draw, tier, floor, size)
        if found is not None:
            return Level(f"sokoban-{difficulty}-fresh-{seed}", owner, *found)


def _carve(draw: StableRandom, tier: Tier) -> tuple[int, int]:
    """A connected floor as a bit set, and the side of its square: a walk that keeps its direction for a while."""
    size = draw.choice(tier.sizes)
    offsets = (-size, size, -1, 1)
    inside = sum(1 << row * size + column for row in range(1, size - 1) for column in range(1, size - 1))
    least, most = tier.floor
    wanted = min(least + draw.below(most - least + 1), (size - 2) ** 2)
    cell = (1 + draw.below(size - 2)) * size + 1 + draw.below(size - 2)
    floor, count = 1 << cell, 1
    offset = draw.choice(offsets)
    while count < wanted:
        if draw.chance(TURN) or not inside >> cell + offset & 1:
            offset = draw.choice(offsets)
            continue
        cell += offset
        beside = cell + draw.choice(offsets) if draw.chance(BROAD) else cell
        floor |= (1 << cell | 1 << beside) & inside
        count = floor.bit_count()
    return floor, size


def _place(draw: StableRandom, tier: Tier, floor: int, size: int) -> tuple[Room, State, str] | None:
    """Targets, boxes and player for a room, with the solution; None if this draw gives no level of the tier."""
    places = draw.shuffled(list(cells(floor)))
    room = Room(size, size, floor, sum(1 << cell for cell in places[: tier.boxes]))
    table = DistanceTable(room, tier.boxes, tier.longest)
    if len(table.layers) <= tier.shortest:
        return None
    length = tier.shortest + draw.below(len(table.layers) - tier.shortest)
    layer = table.layers[length].items()
    starts = [
        (layout, player)
        for layout, players in layer
        if not layout & room.targets
        for player in cells(players)
    ]
    if not starts:
        return None
    start = draw.choice(starts)
    moves = solution(room, start, length, table)
    # A push is known to lose only if no distance at all is known for its result.
    whole = DistanceTable(room, tier.boxes) if tier.trap and len(table.layers) > tier.longest else table
    measures = measure(room, start, moves, whole)
    if measures.pushes < tier.pushes or measures.lines < tier.lines or (tier.trap and not measures.traps):
        return None
    return room, start, moves


def measure(room: Room, start: State, moves: str, table: DistanceTable) -> Measures:
    """Pushes, box-lines and losing pushes met along a solution; ``table`` knows every state that is not lost."""
    pushes = lines = traps = 0
    last: tuple[int, int] | None = None
    state = start
    for letter in moves:
        for direction in open_moves(room, state):
            after, pushed = move(room, state, direction)
            traps += pushed >= 0 and table(after) is None
        direction = LETTERS.index(letter)
        state, pushed = move(room, state, direction)
        if pushed >= 0:
            pushes += 1
            lines += last != (pushed, direction)
            last = (pushed + room.offsets[direction], direction)
    return Measures(pushes, lines, traps)
