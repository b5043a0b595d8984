"""Levels: room, states as bit sets, moves, XSB text, and parsing of actions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from tstar_envs.data.files import LEVEL_CELLS
from tstar_envs.errors import BadData, UnknownOption
from tstar_envs.horizon import check_seconds
from tstar_envs.react import AROUND_ACTION
from tstar_envs.utils import is_whole

# Boxes as a bit set of cells, and the player's cell. A plain tuple, because many states are cached: the garbage
# collector untracks tuples of numbers, but keeps scanning instances of classes.
State: TypeAlias = tuple[int, int]

_LONG = 4096  # bits


def cells(bits: int) -> Iterator[int]:
    """Iterate over the cells of a bit set, ascending."""
    # Removing cells one by one from millions of bits would take quadratic time.
    if bits.bit_length() > _LONG:
        data = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
        for start in range(0, len(data), _LONG // 8):
            chunk = int.from_bytes(data[start : start + _LONG // 8], "little")
            yield from (8 * start + cell for cell in cells(chunk))
        return
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def shift(bits: int, offset: int) -> int:
    """Shift a bit set by an offset."""
    return bits << offset if offset > 0 else bits >> -offset


def flood(floor: int, start: int, width: int) -> int:
    """Find the cells of ``floor`` connected with ``start`` (both bit sets)."""
    reached, layer = start, start
    while layer:
        layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & floor & ~reached
        reached |= layer
    return reached


@lru_cache(maxsize=64)
def _offsets(width: int) -> tuple[int, int, int, int]:
    return -width, width, -1, 1


@dataclass(frozen=True, slots=True)
class Room:
    """Immutable part of a level: walls and targets.

    Attributes:
        height: rows, walls included.
        width: columns, walls included.
        floor: bit set of the floor cells.
        targets: bit set of the target cells.
        offsets: cell offsets of Up, Down, Left and Right.
    """

    height: int
    width: int
    floor: int
    targets: int
    offsets: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", _offsets(self.width))

    def place(self, cell: int) -> tuple[int, int]:
        """Convert a cell to row and column, from 0."""
        return divmod(cell, self.width)


@dataclass(frozen=True, slots=True)
class Task:
    """One level with its solution.

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

    def __hash__(self) -> int:
        # Hashing all fields would cost more than a step, and every reset looks up a view.
        return hash(self.id)


DIRECTIONS = ("Up", "Down", "Left", "Right")
LETTERS = "UDLR"
_SUBSETS = tuple(tuple(d for d in range(4) if bits >> d & 1) for bits in range(16))


def transition(room: Room, state: State, direction: int) -> tuple[State, int]:
    """Apply one move.

    Args:
        room: walls and targets.
        state: boxes and player.
        direction: index into ``DIRECTIONS``.

    Returns:
        The next state (the same object if nothing moved), and the cell of the pushed box, -1 for none.
    """
    boxes, player = state
    offset = room.offsets[direction]
    ahead = player + offset
    if boxes >> ahead & 1:
        beyond = ahead + offset
        if not room.floor >> beyond & 1 or boxes >> beyond & 1:
            return state, -1
        return (boxes ^ 1 << ahead ^ 1 << beyond, ahead), ahead
    return ((boxes, ahead), -1) if room.floor >> ahead & 1 else (state, -1)


def admissible_moves(room: Room, state: State) -> tuple[int, ...]:
    """List the moves that change something, as indexes into ``DIRECTIONS``."""
    boxes, player = state
    width, free = room.width, room.floor & ~boxes
    # Inlined, because many new states pass here.
    up = free >> player - width & 1 or (boxes >> player - width & 1 and free >> player - 2 * width & 1)
    down = free >> player + width & 1 or (boxes >> player + width & 1 and free >> player + 2 * width & 1)
    left = free >> player - 1 & 1 or (boxes >> player - 1 & 1 and free >> player - 2 & 1)
    right = free >> player + 1 & 1 or (boxes >> player + 1 & 1 and free >> player + 2 & 1)
    return _SUBSETS[up | down << 1 | left << 2 | right << 3]


def is_solved(room: Room, state: State) -> bool:
    """Check whether every box is on a target."""
    return not state[0] & ~room.targets


def region(room: Room, state: State) -> int:
    """Find the cells that the player can reach, as a bit set."""
    boxes, player = state
    return flood(room.floor & ~boxes, 1 << player, room.width)


MOST_MOVES = 10  # moves per turn with ``multi_action``
_BETWEEN_MOVES = re.compile(r"\s*+(?:\|\|?+|[,;])\s*+|\s++")
_AROUND_MOVES = AROUND_ACTION + "|"
_NUMBER = {name.lower(): number for number, name in enumerate(DIRECTIONS)}


class Command(NamedTuple):
    """Parsed action.

    Attributes:
        moves: moves (indexes into ``DIRECTIONS``), empty for an invalid action.
        problem: error message for the agent, "" if valid.
        reason: error message for the agent's developer.
    """

    moves: tuple[int, ...]
    problem: str = ""
    reason: str = ""


def read_command(action: str, multi_action: bool = False) -> Command:
    """Parse one move, or with ``multi_action`` several joined by ``||``, commas, semicolons or spaces.

    Case and punctuation around words are ignored.
    """
    number = _NUMBER.get(action.lower())
    if number is not None:
        return Command((number,))
    words = _BETWEEN_MOVES.split(action.strip(_AROUND_MOVES))
    moves = tuple(_NUMBER.get(word.strip(AROUND_ACTION).lower(), -1) for word in words)
    if multi_action:
        if -1 in moves:
            return _refused(
                "the action must be Up, Down, Left or Right, or several of them joined by || or commas"
            )
        if len(moves) > MOST_MOVES:
            return _refused(f"a turn takes at most {MOST_MOVES} moves, got {len(moves)}")
    elif len(moves) > 1 or moves == (-1,):
        reason = f"a turn takes one move, got {len(moves)}; the option multi_action allows several"
        return _refused("the action must be Up, Down, Left or Right", "" if -1 in moves else reason)
    return Command(moves)


def _refused(problem: str, reason: str = "") -> Command:
    return Command((), problem, reason or problem)


# XSB symbol -> (box, target, player); "-" and "_" also mean floor, and some programs use letters.
CONTENTS = {
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


XSB_SYMBOLS = frozenset(CONTENTS) - set(XSB_LETTERS) | {"#"}


FLOOR_SYMBOLS = frozenset(" -_")


VALID_SYMBOLS = "valid symbols: # $ . * @ + and space, - or _ (or b o B p P for $ . * @ +)"


_READABLE = frozenset(CONTENTS) | {"#"}


# Tables from a symbol to 1 or 0: not a wall, box, target, player.
_KINDS = {"#": (0, 0, 0, 0), **{symbol: (1, *contents) for symbol, contents in CONTENTS.items()}}


_BITS = [
    bytes.maketrans("".join(_KINDS).encode("ascii"), bytes(b"01"[bits[kind]] for bits in _KINDS.values()))
    for kind in range(4)
]


_WRITTEN = {contents: symbol for symbol, contents in reversed(CONTENTS.items())}


def parse_level(text: str, where: str = "level text") -> tuple[Room, State]:
    r"""Parse a level in XSB text.

    >>> room, state = parse_level("#####\n#@$.#\n#####")
    >>> room.height, room.width
    (3, 5)

    Args:
        text: rows of ``#`` wall, ``$`` box, ``.`` target, ``*`` box on target, ``@`` player, ``+`` player on target, and
            space, ``-`` or ``_`` for floor; or the letters ``b``, ``o``, ``B``, ``p``, ``P``. Rows may differ in length.
            where: name of the text in error messages.

    Raises:
        BadData: the level is not playable, or has more cells than ``TSTAR_MAX_LEVEL_CELLS``; the message says why.
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
    """Parse the output of ``print_level`` without checks, several times faster than ``parse_level``."""
    width = text.index("\n")
    grid = text.replace("\n", "")
    floor, boxes, targets, player = _bits(grid)
    return Room(len(grid) // width, width, floor, targets), (boxes, player.bit_length() - 1)


def _bits(grid: str) -> list[int]:
    """Convert a grid to bit sets of floor, boxes, targets and player."""
    backwards = (grid[::-1] or "#").encode("ascii")
    return [int(backwards.translate(table), 2) for table in _BITS]


@lru_cache(maxsize=256)
def _edge(height: int, width: int) -> int:
    """Compute the outermost cells of a grid."""
    return sum(
        1 << cell
        for cell in range(height * width)
        if cell // width in (0, height - 1) or cell % width in (0, width - 1)
    )


def level_rows(room: Room, state: State | None, floor: str = " ") -> list[str]:
    """Format a level as rows of XSB text; without a state only walls and floor."""
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
    """Format a level as XSB text, the inverse of ``parse_level``."""
    return "\n".join(level_rows(room, state))


SOLVER_STATES = 1_000_000  # about 300 MB; ten seconds with four boxes, a minute with seven


SOLVER_SECONDS = 120.0


def check_solver_bounds(states: object, seconds: object) -> None:
    """Validate the limits of a search; raises UnknownOption."""
    if not is_whole(states) or states < 1:
        raise UnknownOption(f"solver_states must be a whole number of at least 1, got {states!r:.80}")
    check_seconds(seconds)
