"""What makes a Sokoban level easy, medium or hard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difficulty:
    """The bounds that the levels of a difficulty keep.

    Attributes:
        sizes: sides of the square rooms, walls included.
        boxes: how many.
        floor: least and most floor cells.
        shortest: least optimal length, in moves.
        longest: greatest optimal length.
        pushes: least number of pushes in the solution.
        lines: least number of box-lines (pushes of one box in one direction on end count as one).
        trap: whether some push that is open along the solution must lose.
    """

    sizes: tuple[int, ...]
    boxes: int
    floor: tuple[int, int]
    shortest: int
    longest: int
    pushes: int
    lines: int = 1
    trap: bool = False


DIFFICULTIES: dict[str, Difficulty] = {
    "easy": Difficulty((6, 7), 1, (8, 18), 5, 12, pushes=2),
    "medium": Difficulty((7, 8), 2, (12, 24), 13, 24, pushes=2),
    "hard": Difficulty((8, 9, 10), 3, (18, 30), 25, 40, pushes=7, lines=4, trap=True),
}
