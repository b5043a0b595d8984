"""Lower bounds of pushes: each box at what it would need alone, and no two of them at the same cell.

The bound is the cheapest assignment of boxes to wanted cells. It changes by at most one with a push, and walking is not
in it, so it never falls by more than a step costs: in a search it is consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tstar_envs.envs.sokoban.assignment import LOST, Assignment, Pushes
from tstar_envs.envs.sokoban.levels import Room, cells, shift


class PushBound:
    """Lower bounds of the pushes between a box layout and the wanted cells; remembers what it has worked out.

    Args:
        pushes: for each cell the wanted cells that a lone box there can have come from or get to. A cell that is missing has none.
        frozen: says whether a layout is lost although there is an assignment, given the cell of the box that moved last.
        in_time: called now and then, to raise if this takes too long.
    """

    def __init__(
        self,
        pushes: Mapping[int, Pushes],
        frozen: FrozenBoxes | None = None,
        in_time: Callable[[], None] = lambda: None,
    ) -> None:
        self._assignment = Assignment(pushes, in_time)
        self._frozen = frozen
        self._known: dict[int, int] = {}

    def __call__(self, boxes: int, moved: int = -1) -> int:
        """The bound of a layout, ``LOST`` if it is certainly lost; ``moved``: the box that was pushed last, if one was."""
        bound = self._known.get(boxes)
        if bound is None:
            stuck = self._frozen is not None and moved >= 0 and self._frozen(boxes, moved)
            bound = self._known[boxes] = LOST if stuck else self._assignment(boxes)
        return bound


_MOST_ASKED = 200  # boxes in one question to FrozenBoxes; in a field of boxes there are too many ways to ask


class FrozenBoxes:
    """Whether a box that was just pushed is blocked for ever, together with boxes of which one is off its target."""

    def __init__(self, room: Room, alive: int) -> None:
        self._room = room
        self._alive = alive
        self._asked = 0

    def __call__(self, boxes: int, pushed: int) -> bool:
        """Of a layout, given the cell of the pushed box; False where it would take too long to find out."""
        self._asked = 0
        return bool(self._freeze(boxes, pushed, 0) & ~self._room.targets)

    def _freeze(self, boxes: int, cell: int, walled: int) -> int:
        """The boxes that are frozen if the box on ``cell`` is, as a bit set with it; 0 if it can still move.

        Boxes in ``walled`` count as walls: whoever asks about this box depends on it.
        """
        self._asked += 1
        if self._asked > _MOST_ASKED:
            return 0
        here = 1 << cell
        together = here
        for offset in (1, self._room.width):
            sides = (1 << cell - offset, 1 << cell + offset)
            blocked = any(side & (walled | ~self._room.floor) for side in sides) or not any(
                side & self._alive for side in sides
            )
            for side in sides:
                if not blocked and boxes & side:
                    neighbours = self._freeze(boxes, side.bit_length() - 1, walled | here)
                    blocked = bool(neighbours)
                    together |= neighbours
            if not blocked:
                return 0
        return together


_MOST_TABLES = 64
_tables: dict[Room, tuple[dict[int, Pushes], int]] = {}


def push_distances(room: Room, in_time: Callable[[], None] = lambda: None) -> tuple[dict[int, Pushes], int]:
    """For each cell the targets a lone box can be pushed to, with the pushes needed; and the cells with any.

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
    """For each cell those of the boxes that could be pushed there if they were alone, with the pushes needed."""
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
