"""Level generator with proved solution lengths, files of the mini tier, and practice sets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, islice
from pathlib import Path

from tstar_envs.data.generator_command import generator_command
from tstar_envs.data.shipped import write_shipped
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.sokoban.level import (
    LETTERS,
    Room,
    State,
    Task,
    admissible_moves,
    cells,
    level_rows,
    print_level,
    transition,
)
from tstar_envs.envs.sokoban.solver import solution
from tstar_envs.envs.sokoban.tasks import DIFFICULTIES, Difficulty, task_set, write_task
from tstar_envs.utils import SPLITS, StableRandom, check_option

# Shares of the splits out of 6,501 rooms, the sizes of the shipped set.
SHARES = (("train", 5000), ("valid", 501), ("test", 1000))


def canonical_form(rows: Sequence[str]) -> str:
    """Compute a canonical text of a walled grid, invariant under rotation, reflection and translation."""
    filled = [number for number, row in enumerate(rows) if row.strip("#")]
    inside = rows[filled[0] : filled[-1] + 1]
    left = min(len(row) - len(row.lstrip("#")) for row in inside)
    right = min(len(row) - len(row.rstrip("#")) for row in inside)
    grid = [row[left : len(row) - right] for row in inside]
    forms = []
    for _ in range(4):
        turned = ["".join(column) for column in zip(*grid, strict=True)]  # transposed
        forms += ["\n".join(grid), "\n".join(turned)]
        grid = turned[::-1]  # with the transposition: a quarter turn
    return min(forms)


def level_key(room: Room, state: State) -> str:
    """Compute a key that is equal for levels that are equal up to symmetry and translation."""
    return canonical_form(level_rows(room, state))


def room_key(room: Room) -> str:
    """Compute a key of the floor's shape up to symmetry and translation, ignoring targets."""
    return canonical_form(level_rows(room, None))


def split_of_room(room: Room) -> str:
    """Assign a room shape to a split."""
    digest = hashlib.blake2b(room_key(room).encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big") % sum(share for _, share in SHARES)
    for split, share in SHARES:
        if number < share:
            return split
        number -= share
    raise AssertionError("the shares cover every number")


class DistanceTable:
    """Table of distances from states to the nearest solved one.

    If the whole room was searched, missing states are lost.

    Attributes:
        layers: for each distance, box layout -> bit set of the player cells at exactly this distance.
    """

    def __init__(self, room: Room, boxes: int, deepest: int | None = None) -> None:
        """Search backwards from all solved states, up to distance ``deepest`` (None: the whole room)."""
        self.layers: list[dict[int, int]] = []
        self._by_layout: dict[int, list[tuple[int, int]]] = {}
        found: dict[int, int] = {}
        for chosen in combinations(cells(room.targets), boxes):
            layout = sum(1 << cell for cell in chosen)
            found[layout] = room.floor & ~layout
        seen: dict[int, int] = {}
        while found and (deepest is None or len(self.layers) <= deepest):
            layer: dict[int, int] = {}
            for layout, players in found.items():
                known = seen.get(layout, 0)
                fresh = players & ~known
                if fresh:
                    layer[layout] = fresh
                    seen[layout] = known | fresh
                    if known:
                        self._by_layout[layout].append((len(self.layers), fresh))
                    else:
                        self._by_layout[layout] = [(len(self.layers), fresh)]
            if not layer:
                return
            self.layers.append(layer)
            found = _step_back(room, layer)

    def __call__(self, state: State) -> int | None:
        """Look up the distance of a state; None if missing."""
        boxes, player = state
        bit = 1 << player
        for distance, players in self._by_layout.get(boxes, ()):
            if players & bit:
                return distance
        return None


def _step_back(room: Room, layer: dict[int, int]) -> dict[int, int]:
    """Find all states one move before the layer (and some nearer ones)."""
    floor, width = room.floor, room.width
    found: dict[int, int] = {}
    get = found.get
    for layout, players in layer.items():
        free = floor & ~layout
        walked = (players << 1 | players >> 1 | players << width | players >> width) & free
        if walked:
            found[layout] = get(layout, 0) | walked
        # Undo a push: the player steps back and the box follows. In turn for pushes up, down, left, right. The shifts are
        # inlined, because this loop dominates the cost of level generation.
        pulls = players & layout << width & free >> width
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit >> width
            found[before] = get(before, 0) | bit << width
        pulls = players & layout >> width & free << width
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit << width
            found[before] = get(before, 0) | bit >> width
        pulls = players & layout << 1 & free >> 1
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit >> 1
            found[before] = get(before, 0) | bit << 1
        pulls = players & layout >> 1 & free << 1
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit << 1
            found[before] = get(before, 0) | bit >> 1
    return found


@dataclass(frozen=True, slots=True)
class SolutionStatistics:
    """Statistics of a solution; see ``tasks.Difficulty``."""

    pushes: int
    lines: int
    traps: int


def solution_statistics(room: Room, start: State, moves: str, table: DistanceTable) -> SolutionStatistics:
    """Count pushes, box-lines and losing pushes along a solution; ``table`` has every solvable state."""
    pushes = lines = traps = 0
    last: tuple[int, int] | None = None
    state = start
    for letter in moves:
        for direction in admissible_moves(room, state):
            after, pushed = transition(room, state, direction)
            traps += pushed >= 0 and table(after) is None
        direction = LETTERS.index(letter)
        state, pushed = transition(room, state, direction)
        if pushed >= 0:
            pushes += 1
            lines += last != (pushed, direction)
            last = (pushed + room.offsets[direction], direction)
    return SolutionStatistics(pushes, lines, traps)


TURN = 0.35  # probability that the carving walk turns before a step
BROAD = 0.3  # probability that it also carves a neighbouring cell


def generate_level(seed: int | str, difficulty: str = "easy", split: str | None = None) -> Task:
    """Generate a level.

    >>> from tstar_envs.envs.sokoban import generate_level, print_level, solve
    >>> level = generate_level(seed=7, difficulty="easy")
    >>> len(solve(print_level(level.room, level.start))) == len(level.moves)
    True

    Args:
        seed: the same seed gives the same level.
        difficulty: easy, medium or hard.
        split: use only rooms of this split (see ``split_of_room``), None for any. The room of a train level never occurs, up to
            symmetry, in a valid or test level.

    Returns:
        The level, with its solution; its id is ``sokoban-<difficulty>-fresh-<seed>``.

    Raises:
        UnknownOption: unknown difficulty or split.
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
    """Carve a connected floor by a random walk.

    Returns a bit set and the side of its square.
    """
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
    """Place targets, boxes and player, with a solution.

    None if this attempt is not within the bounds.
    """
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
    # A push is known to lose only if its result is in no distance table.
    whole = DistanceTable(room, bounds.boxes) if bounds.trap and len(table.layers) > bounds.longest else table
    found = solution_statistics(room, start, moves, whole)
    if found.pushes < bounds.pushes or found.lines < bounds.lines or (bounds.trap and not found.traps):
        return None
    return room, start, moves


SEED = 20260101
# Sizes of train, valid and test; over the three difficulties 5,000, 501 and 1,000.
SIZES: dict[str, dict[str, int]] = {
    "easy": {"train": 1667, "valid": 167, "test": 334},
    "medium": {"train": 1667, "valid": 167, "test": 333},
    "hard": {"train": 1666, "valid": 167, "test": 333},
}


def stream(difficulty: str, split: str, seed: int = SEED) -> Iterator[Task]:
    """Generate the levels of a shipped split, in order, endlessly.

    Difficulties differ in the number of boxes and splits in their rooms, so duplicates can only occur within the stream.
    """
    seen: set[str] = set()
    for number in count():
        level = generate_level(f"{seed}/{split}/{number}", difficulty, split)
        key = level_key(level.room, level.start)
        if key not in seen:
            seen.add(key)
            yield replace(level, id=f"sokoban-{difficulty}-mini-{split}-{len(seen) - 1:04d}")


def build(difficulty: str, sizes: Mapping[str, int], seed: int = SEED) -> bytes:
    """Build the file of a difficulty, uncompressed, with the given number of levels per split."""
    lines = (
        write_task(level) + "\n"
        for split, size in sizes.items()
        for level in islice(stream(difficulty, split, seed), size)
    )
    return "".join(lines).encode("ascii")


def build_all(seed: int = SEED) -> dict[str, bytes]:
    """Build the files of all difficulties, uncompressed; with the default seed the shipped ones."""
    return {f"{difficulty}.jsonl": build(difficulty, SIZES[difficulty], seed) for difficulty in DIFFICULTIES}


def write(folder: Path, contents: Mapping[str, bytes], seed: int) -> None:
    """Write the files and their manifest."""
    made_by = f"python -m tstar_envs.envs.sokoban.generate --seed {seed} --out FOLDER"
    what = "mini tier of Sokoban, generated by this project (Apache-2.0)"
    write_shipped(folder, contents, what, made_by, sizes=SIZES)


def main() -> None:
    """Run the command line of the generator."""
    out, seed = generator_command(__doc__, SEED)
    contents = build_all(seed)
    write(out, contents, seed)
    print(f"{sum(data.count(10) for data in contents.values())} levels in {out}")


if __name__ == "__main__":
    main()


TASKS = 64


def practice_set(seed: int | str, difficulty: str, tasks: int = TASKS) -> LoadedTasks[Task]:
    """Generate new train levels in distinct rooms up to symmetry, reproducible from the seed."""
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
