"""The solution of a state: the one of its optimal solutions that all code here uses, made from push distances.

Of the optimal next pushes the nearest is taken (then the lower box cell, then the lower direction), and of the shortest
walks to it the one whose first differing move comes first in Up, Down, Left, Right. So chosen, the solution of a state
on a solution is the rest of that solution: it may be remembered step by step, and a table or a search from any state on
the way give the same moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tstar_envs.envs.sokoban.moves import LETTERS, is_solved
from tstar_envs.envs.sokoban.state import State, cells, shift
from tstar_envs.envs.sokoban.task import Room


class Push(NamedTuple):
    """A push: the box's cell, the direction (index), where the player must stand, and the walk there as UDLR letters."""

    box: int
    direction: int
    stand: int
    walk: str


def next_push(room: Room, state: State, length: int, remaining: Callable[[State], int | None]) -> Push:
    """The push that comes next on the solution of a state that is solvable and not solved.

    Args:
        room: walls and targets.
        state: where to start.
        length: moves from ``state`` to the nearest solved state.
        remaining: the same for states right after a push; None where it is unknown or the state is not on a shortest way.
    """
    boxes, player = state
    free = room.floor & ~boxes
    layer = seen = 1 << player
    walked = 0
    while layer:
        found = []
        for direction, offset in enumerate(room.offsets):
            for stand in cells(layer & shift(boxes, -offset) & shift(free, -2 * offset)):
                box = stand + offset
                after = (boxes ^ 1 << box ^ 1 << box + offset, box)
                if remaining(after) == length - walked - 1:
                    found.append((box, direction, stand))
        if found:
            box, direction, stand = min(found)
            return Push(box, direction, stand, shortest_walk(room, boxes, player, stand))
        layer = (layer << 1 | layer >> 1 | layer << room.width | layer >> room.width) & free & ~seen
        seen |= layer
        walked += 1
    raise ValueError("no push leads from this state to a solved one in the given length")


def shortest_walk(room: Room, boxes: int, start: int, end: int) -> str:
    """The first of the shortest walks from one cell to another, as UDLR letters."""
    free = room.floor & ~boxes
    layer = seen = 1 << end
    layers = []
    while not layer >> start & 1:
        layers.append(layer)
        layer = (layer << 1 | layer >> 1 | layer << room.width | layer >> room.width) & free & ~seen
        seen |= layer
    letters = []
    cell = start
    for nearer in reversed(layers):
        direction = next(d for d, offset in enumerate(room.offsets) if nearer >> cell + offset & 1)
        letters.append(LETTERS[direction])
        cell += room.offsets[direction]
    return "".join(letters)


def solution(room: Room, state: State, length: int, remaining: Callable[[State], int | None]) -> str:
    """All moves of the solution as UDLR letters; arguments as in ``next_push``."""
    moves = ""
    while not is_solved(room, state):
        push = next_push(room, state, length - len(moves), remaining)
        moves += push.walk + LETTERS[push.direction]
        state = (state[0] ^ 1 << push.box ^ 1 << push.box + room.offsets[push.direction], push.box)
    return moves
