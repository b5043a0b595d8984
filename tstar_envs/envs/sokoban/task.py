"""A task of Sokoban: a level, that is a room with boxes and a player in it.

A room's floor is what the player can reach if no box were in the way; everything else counts as wall.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tstar_envs.envs.sokoban.state import State


@lru_cache(maxsize=64)
def _offsets(width: int) -> tuple[int, int, int, int]:
    return -width, width, -1, 1


@dataclass(frozen=True, slots=True)
class Room:
    """What never changes in a level.

    Attributes:
        height: rows, walls included.
        width: columns, walls included.
        floor: bit set of the cells that player and boxes can be on.
        targets: bit set of the cells that boxes belong on.
        offsets: what Up, Down, Left and Right add to a cell.
    """

    height: int
    width: int
    floor: int
    targets: int
    offsets: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", _offsets(self.width))

    def place(self, cell: int) -> tuple[int, int]:
        """Row and column of a cell, from 0."""
        return divmod(cell, self.width)


@dataclass(frozen=True, slots=True)
class Task:
    """One level.

    Attributes:
        id: unique in its set.
        split: train, valid or test.
        room: walls and targets.
        start: boxes and player at the start.
        moves: an optimal solution as letters of UDLR, "" if none is known.
    """

    id: str
    split: str
    room: Room
    start: State
    moves: str = ""

    def __hash__(self) -> int:
        # Of all its parts it would cost more than a step, and a view is looked up in every reset.
        return hash(self.id)
