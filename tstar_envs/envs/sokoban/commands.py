"""Commands of Sokoban: the moves that an action names, however it is written."""

from __future__ import annotations

import re
from typing import NamedTuple

from tstar_envs.envs.sokoban.moves import DIRECTIONS
from tstar_envs.react import AROUND_ACTION

MOST_MOVES = 10  # of one turn with ``multi_action``
_BETWEEN_MOVES = re.compile(r"\s*+(?:\|\|?+|[,;])\s*+|\s++")
_AROUND_MOVES = AROUND_ACTION + "|"
_NUMBER = {name.lower(): number for number, name in enumerate(DIRECTIONS)}


class Command(NamedTuple):
    """What an action asks for.

    Attributes:
        moves: numbers of the moves (indexes into ``moves.DIRECTIONS``), none where the action could not be read.
        problem: what is wrong with it as the agent reads it, "" if nothing is.
        reason: the same for who develops the agent.
    """

    moves: tuple[int, ...]
    problem: str = ""
    reason: str = ""


def read_command(action: str, multi_action: bool = False) -> Command:
    """Read one move, or with ``multi_action`` several joined by ``||``, commas, semicolons or spaces; any case, and with punctuation
    around a word.
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
