"""Levels: rooms and states as bit sets of cells, and the public XSB text form (which Boxoban's files use too).

Cell (row, column) is bit ``row * width + column``. A room's floor is what the player can reach if no box were in the
way; everything else counts as wall. Floor never touches the edge of the grid, so shifting a set of floor cells by one
step in any direction never wraps around into other floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from tstar_envs.data.limits import LEVEL_CELLS
from tstar_envs.errors import BadData

# XSB symbol -> (box, target, player); "-" and "_" are other ways to write floor, and some programs write letters for signs.
_CONTENTS = {
    " ": (0, 0, 0),
    "-": (0, 0, 0),
    "_": (0, 0, 0),
    "$": (1, 0, 0),
    ".": (0, 1, 0),
    "*": (1, 1, 0),
    "@": (0, 0, 1),
    "+": (0, 1, 1),
    "b": (1, 0, 0),
    "o": (0, 1, 0),
    "O": (0, 1, 0),
    "B": (1, 1, 0),
    "p": (0, 0, 1),
    "P": (0, 1, 1),
}
XSB_LETTERS = "bBoOpP"
XSB_SYMBOLS = frozenset(_CONTENTS) - set(XSB_LETTERS) | {"#"}
FLOOR_SYMBOLS = frozenset(" -_")
VALID_SYMBOLS = "valid symbols: # $ . * @ + and space, - or _ (or b o B p P for $ . * @ +)"
_READABLE = frozenset(_CONTENTS) | {"#"}
# Tables from a symbol to 1 or 0: not a wall, box, target, player.
_BITS = [
    str.maketrans(
        {
            symbol: str(bits[kind])
            for symbol, bits in [("#", (0, 0, 0, 0)), *((s, (1, *c)) for s, c in _CONTENTS.items())]
        }
    )
    for kind in range(4)
]
_WRITTEN = {contents: symbol for symbol, contents in reversed(_CONTENTS.items())}


# Where things stand: the boxes as a bit set of cells, and the player's cell. A plain tuple, since many states are remembered: the
# garbage collector leaves plain tuples of numbers alone, and walks over objects of any class of our own again and again.
State: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Room:
    """What never changes in a level.

    Attributes:
        height: rows, walls included.
        width: columns, walls included.
        floor: bit set of the cells that player and boxes can be on.
        targets: bit set of the cells that boxes belong on.
        offsets: what Up, Down, Left and Right add to a cell.
    """

    height: int
    width: int
    floor: int
    targets: int
    offsets: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", (-self.width, self.width, -1, 1))

    def place(self, cell: int) -> tuple[int, int]:
        """Row and column of a cell, from 0."""
        return divmod(cell, self.width)


@dataclass(frozen=True, slots=True)
class Level:
    """One task.

    Attributes:
        id: unique in its set.
        split: train, valid or test.
        room: walls and targets.
        start: boxes and player at the start.
        moves: an optimal solution as letters of UDLR, "" if none is known.
    """

    id: str
    split: str
    room: Room
    start: State
    moves: str = ""


_LONG = 4096  # bits


def cells(bits: int) -> Iterator[int]:
    """The cells of a bit set, ascending."""
    if (
        bits.bit_length() > _LONG
    ):  # taking cells out of millions of bits one by one would take the square of their number
        data = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
        for start in range(0, len(data), _LONG // 8):
            yield from (
                8 * start + cell for cell in cells(int.from_bytes(data[start : start + _LONG // 8], "little"))
            )
        return
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def shift(bits: int, offset: int) -> int:
    """A bit set moved by an offset."""
    return bits << offset if offset > 0 else bits >> -offset


def flood(floor: int, start: int, width: int) -> int:
    """The cells of ``floor`` connected with ``start`` (both bit sets)."""
    reached, layer = start, start
    while layer:
        layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & floor & ~reached
        reached |= layer
    return reached


def parse_level(text: str, where: str = "level text") -> tuple[Room, State]:
    """Read a level in XSB text.

    Args:
        text: rows of ``#`` wall, ``$`` box, ``.`` target, ``*`` box on target, ``@`` player, ``+`` player on target, and
            space, ``-`` or ``_`` for floor; or the letters that stand for them: ``b``, ``o``, ``B``, ``p``, ``P``. Rows may differ
            in length.
        where: how error messages name the text.

    Raises:
        BadData: not a level that can be played, or more cells than ``TSTAR_MAX_LEVEL_CELLS``; the message says why.
    """
    rows = [row.rstrip() for row in text.strip("\r\n").splitlines()]
    height, width = len(rows), max(map(len, rows), default=0)
    LEVEL_CELLS.check(height * width, where)
    grid = "".join(row.ljust(width) for row in rows)
    if not _READABLE.issuperset(grid):
        wrong = next(cell for cell, symbol in enumerate(grid) if symbol not in _READABLE)
        found = f"row {wrong // width}, column {wrong % width} holds {grid[wrong]!r}"
        raise BadData(f"{where}: {found}; {VALID_SYMBOLS}")
    not_wall, boxes, targets, player = _bits(grid)
    if player.bit_count() != 1:
        advice = "; between two levels stands a blank line" if player.bit_count() > 1 else ""
        raise BadData(f"{where}: a level has one player (@ or +), this one has {player.bit_count()}{advice}")
    floor = flood(not_wall, player, width)
    for cell in cells(floor & _edge(height, width)):
        raise BadData(
            f"{where}: the room is not closed by walls at row {cell // width}, column {cell % width} of the level, counted from 0; "
            "is a row missing or cut off?"
        )
    if boxes & ~floor & ~targets:
        row, column = divmod(next(cells(boxes & ~floor & ~targets)), width)
        raise BadData(f"{where}: the player can never reach the box at row {row}, column {column}")
    boxes, targets = boxes & floor, targets & floor
    if not boxes or boxes.bit_count() > targets.bit_count():
        found = f"{boxes.bit_count()} boxes and {targets.bit_count()} targets"
        raise BadData(f"{where}: a level needs at least one box, and a target for each; in reach are {found}")
    return Room(height, width, floor, targets), (boxes, player.bit_length() - 1)


def read_level(text: str) -> tuple[Room, State]:
    """Read what ``print_level`` wrote, several times as fast as ``parse_level``: nothing is checked."""
    width = text.index("\n")
    grid = text.replace("\n", "")
    floor, boxes, targets, player = _bits(grid)
    return Room(len(grid) // width, width, floor, targets), (boxes, player.bit_length() - 1)


def _bits(grid: str) -> list[int]:
    """Where a grid has no wall, a box, a target, the player, as bit sets."""
    backwards = grid[::-1] or "#"
    return [int(backwards.translate(table), 2) for table in _BITS]


@lru_cache(maxsize=256)
def _edge(height: int, width: int) -> int:
    """The outermost cells of a grid."""
    return sum(
        1 << cell
        for cell in range(height * width)
        if cell // width in (0, height - 1) or cell % width in (0, width - 1)
    )


def level_rows(room: Room, state: State | None, floor: str = " ") -> list[str]:
    """A level as rows of XSB text; with no state the bare room (walls and floor only)."""
    grid = ["#"] * (room.height * room.width)
    for cell in cells(room.floor):
        grid[cell] = floor
    if state is not None:
        boxes, player = state
        for cell in {player, *cells(boxes), *cells(room.targets)}:
            contents = (boxes >> cell & 1, room.targets >> cell & 1, int(player == cell))
            grid[cell] = _WRITTEN[contents]
    return ["".join(grid[start : start + room.width]) for start in range(0, len(grid), room.width)]


def print_level(room: Room, state: State) -> str:
    """A level as XSB text, the inverse of ``parse_level``."""
    return "\n".join(level_rows(room, state))
