"""A* from both ends at once, with tables of dead squares and frozen boxes: the shortest ways from a state to the solved ones.

A node is a state right after a push; the walk between two pushes is part of the cost. With the bounds of ``lower_bound`` both ways, a node
has, seen from its end of the search, the moves gone, the total (gone, and the bound to the other end) and the surplus (gone, less
the bound to its own end: moves that the bounds did not foresee, mostly walks). As the bounds are consistent, a way through a node
of one end and a later node of the other has at least the total of the one and the surplus of the other, both ways round, and
at least what is gone at both. Lengths are tried upwards: for each, every node of one end that fits that length with any
node which waits at the other end is expanded. (The bounds on pairs: Eckerle, Chen, Sturtevant, Zilles and Holte, "Sufficient
conditions for node expansion in bidirectional heuristic search", ICAPS 2017.) Walks make up half of most solutions, so pairs cut off
most of what A* from one end would expand: in the halls of ``tests/envs/sokoban/test_sokoban_search.py`` nine nodes of ten. Small searches
have the first end only, which is that A* and needs fewer tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from math import comb, inf
from time import monotonic
from typing import NoReturn

from tstar_envs.envs.sokoban.moves import is_solved
from tstar_envs.envs.sokoban.solver.assignment import LOST
from tstar_envs.envs.sokoban.solver.deadlock import FrozenBoxes
from tstar_envs.envs.sokoban.solver.frontier import Fits, Frontier
from tstar_envs.envs.sokoban.solver.lower_bound import PushBound
from tstar_envs.envs.sokoban.solver.push_distances import push_distances, pushes_from
from tstar_envs.envs.sokoban.solver.successors import after_a_push, before_the_push, just_pushed
from tstar_envs.envs.sokoban.state import State, cells
from tstar_envs.envs.sokoban.task import Room
from tstar_envs.errors import SolverLimit

ALONE = 500  # states after which the search from the other end begins
MOST_ENTRIES = 4_000_000  # pairs of a target and a cell, with the pushes of each, for every million of states
MOST_SOLVED = 2000  # solved layouts; where there are more (more targets than boxes) it never does


class Search:
    """One search; see the module. It gives up (SolverLimit) after so many states, or seconds.

    Attributes:
        lengths_tried: how many lengths of a solution were tried so far.
    """

    def __init__(self, room: Room, start: State, most_states: int, seconds: float = inf) -> None:
        self._room = room
        self._start = start
        self._most_states = most_states
        self._seconds = seconds
        self._end_of_time = monotonic() + seconds
        self._at_least = 0  # moves of a solution, as far as is known
        self._shortest = LOST
        self._meetings: list[State] = []
        self.lengths_tried = 0
        self._backward: Frontier | None = None
        entries = room.targets.bit_count() * room.floor.bit_count()
        if entries > MOST_ENTRIES * max(1, most_states // 1_000_000):
            self._give_up(f"with tables of {entries:,} pairs of a target and a cell", "solver_states")
        to_targets, alive = push_distances(room, self._in_time)
        self._left = PushBound(to_targets, FrozenBoxes(room, alive), self._in_time)
        self._forward = Frontier(partial(after_a_push, room, alive), self._left, None)

    def run(self) -> tuple[int, Callable[[State], int | None]] | None:
        """The optimal length, and the moves left in states right after a push (all that are on an optimal way); None if lost."""
        if is_solved(self._room, self._start):
            return 0, lambda _: None
        self._at_least = length = self._left(self._start[0])
        if length >= LOST:
            return None
        self._forward.begin([self._start])
        two_ends = comb(self._room.targets.bit_count(), self._start[0].bit_count()) <= MOST_SOLVED
        while True:
            if two_ends and self._backward is None and self.states > ALONE:
                self._backward = self._other_end()
            back = self._backward
            self.lengths_tried += 1
            if back is None or len(self._forward.gone) <= len(back.gone):
                self._expand(self._forward, back, length)
            else:
                self._expand(back, self._forward, length)
            if self._shortest <= length:
                break
            ends = [end for end in (self._forward, back) if end is not None]
            if self._shortest == LOST and not all(end.waiting for end in ends):
                return None
            # A way that is not found yet passes a node that waits, at each end.
            least = max(min((total for _, total, _ in end.waiting), default=0) for end in ends)
            self._at_least = length = min(max(length + 1, least), self._shortest)
        ways = self._optimal_ways(length)
        known_back = self._backward.gone if self._backward is not None else {}
        # A node of the other end that is on no optimal way has more moves left than whoever asks can use.
        return length, lambda state: ways[state] if state in ways else known_back.get(state)

    @property
    def states(self) -> int:
        """How many are kept."""
        return len(self._forward.gone) + (0 if self._backward is None else len(self._backward.gone))

    def _other_end(self) -> Frontier:
        """The end at the solved states."""
        room, boxes = self._room, self._start[0].bit_count()
        from_start = self._forward.behind = PushBound(
            pushes_from(room, self._start[0], self._in_time), None, self._in_time
        )
        back = Frontier(partial(before_the_push, room), from_start, self._left)
        for chosen in combinations(cells(room.targets), boxes):
            self._in_time()
            layout = sum(1 << cell for cell in chosen)
            if from_start(layout) < LOST:
                back.begin([(layout, cell) for cell in cells(just_pushed(room, layout))])
        return back

    def _expand(self, end: Frontier, other: Frontier | None, length: int) -> None:
        """Expand what could be on a way of ``length`` moves with a node that waits at the other end."""
        if other is None:
            fits: Fits | None = lambda gone, total, surplus: total <= length  # noqa: E731
        else:
            fits = other.partners(length, self._in_time)
        if fits is None:
            return
        ready: list[list[State]] = [[] for _ in range(length + 1)]
        for key in [key for key in end.waiting if key[1] <= length and fits(*key)]:
            ready[key[0]] += end.waiting.pop(key)
        known, ahead, behind = end.gone, end.ahead, end.behind
        known_there = other.gone if other is not None else {}
        for gone, nodes in enumerate(ready):
            for node in nodes:
                if known[node] != gone:
                    continue  # it was reached on a shorter way
                if self.states > self._most_states:
                    self._give_up(f"after {self._most_states:,} states", "solver_states")
                self._in_time()
                for after_gone, after, moved in end.successors(node, gone, known):
                    left = ahead(after[0], moved)
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
                    surplus = 0 if behind is None else after_gone - behind(after[0])
                    if total <= length and fits(after_gone, total, surplus):
                        ready[after_gone].append(after)
                    else:
                        end.waiting.setdefault((after_gone, total, surplus), []).append(after)

    def _in_time(self) -> None:
        """Raise SolverLimit once the seconds are over."""
        if monotonic() > self._end_of_time:
            self._give_up(f"after {self._seconds:g} seconds", "solver_seconds")

    def _give_up(self, when: str, option: str) -> NoReturn:
        level = (
            f"this level of {self._start[0].bit_count()} boxes on {self._room.floor.bit_count()} floor cells"
        )
        memory = " (a million states take about 300 MB)" if option == "solver_states" else ""
        advice = f"raise {option}{memory}, or take a smaller level"
        error = SolverLimit(
            f"{level} is neither solved nor shown to be lost {when}, the bound of the search; {advice}"
        )
        error.at_least = min(self._at_least, self._shortest)
        raise error

    def _optimal_ways(self, length: int) -> dict[State, int]:
        """The moves left in the nodes on optimal ways up to where the ends met: from there back through every node whose moves fit."""
        known = self._forward.gone
        ahead = self._meetings
        left = {node: length - known[node] for node in ahead}
        while ahead:
            self._in_time()
            node = ahead.pop()
            for walked, earlier, _ in before_the_push(self._room, node, 0, {}):
                if known.get(earlier) == known[node] - walked and earlier not in left:
                    left[earlier] = length - known[earlier]
                    ahead.append(earlier)
        return left
