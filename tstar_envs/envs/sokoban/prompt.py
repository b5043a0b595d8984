"""The prompt of Sokoban: the rules and the grammar of actions as an agent reads them."""

from __future__ import annotations

from tstar_envs.envs.sokoban.commands import MOST_MOVES

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
    """The rules and the action grammar as an agent reads them; ``horizon`` is None where it differs from level to level."""
    grammar = _GRAMMAR[style].format(moves=_MOVES + _SEVERAL * multi_action)
    turns = "The number of turns is limited." if horizon is None else f"You have {horizon} turns."
    return f"{_RULES}\n{_OBSERVATIONS[observation]}\n{grammar}\n{turns}"
