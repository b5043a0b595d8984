"""Successors in a search for solutions: a walk and a push, forwards and backwards.

A node is a state right after a push. Both functions take a node and the moves gone there, and give the nodes next to it for which
``known`` has no shorter way.
"""

from __future__ import annotations

from typing import TypeAlias

from tstar_envs.envs.sokoban.solver.assignment import LOST
from tstar_envs.envs.sokoban.state import State, shift
from tstar_envs.envs.sokoban.task import Room

# Moves gone, the node, and the cell of the box that was pushed (-1 backwards).
Successor: TypeAlias = tuple[int, State, int]


def after_a_push(room: Room, alive: int, node: State, gone: int, known: dict[State, int]) -> list[Successor]:
    """Forwards: the nodes after each push that the player can get to; ``alive``: the cells from which a box gets to a target."""
    boxes, player = node
    width, offsets = room.width, room.offsets
    free = room.floor ^ boxes
    open_to_boxes = free & alive
    stands = (
        (boxes & open_to_boxes << width) << width & free,
        (boxes & open_to_boxes >> width) >> width & free,
        (boxes & open_to_boxes << 1) << 1 & free,
        (boxes & open_to_boxes >> 1) >> 1 & free,
    )
    wanted = stands[0] | stands[1] | stands[2] | stands[3]
    found = []
    layer = seen = 1 << player
    gone += 1
    while layer:
        if layer & wanted:
            wanted &= ~layer
            for direction in (0, 1, 2, 3):
                ready = layer & stands[direction]
                while ready:
                    bit = ready & -ready
                    ready ^= bit
                    offset = offsets[direction]
                    box = bit.bit_length() - 1 + offset
                    after = (boxes ^ 1 << box ^ 1 << box + offset, box)
                    if gone < known.get(after, LOST):
                        found.append((gone, after, box + offset))
            if not wanted:
                break
        layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & free & ~seen
        seen |= layer
        gone += 1
    return found


def before_the_push(room: Room, node: State, gone: int, known: dict[State, int]) -> list[Successor]:
    """Backwards: the nodes before each push that can have led to this one, and before the walk to that push."""
    boxes, player = node
    width = room.width
    found = []
    for offset in room.offsets:
        if not boxes >> player + offset & 1:
            continue
        before = boxes ^ 1 << player + offset ^ 1 << player
        free = room.floor & ~before
        wanted = just_pushed(room, before)
        layer = seen = free & shift(1 << player, -offset)
        walked = gone + 1
        while layer:
            ready = layer & wanted
            if ready:
                wanted ^= ready
                while ready:
                    bit = ready & -ready
                    ready ^= bit
                    earlier = (before, bit.bit_length() - 1)
                    if walked < known.get(earlier, LOST):
                        found.append((walked, earlier, -1))
                if not wanted:
                    break
            layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & free & ~seen
            seen |= layer
            walked += 1
    return found


def just_pushed(room: Room, boxes: int) -> int:
    """The cells where a player who has just pushed one of the boxes may stand."""
    width = room.width
    free = room.floor & ~boxes
    beside = (
        boxes >> width & free << width
        | boxes << width & free >> width
        | boxes >> 1 & free << 1
        | boxes << 1 & free >> 1
    )
    return beside & free
