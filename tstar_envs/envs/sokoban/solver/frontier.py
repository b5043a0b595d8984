"""One end of the search from both ends: see ``search`` for gone, total and surplus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tstar_envs.envs.sokoban.solver.assignment import LOST
from tstar_envs.envs.sokoban.solver.lower_bound import PushBound
from tstar_envs.envs.sokoban.solver.successors import Successor
from tstar_envs.envs.sokoban.state import State

Successors: TypeAlias = Callable[[State, int, dict[State, int]], list[Successor]]  # see ``successors``
Fits: TypeAlias = Callable[[int, int, int], bool]  # of moves gone, total and surplus


class Frontier:
    """The nodes of one end of the search, and what waits to be expanded.

    Attributes:
        gone: of every node found, the least moves known between it and this end.
        waiting: the nodes that are not expanded, by moves gone, total and surplus.
    """

    def __init__(self, successors: Successors, ahead: PushBound, behind: PushBound | None) -> None:
        self.successors = successors
        self.ahead = ahead
        self.behind = behind  # None: nothing is known, so every surplus counts as 0
        self.gone: dict[State, int] = {}
        self.waiting: dict[tuple[int, int, int], list[State]] = {}

    def begin(self, nodes: list[State]) -> None:
        """Begin with nodes of one box layout."""
        for node in nodes:
            self.gone[node] = 0
            self.waiting.setdefault((0, self.ahead(node[0]), 0), []).append(node)

    def partners(self, length: int, in_time: Callable[[], None]) -> Fits | None:
        """Whether a node of the other end may be on a way of ``length`` moves with a node that waits here; None if none can be."""
        keys = [key for key in self.waiting if key[1] <= length]
        if not keys:
            return None
        first_gone, last_gone = min(key[0] for key in keys), max(key[0] for key in keys)
        first_total = min(key[1] for key in keys)
        # By moves gone and total: the least surplus of the waiting nodes with no more of either.
        least = [[LOST] * (length - first_total + 1) for _ in range(first_gone, last_gone + 1)]
        for gone, total, surplus in keys:
            row = least[gone - first_gone]
            row[total - first_total] = min(row[total - first_total], surplus)
        before = [LOST] * (length - first_total + 1)
        for row in least:
            in_time()
            smallest = LOST
            for total, surplus in enumerate(row):
                row[total] = smallest = min(smallest, surplus, before[total])
            before = row

        def fits(gone: int, total: int, surplus: int) -> bool:
            left, most = length - gone - first_gone, length - surplus - first_total
            return (
                left >= 0 and most >= 0 and least[min(left, last_gone - first_gone)][most] <= length - total
            )

        return fits
