"""How many pushes a lone box needs between cells; the cells from which it gets to no target are dead squares."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tstar_envs.envs.sokoban.solver.assignment import Pushes
from tstar_envs.envs.sokoban.state import cells, shift
from tstar_envs.envs.sokoban.task import Room

_MOST_TABLES = 64
_tables: dict[Room, tuple[dict[int, Pushes], int]] = {}


def push_distances(room: Room, in_time: Callable[[], None] = lambda: None) -> tuple[dict[int, Pushes], int]:
    """The targets that a lone box can be pushed to from each cell, with the pushes needed; and the cells that have any.

    Remembered for the rooms asked for last.

    Args:
        room: walls and targets.
        in_time: called now and then, to raise if this takes too long.
    """
    found = _tables.get(room)
    if found is None:
        table = _lone_pushes(room, cells(room.targets), -1, in_time)
        alive = bytearray(room.height * room.width // 8 + 1)
        for cell in table:
            alive[cell >> 3] |= 1 << (cell & 7)
        if len(_tables) >= _MOST_TABLES:
            _tables.clear()
        found = _tables[room] = (table, int.from_bytes(alive, "little"))
    return found


def pushes_from(room: Room, boxes: int, in_time: Callable[[], None] = lambda: None) -> dict[int, Pushes]:
    """The boxes that could be pushed to each cell if they were alone, with the pushes needed."""
    return _lone_pushes(room, cells(boxes), 1, in_time)


def _lone_pushes(
    room: Room, ends: Iterable[int], sign: int, in_time: Callable[[], None]
) -> dict[int, Pushes]:
    """Pushes of a lone box between each cell and each of ``ends``: from there with sign 1, to there with -1."""
    table: dict[int, list[tuple[int, int]]] = {}
    for end in ends:
        layer = reached = 1 << end
        pushes = 0
        while layer:
            in_time()
            for cell in cells(layer):
                table.setdefault(cell, []).append((end, pushes))
            fresh = 0
            for offset in room.offsets:
                if sign > 0:  # the player stands on the other side
                    fresh |= shift(layer & shift(room.floor, offset), offset)
                else:  # pulled back: the box comes from one cell before, with the player one cell before that
                    fresh |= shift(layer, -offset) & shift(room.floor, offset)
            layer = fresh & room.floor & ~reached
            reached |= layer
            pushes += 1
    return {cell: tuple(found) for cell, found in table.items()}
