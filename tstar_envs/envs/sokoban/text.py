"""Texts that agents see: observations as grids or lists of cells, and the prompt."""

from __future__ import annotations

import re

from tstar_envs.envs.sokoban.level import MOST_MOVES, Room, State, cells

OBSERVATIONS = ("grid", "coords", "grid_coords")
INSTRUCTION = "Push every box onto a target."
# Terminal colours of the symbols, and a pattern for rows of a grid.
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
_FLOOR_RUN = re.compile("1++")
_FLOOR_SYMBOLS = str.maketrans("01", "#_")


def render(room: Room, state: State, observation: str) -> str:
    """Render the observation of a state.

    Args:
        room: walls and targets.
        state: boxes and player.
        observation: one of ``OBSERVATIONS``.
    """
    if observation == "grid":
        return grid(room, state)
    boxes, player = state
    lists = (
        f"Targets: {places(room, room.targets)}\nBoxes: {places(room, boxes)}\nPlayer: {place(room, player)}"
    )
    if observation == "grid_coords":
        return f"{grid(room, state)}\n{lists}"
    return f"Size: {room.height} rows, {room.width} columns\nFloor: {_floor_runs(room)}\n{lists}"


def grid(room: Room, state: State) -> str:
    """Render the grid as rows of symbols."""
    boxes, player = state
    symbols = list(_floor_row(room, 0, room.height).translate(_FLOOR_SYMBOLS))
    for cell in cells(room.targets):
        symbols[cell] = "O"
    for cell in cells(boxes):
        symbols[cell] = "√" if room.targets >> cell & 1 else "X"
    symbols[player] = "S" if room.targets >> player & 1 else "P"
    flat, width = "".join(symbols), room.width
    return "\n".join([flat[start : start + width] for start in range(0, len(flat), width)])


def _floor_row(room: Room, first: int, last: int) -> str:
    """Format the cells of some rows as ``1`` for floor and ``0`` for wall."""
    size = (last - first) * room.width
    return f"{room.floor >> first * room.width & (1 << size) - 1:0{size}b}"[::-1]


def highlights(observation: str) -> list[tuple[int, int, str]]:
    """Find the coloured parts of an observation; see ``TextEnv.highlights``."""
    return [
        (run.start(), run.end(), _STYLES[run[0][0]])
        for row in _GRID_ROW.finditer(observation)
        for run in _RUN.finditer(observation, row.start(), row.end())
    ]


def place(room: Room, cell: int) -> str:
    """Format a cell as ``(row, column)``, from 0."""
    return str(room.place(cell))


def places(room: Room, bits: int) -> str:
    """Format several cells."""
    return ", ".join(place(room, cell) for cell in cells(bits))


def _floor_runs(room: Room) -> str:
    """Format the floor row by row, as runs of columns."""
    rows = []
    for row in range(room.height):
        runs = [
            f"{run.start()}-{run.end() - 1}" if run.end() - run.start() > 1 else str(run.start())
            for run in _FLOOR_RUN.finditer(_floor_row(room, row, row + 1))
        ]
        if runs:
            rows.append(f"row {row}: {', '.join(runs)}")
    return "; ".join(rows)


_RULES = (
    "You are the player in a Sokoban room. Push every box onto a target. You walk one cell at a time onto free floor; stepping "
    "against a box pushes it one cell further if the cell behind it is free. Boxes cannot be pulled, and two cannot be pushed at once."
)
_OBSERVATIONS = {
    "grid": (
        "Symbols: # wall, _ floor, O target, X box, √ box on target, P you, S you on a target. Rows go down, columns to the right; "
        "(row, column) counts both from 0."
    ),
    "coords": "Cells are given as (row, column), counted from 0; rows go down, columns to the right. What is not floor is wall.",
}
_OBSERVATIONS["grid_coords"] = (
    f"{_OBSERVATIONS['grid']} Targets, boxes and you are given as (row, column) too."
)
_MOVES = "Up, Down, Left or Right"
_SEVERAL = f"; up to {MOST_MOVES} moves may be joined by ||, as in Up || Left"
_GRAMMAR = {
    "react": (
        "In each turn write one thought and one action:\nThought: which box goes where, and where you must stand for it\nAction: {moves}"
    ),
    "tags": "In each turn reason inside <think> and </think>, then act: <action>move</action>, where move is {moves}.",
}


def prompt(style: str, observation: str, multi_action: bool, horizon: int | None) -> str:
    """Write the prompt: rules and action grammar; ``horizon`` is None if it differs between levels."""
    grammar = _GRAMMAR[style].format(moves=_MOVES + _SEVERAL * multi_action)
    turns = "The number of turns is limited." if horizon is None else f"You have {horizon} turns."
    return f"{_RULES}\n{_OBSERVATIONS[observation]}\n{grammar}\n{turns}"
