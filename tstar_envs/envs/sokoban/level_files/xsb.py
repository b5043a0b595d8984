"""Levels as XSB text, the public form, which Boxoban's files use too."""

from __future__ import annotations

from functools import lru_cache

from tstar_envs.data.limits import LEVEL_CELLS
from tstar_envs.envs.sokoban.level_files.symbols import CONTENTS, VALID_SYMBOLS
from tstar_envs.envs.sokoban.state import State, cells, flood
from tstar_envs.envs.sokoban.task import Room
from tstar_envs.errors import BadData

_READABLE = frozenset(CONTENTS) | {"#"}
# Tables from a symbol to 1 or 0: not a wall, box, target, player.
_KINDS = {"#": (0, 0, 0, 0), **{symbol: (1, *contents) for symbol, contents in CONTENTS.items()}}
_BITS = [
    bytes.maketrans("".join(_KINDS).encode("ascii"), bytes(b"01"[bits[kind]] for bits in _KINDS.values()))
    for kind in range(4)
]
_WRITTEN = {contents: symbol for symbol, contents in reversed(CONTENTS.items())}


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
    backwards = (grid[::-1] or "#").encode("ascii")
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
