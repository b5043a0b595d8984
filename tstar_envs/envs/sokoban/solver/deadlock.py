"""Freeze deadlocks: boxes that block one another for ever."""

from __future__ import annotations

from tstar_envs.envs.sokoban.task import Room

_MOST_ASKED = 200  # boxes in one question to FrozenBoxes; in a field of boxes there are too many ways to ask


class FrozenBoxes:
    """Whether a box that was just pushed is blocked for ever, together with boxes of which one is off its target."""

    def __init__(self, room: Room, alive: int) -> None:
        self._room = room
        self._alive = alive
        self._asked = 0

    def __call__(self, boxes: int, pushed: int) -> bool:
        """Whether the box just pushed to this cell is frozen with a box off its target; False where it would take too long to find out."""
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
