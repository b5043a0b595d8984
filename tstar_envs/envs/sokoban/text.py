"""Observations of Sokoban: states as grids of symbols or as lists of cells."""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct

from tstar_envs.envs.sokoban.state import State, cells
from tstar_envs.envs.sokoban.task import Room

OBSERVATIONS = ("grid", "coords", "grid_coords")
INSTRUCTION = "Push every box onto a target."
MOST_LAYOUTS = 256  # of boxes, remembered for one room
_TARGET, _BOX, _BOX_ON = b"OX*"  # the star becomes a check mark, which is no ASCII
# Colours of the symbols in a terminal, and the lines that are rows of a grid.
_STYLES = {
    "#": "dim default",
    "_": "dim default",
    "O": "bold magenta",
    "X": "bold yellow",
    "√": "bold green",
    "P": "bold cyan",
    "S": "bold cyan",
}
_GRID_ROW = re.compile(f"^[{''.join(_STYLES)}]+$", re.MULTILINE)
_RUN = re.compile("[#_]+|O+|X+|√+|P|S")
_FLOOR_SYMBOLS = bytes.maketrans(b"01", b"#_")


@lru_cache(maxsize=64)
def _rows(height: int, width: int) -> Struct:
    """Cuts the row of all cells of a room of a size into its rows."""
    return Struct(f"{width}s" * height)


class Renderer:
    """Writes the states of one room; what states of one box layout have in common is worked out once.

    Does what the function ``text.render`` does in other families, and keeps the parts that states share.

    Args:
        room: walls and targets.
        observation: one of ``OBSERVATIONS``.
    """

    __slots__ = ("_empty", "_fixed", "_grids", "_lists", "_observation", "_room", "_targets", "_width")

    def __init__(self, room: Room, observation: str) -> None:
        self._room = room
        self._width, self._targets = room.width, room.targets
        self._observation = observation
        # By boxes: the grid without the player, and the lists of cells without it. Two dicts of plain strings, which the
        # garbage collector leaves alone.
        self._grids: dict[int, str] = {}
        self._lists: dict[int, str] = {}
        flat = f"{room.floor:0{room.height * room.width}b}"[::-1].encode("ascii").translate(_FLOOR_SYMBOLS)
        self._empty = bytearray(b"\n".join(_rows(room.height, room.width).unpack(flat)))
        for cell in cells(room.targets):
            self._empty[cell + cell // room.width] = _TARGET  # a line break stands after every row
        self._fixed = ""
        if observation != "grid":
            self._fixed = f"Targets: {places(room, room.targets)}"
        if observation == "coords":
            size = f"Size: {room.height} rows, {room.width} columns"
            self._fixed = f"{size}\nFloor: {_floor_runs(room)}\n{self._fixed}"

    def render(self, state: State) -> str:
        """The observation of a state."""
        boxes, player = state
        if self._observation == "grid":
            return self._grid(boxes, player)
        lists = self._lists.get(boxes) or self._list(boxes)
        text = f"{lists}\nPlayer: {place(self._room, player)}"
        return text if self._observation == "coords" else f"{self._grid(boxes, player)}\n{text}"

    def _grid(self, boxes: int, player: int) -> str:
        grid = self._grids.get(boxes) or self._lay_out(boxes)
        position = player + player // self._width
        symbol = "S" if self._targets >> player & 1 else "P"
        return f"{grid[:position]}{symbol}{grid[position + 1 :]}"

    def _lay_out(self, boxes: int) -> str:
        width, targets = self._width, self._targets
        symbols = self._empty[:]
        for cell in cells(boxes):
            symbols[cell + cell // width] = _BOX_ON if targets >> cell & 1 else _BOX
        grid = symbols.decode("ascii")
        if boxes & targets:
            grid = grid.replace("*", "√")
        return _keep(self._grids, boxes, grid)

    def _list(self, boxes: int) -> str:
        return _keep(self._lists, boxes, f"{self._fixed}\nBoxes: {places(self._room, boxes)}")


def _keep(texts: dict[int, str], boxes: int, text: str) -> str:
    if len(texts) >= MOST_LAYOUTS:
        texts.clear()
    texts[boxes] = text
    return text


def highlights(observation: str) -> list[tuple[int, int, str]]:
    """What is coloured in an observation; see ``TextEnv.highlights``."""
    return [
        (run.start(), run.end(), _STYLES[run[0][0]])
        for row in _GRID_ROW.finditer(observation)
        for run in _RUN.finditer(observation, row.start(), row.end())
    ]


def place(room: Room, cell: int) -> str:
    """A cell as ``(row, column)``, from 0."""
    return str(room.place(cell))


def places(room: Room, bits: int) -> str:
    """The text for several cells."""
    return ", ".join(place(room, cell) for cell in cells(bits))


def _floor_runs(room: Room) -> str:
    """The floor row by row, as runs of columns."""
    rows = []
    for row in range(room.height):
        columns = [cell - row * room.width for cell in cells(room.floor) if cell // room.width == row]
        starts = [c for c in columns if c - 1 not in columns]
        ends = [c for c in columns if c + 1 not in columns]
        if columns:
            runs = (f"{a}-{b}" if a < b else str(a) for a, b in zip(starts, ends, strict=True))
            rows.append(f"row {row}: {', '.join(runs)}")
    return "; ".join(rows)
