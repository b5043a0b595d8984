"""A* from both ends at once, with tables of dead squares and frozen boxes: the shortest ways from a state to the solved ones.

A node is a state right after a push; the walk between two pushes is part of the cost. With the bounds of ``bound`` both ways, a node
has, seen from its end of the search, the moves gone, the total (gone, and the bound to the other end) and the surplus (gone, less
the bound to its own end: moves that the bounds did not foresee, mostly walks). As the bounds are consistent, a way through a node
of one end and a later node of the other has at least the total of the one and the surplus of the other, both ways round, and
at least what is gone at both. Lengths are tried upwards: for each, every node of one end that fits that length with any
node which waits at the other end is expanded. (The bounds on pairs: Eckerle, Chen, Sturtevant, Zilles and Holte, "Sufficient
conditions for node expansion in bidirectional heuristic search", ICAPS 2017.) Walks make up half of most solutions, so pairs cut off
most of what A* from one end would expand: in the halls of ``tests/envs/test_sokoban_search.py`` nine nodes of ten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from math import comb
from typing import TypeAlias

from tstar_envs.envs.sokoban.bound import LOST, FrozenBoxes, PushBound, push_distances, pushes_from
from tstar_envs.envs.sokoban.levels import Room, State, cells
from tstar_envs.envs.sokoban.steps import Step, after_a_push, before_the_push, just_pushed
from tstar_envs.errors import SolverLimit

MOST_SOLVED = 2000  # solved layouts; where there are more (more targets than boxes) the search has one end only

Neighbours: TypeAlias = Callable[[State, int, dict[State, int]], list[Step]]  # see ``steps``


class _End:
    """One end of the search.

    Attributes:
        gone: of every node found, the least moves known between it and this end.
        waiting: the nodes that are not expanded, by moves gone, total and surplus.
    """

    def __init__(self, neighbours: Neighbours, ahead: PushBound, behind: PushBound) -> None:
        self._neighbours = neighbours
        self._ahead = ahead
        self._behind = behind
        self.gone: dict[State, int] = {}
        self.waiting: dict[tuple[int, int, int], list[State]] = {}

    def begin(self, nodes: list[State]) -> None:
        """Begin with nodes of one box layout."""
        for node in nodes:
            self.gone[node] = 0
            self.waiting.setdefault((0, self._ahead(node[0]), 0), []).append(node)

    def least_surplus(self, length: int) -> list[list[int]]:
        """By moves gone and total, up to ``length`` each: the least surplus among the waiting nodes with no more of either."""
        least = [[LOST] * (length + 1) for _ in range(length + 1)]
        for gone, total, surplus in self.waiting:
            if total <= length and surplus < least[gone][total]:
                least[gone][total] = surplus
        before = [LOST] * (length + 1)
        for row in least:
            smallest = LOST
            for total, surplus in enumerate(row):
                smallest = min(smallest, surplus, before[total])
                row[total] = smallest
            before = row
        return least


class Search:
    """One search; see the module."""

    def __init__(self, room: Room, start: State, most_states: int) -> None:
        self._room = room
        self._start = start
        self._most_states = most_states
        to_targets, alive = push_distances(room)
        self._from_start = PushBound(pushes_from(room, start[0]))
        self._left = PushBound(to_targets, FrozenBoxes(room, alive))
        self._before_the_push = partial(before_the_push, room)
        self._forward = _End(partial(after_a_push, room, alive), self._left, self._from_start)
        self._backward = _End(self._before_the_push, self._from_start, self._left)
        self._shortest = LOST
        self._meetings: list[State] = []

    def run(self) -> tuple[int, Callable[[State], int | None]] | None:
        """The optimal length, and the moves left in states right after a push (all that are on an optimal way); None if lost."""
        length = self._left(self._start[0])
        if length >= LOST:
            return None
        self._forward.begin([self._start])
        both = self._begin_at_solved_states()
        while True:
            if not both or len(self._forward.gone) <= len(self._backward.gone):
                self._expand(self._forward, self._backward, length)
            else:
                self._expand(self._backward, self._forward, length)
            if self._shortest <= length:
                break
            if self._shortest == LOST and not (self._forward.waiting and self._backward.waiting):
                return None
            length += 1
        ways = self._optimal_ways(length)
        back = self._backward.gone
        # A node of the backward end that is on no optimal way has more moves left than whoever asks can use.
        return length, lambda state: ways[state] if state in ways else back.get(state)

    @property
    def states(self) -> int:
        """How many are kept."""
        return len(self._forward.gone) + len(self._backward.gone)

    def _begin_at_solved_states(self) -> bool:
        """Whether the search has two ends."""
        room, boxes = self._room, self._start[0].bit_count()
        if comb(room.targets.bit_count(), boxes) > MOST_SOLVED:
            self._backward.waiting[0, 0, 0] = []  # something may wait anywhere
            return False
        for chosen in combinations(cells(room.targets), boxes):
            layout = sum(1 << cell for cell in chosen)
            if self._from_start(layout) < LOST:
                self._backward.begin([(layout, cell) for cell in cells(just_pushed(room, layout))])
        return True

    def _expand(self, end: _End, other: _End, length: int) -> None:
        """Expand what could be on a way of ``length`` moves with a node that waits at the other end."""
        least = other.least_surplus(length)
        ready: list[list[State]] = [[] for _ in range(length + 1)]
        fitting = [key for key in end.waiting if key[1] <= length and least[length - key[0]][length - key[2]] <= length - key[1]]
        for key in fitting:
            ready[key[0]] += end.waiting.pop(key)
        known, known_there = end.gone, other.gone
        for gone, nodes in enumerate(ready):
            for node in nodes:
                if known[node] != gone:
                    continue  # it was reached on a shorter way
                if self.states > self._most_states:
                    self._give_up()
                for after_gone, after, moved in end._neighbours(node, gone, known):
                    left = end._ahead(after[0], moved)
                    total = after_gone + left
                    if total > self._shortest:  # or lost
                        continue
                    known[after] = after_gone
                    there = 0 if end is self._forward and not left else known_there.get(after)
                    if there is not None and after_gone + there <= self._shortest:
                        if after_gone + there < self._shortest:
                            self._shortest = after_gone + there
                            self._meetings = []
                        self._meetings.append(after)
                    surplus = after_gone - end._behind(after[0])
                    if total <= length and least[length - after_gone][length - surplus] <= length - total:
                        ready[after_gone].append(after)
                    else:
                        end.waiting.setdefault((after_gone, total, surplus), []).append(after)

    def _give_up(self) -> None:
        level = f"this level of {self._start[0].bit_count()} boxes on {self._room.floor.bit_count()} floor cells"
        raise SolverLimit(
            f"{level} is neither solved nor shown to be lost after {self._most_states:,} states, the bound of the search; raise "
            "solver_states (a million states take about 300 MB), or take a smaller level"
        )

    def _optimal_ways(self, length: int) -> dict[State, int]:
        """The moves left in the nodes on optimal ways up to where the ends met: from there back through every node whose moves fit."""
        known = self._forward.gone
        ahead = self._meetings
        left = {node: length - known[node] for node in ahead}
        while ahead:
            node = ahead.pop()
            for walked, earlier, _ in self._before_the_push(node, 0, {}):
                if known.get(earlier) == known[node] - walked and earlier not in left:
                    left[earlier] = length - known[earlier]
                    ahead.append(earlier)
        return left
