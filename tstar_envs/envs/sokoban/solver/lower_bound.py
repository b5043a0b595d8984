"""Lower bounds of pushes: each box at what it would need alone, and no two of them at the same cell.

The bound is the cheapest assignment of boxes to wanted cells. It changes by at most one with a push, and walking is not
in it, so it never falls by more than a step costs: in a search it is consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tstar_envs.envs.sokoban.solver.assignment import LOST, Assignment, Pushes
from tstar_envs.envs.sokoban.solver.deadlock import FrozenBoxes


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
