"""Moves of Sokoban: which of them a state allows, and the state that each leads to, as pure functions over a room.

The player walks onto free floor and pushes one box at a time; a move against a wall, or against a box that has a wall or
another box behind it, changes nothing.
"""

from __future__ import annotations

from tstar_envs.envs.sokoban.state import State, flood
from tstar_envs.envs.sokoban.task import Room

DIRECTIONS = ("Up", "Down", "Left", "Right")
LETTERS = "UDLR"
_SUBSETS = tuple(tuple(d for d in range(4) if bits >> d & 1) for bits in range(16))


def transition(room: Room, state: State, direction: int) -> tuple[State, int]:
    """Play one move.

    Args:
        room: walls and targets.
        state: boxes and player.
        direction: index into ``DIRECTIONS``.

    Returns:
        The next state (the same object if nothing moved), and the cell of the box that was pushed, -1 if none was.
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
    """The moves that change something, as indexes into ``DIRECTIONS``."""
    boxes, player = state
    width, free = room.width, room.floor & ~boxes
    # Written out: many new states come through here.
    up = free >> player - width & 1 or (boxes >> player - width & 1 and free >> player - 2 * width & 1)
    down = free >> player + width & 1 or (boxes >> player + width & 1 and free >> player + 2 * width & 1)
    left = free >> player - 1 & 1 or (boxes >> player - 1 & 1 and free >> player - 2 & 1)
    right = free >> player + 1 & 1 or (boxes >> player + 1 & 1 and free >> player + 2 & 1)
    return _SUBSETS[up | down << 1 | left << 2 | right << 3]


def is_solved(room: Room, state: State) -> bool:
    """Whether every box is on a target."""
    return not state[0] & ~room.targets


def region(room: Room, state: State) -> int:
    """The cells that the player can walk to, as a bit set."""
    boxes, player = state
    return flood(room.floor & ~boxes, 1 << player, room.width)
