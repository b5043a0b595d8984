"""What is said in Sokoban: observations, the prompt, and the thoughts of the expert in several wordings."""

from __future__ import annotations

import re
from functools import lru_cache

from tstar_envs.envs.sokoban.levels import Room, cells
from tstar_envs.envs.sokoban.rules import MOST_ACTIONS

OBSERVATIONS = ("grid", "coords", "grid_coords")
INSTRUCTION = "Push every box onto a target."
NOTHING_LEFT = "Every box is on a target already, so any move ends the game."

_RULES = (
    "You are the player in a Sokoban room. Push every box onto a target. You walk one cell at a time onto free floor; stepping "
    "against a box pushes it one cell further if the cell behind it is free. Boxes cannot be pulled, and two cannot be pushed at once."
)
_SEEN = {
    "grid": (
        "Symbols: # wall, _ floor, O target, X box, √ box on target, P you, S you on a target. Rows go down, columns to the right; "
        "(row, column) counts both from 0."
    ),
    "coords": "Cells are given as (row, column), counted from 0; rows go down, columns to the right. What is not floor is wall.",
}
_SEEN["grid_coords"] = f"{_SEEN['grid']} Targets, boxes and you are given as (row, column) too."
_MOVES = "Up, Down, Left or Right"
_SEVERAL = f"; up to {MOST_ACTIONS} moves may be joined by ||, as in Up || Left"
_GRAMMAR = {
    "react": (
        "In each turn write one thought and one action:\nThought: which box goes where, and where you must stand for it\nAction: {moves}"
    ),
    "tags": "In each turn reason inside <think> and </think>, then act: <action>move</action>, where move is {moves}.",
}

# {box}, {stand}, {player} and {target} are cells, {way} is the push and {step} the move now.
_WALK = (
    "The box at {box} belongs on {target}. It has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To get the box at {box} onto {target} I push it {way} next. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, on its way to {target}. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} goes to {target}, first {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH = (
    "The box at {box} belongs on {target}. It has to go {way}, and I stand at {stand}, so I push {way}.",
    "To get the box at {box} onto {target} I push it {way} next. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, on its way to {target}. I am at {stand}, so I can push now.",
    "The box at {box} goes to {target}, first {way}. I stand at {stand}, so {way} comes next.",
)
# A box that is pushed off a target on which it ends again.
_WALK_OFF = (
    "The box at {box} has to leave its target for now. It has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To make way I push the box at {box} {way} next, off its target. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, and back onto its target later. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} comes back to its target later, but first {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH_OFF = (
    "The box at {box} has to leave its target for now. It has to go {way}, and I stand at {stand}, so I push {way}.",
    "To make way I push the box at {box} {way} next, off its target. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, and back onto its target later. I am at {stand}, so I can push now.",
    "The box at {box} comes back to its target later, but first {way}. I stand at {stand}, so {way} comes next.",
)
# A push after which the box alone would need more pushes to its target than before.
_WALK_ROUND = (
    "The box at {box} belongs on {target}, but goes round: it has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To get the box at {box} onto {target} later I push it {way} first. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, though that is away from {target}. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} goes to {target} in the end, but now {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH_ROUND = (
    "The box at {box} belongs on {target}, but goes round: it has to go {way}, and I stand at {stand}, so I push {way}.",
    "To get the box at {box} onto {target} later I push it {way} first. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, though that is away from {target}. I am at {stand}, so I can push now.",
    "The box at {box} goes to {target} in the end, but now {way}. I stand at {stand}, so {way} comes next.",
)
_WRONG_PUSH = (
    "The box at {box} belongs on {target}, so I push it {way}.",
    "I push the box at {box} {way}, on its way to {target}.",
)
_WRONG_WALK = (
    "I go {way} to get behind the box at {box}.",
    "The box at {box} belongs on {target}, so from {player} I go {way}.",
)
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
_FLOOR_SYMBOLS = str.maketrans("01", "#_")


def prompt(style: str, observation: str, multi_action: bool, horizon: int | None) -> str:
    """The rules and the action grammar as an agent is told them; ``horizon`` is None where it differs from level to level."""
    grammar = _GRAMMAR[style].format(moves=_MOVES + _SEVERAL * multi_action)
    turns = "The number of turns is limited." if horizon is None else f"You have {horizon} turns."
    return f"{_RULES}\n{_SEEN[observation]}\n{grammar}\n{turns}"


@lru_cache(maxsize=64)
def _rows(height: int, width: int) -> tuple[slice, ...]:
    """Where the rows of a room of a size stand in the row of all its cells."""
    return tuple(slice(start, start + width) for start in range(0, height * width, width))


class Painter:
    """Writes the states of one room; what stays the same is worked out once."""

    __slots__ = ("_empty", "_fixed", "_observation", "_room", "_shows_grid", "_targets", "_width")

    def __init__(self, room: Room, observation: str) -> None:
        self._room = room
        self._width, self._targets = room.width, room.targets
        self._observation = observation
        self._shows_grid = observation != "coords"
        flat = f"{room.floor:0{room.height * room.width}b}"[::-1].translate(_FLOOR_SYMBOLS)
        self._empty = bytearray("\n".join([flat[row] for row in _rows(room.height, room.width)]), "ascii")
        for cell in cells(room.targets):
            self._empty[cell + cell // room.width] = _TARGET  # a line break stands after every row
        self._fixed = ""
        if observation != "grid":
            self._fixed = f"Targets: {places(room, room.targets)}"
        if observation == "coords":
            self._fixed = (
                f"Size: {room.height} rows, {room.width} columns\nFloor: {_floor_runs(room)}\n{self._fixed}"
            )

    def boxes(self, boxes: int) -> tuple[str, str]:
        """What all states of one box layout have in common: the grid without the player, and the lists."""
        room, targets = self._room, self._room.targets
        symbols = self._empty[:]
        for cell in cells(boxes):
            symbols[cell + cell // room.width] = _BOX_ON if targets >> cell & 1 else _BOX
        grid = symbols.decode("ascii")
        lists = "" if self._observation == "grid" else f"{self._fixed}\nBoxes: {places(room, boxes)}"
        return (grid.replace("*", "√") if boxes & targets else grid), lists

    def player(self, grid: str, lists: str, player: int) -> str:
        """The observation of a state, from the grid and the lists of its box layout."""
        if self._shows_grid:
            position = player + player // self._width
            symbol = "S" if self._targets >> player & 1 else "P"
            grid = f"{grid[:position]}{symbol}{grid[position + 1 :]}"
            if not lists:
                return grid
            lists = f"{grid}\n{lists}"
        return f"{lists}\nPlayer: {place(self._room, player)}"


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
    """Several cells."""
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


def expert_thought(
    *,
    box: str,
    way: str,
    stand: str,
    player: str,
    target: str,
    step: str,
    pushes: bool,
    away: bool,
    wording: int,
) -> str:
    """What the expert thinks before a move; see the templates. A target that is the box's own cell: it leaves and comes back."""
    if target == box:
        templates = _PUSH_OFF if pushes else _WALK_OFF
    elif away:
        templates = _PUSH_ROUND if pushes else _WALK_ROUND
    else:
        templates = _PUSH if pushes else _WALK
    return templates[wording % len(templates)].format(
        box=box, way=way, stand=stand, player=player, target=target, step=step
    )


def wrong_thought(*, box: str, way: str, player: str, target: str, pushes: bool, wording: int) -> str:
    """What somebody may think before a wrong move."""
    templates = _WRONG_PUSH if pushes else _WRONG_WALK
    return templates[wording % len(templates)].format(box=box, way=way, player=player, target=target)
