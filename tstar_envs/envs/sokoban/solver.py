"""Optimal solutions in moves: A* over pushes, with tables of dead squares and a lower bound from assigning boxes to targets.

A node is a state right after a push; the walk to the next push is part of its cost. The bound is the cheapest assignment
of boxes to targets, each at the number of pushes that the box alone would need: it never falls by more than a step costs,
so no node is expanded twice. A layout that has no assignment, or whose pushed box can never move again off its target, is
cut. All nodes up to the optimal length are expanded, so that of several solutions always the same is given (see ``plan``).
"""

from __future__ import annotations

from functools import lru_cache

from tstar_envs.envs.sokoban.levels import Room, State, cells, parse_level, shift
from tstar_envs.envs.sokoban.plan import solution
from tstar_envs.envs.sokoban.rules import DIRECTIONS, LETTERS, is_solved
from tstar_envs.errors import SolverLimit, UnknownOption

_MANY_BOXES = 10  # above, boxes are bounded one by one: the best assignment would cost too much
_LOST = 1 << 30
SOLVER_STATES = 1_000_000  # about 300 MB; seconds with four boxes, half a minute of CPU time with seven


def solve(level_text: str, solver_states: int = SOLVER_STATES) -> list[str] | None:
    """An optimal solution, in moves, of a level in XSB text.

    Args:
        level_text: see ``tstar_envs.envs.sokoban.levels.parse_level``.
        solver_states: how many states the search may keep before it gives up; a million take about 300 MB and some seconds, with
            many boxes half a minute.

    Returns:
        Moves (``Up``, ``Down``, ``Left``, ``Right``), none if it is solved already, or None if it cannot be solved. Time and memory
        grow steeply with boxes and floor: 10x10 rooms with inner walls and four boxes take seconds at most, one without inner walls
        may take half a minute and more states than the default.

    Raises:
        BadData: the text is not a level.
        SolverLimit: the search gave up, so that nothing is known.
        UnknownOption: ``solver_states`` is not a whole number of at least 1.
    """
    check_solver_states(solver_states)
    room, state = parse_level(level_text)
    moves = solve_state(room, state, solver_states)
    return None if moves is None else [DIRECTIONS[LETTERS.index(letter)] for letter in moves]


def check_solver_states(value: object) -> None:
    """Raise UnknownOption unless ``value`` is a bound."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnknownOption(f"solver_states must be a whole number of at least 1, got {value!r}")


def solve_state(room: Room, state: State, solver_states: int = SOLVER_STATES) -> str | None:
    """The solution of a state as UDLR letters, None if it is lost; see ``solve``."""
    if is_solved(room, state):
        return ""
    found = _search(room, state, solver_states)
    if found is None:
        return None
    length, remaining = found
    return solution(room, state, length, remaining.get)


class _Bound:
    """Lower bounds of the pushes left, by box layout; remembers what it has worked out."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._pushes, self.alive = push_distances(room)
        self._known: dict[int, int] = {}

    def __call__(self, boxes: int, pushed: int) -> int:
        """The bound of a layout, ``_LOST`` if it is certainly lost; ``pushed`` is the cell of the box that moved last."""
        bound = self._known.get(boxes)
        if bound is None:
            bound = _LOST if pushed >= 0 and self._frozen_off_target(boxes, pushed) else self._assignment(boxes)
            self._known[boxes] = bound
        return bound

    def _assignment(self, boxes: int) -> int:
        rows = [self._pushes[cell] for cell in cells(boxes)]
        if len(rows) > _MANY_BOXES:
            return min(_LOST, sum(min((pushes for _, pushes in row), default=_LOST) for row in rows))
        best = {0: 0}  # targets taken -> cost
        for row in rows:
            following: dict[int, int] = {}
            for taken, cost in best.items():
                for target, pushes in row:
                    if not taken & target:
                        key = taken | target
                        if cost + pushes < following.get(key, _LOST):
                            following[key] = cost + pushes
            best = following
        return min(best.values(), default=_LOST)

    def _frozen_off_target(self, boxes: int, pushed: int) -> bool:
        """Whether the pushed box is blocked for ever together with boxes of which one is off its target."""
        frozen = self._freeze(boxes, pushed, 0)
        return bool(frozen & ~self._room.targets)

    def _freeze(self, boxes: int, cell: int, walled: int) -> int:
        """The boxes that are frozen if the box on ``cell`` is, as a bit set with it; 0 if it can still move.

        Boxes in ``walled`` count as walls: whoever asks about this box depends on it.
        """
        here = 1 << cell
        together = here
        for offset in (1, self._room.width):
            sides = (1 << cell - offset, 1 << cell + offset)
            blocked = any(side & (walled | ~self._room.floor) for side in sides) or not any(side & self.alive for side in sides)
            for side in sides:
                if not blocked and boxes & side:
                    neighbours = self._freeze(boxes, side.bit_length() - 1, walled | here)
                    blocked = bool(neighbours)
                    together |= neighbours
            if not blocked:
                return 0
        return together


@lru_cache(maxsize=64)
def push_distances(room: Room) -> tuple[dict[int, tuple[tuple[int, int], ...]], int]:
    """For each cell the targets (as bits) a lone box can be pushed to, with the pushes needed; and the cells with any."""
    table: dict[int, list[tuple[int, int]]] = {cell: [] for cell in cells(room.floor)}
    alive = 0
    for target in cells(room.targets):
        layer = reached = 1 << target
        pushes = 0
        while layer:
            for cell in cells(layer):
                table[cell].append((1 << target, pushes))
            fresh = 0
            for offset in room.offsets:
                # Pulled back: the box comes from one cell before, with the player one cell before that.
                fresh |= shift(layer, -offset) & room.floor & shift(room.floor, offset)
            layer = fresh & ~reached
            reached |= layer
            pushes += 1
        alive |= reached
    return {cell: tuple(found) for cell, found in table.items()}, alive


def _search(room: Room, start: State, solver_states: int) -> tuple[int, dict[State, int]] | None:
    """The optimal length, and the moves left in every state right after a push on an optimal way; None if it is lost."""
    bound = _Bound(room)
    first = bound(start[0], -1)
    if first >= _LOST:
        return None
    floor, width, alive, off_target = room.floor, room.width, bound.alive, ~room.targets
    offsets = room.offsets
    cost: dict[tuple[int, int], int] = {start: 0}
    buckets: dict[int, list[tuple[int, tuple[int, int]]]] = {first: [(0, start)]}
    total = first
    length = None
    waiting = 1
    while waiting and length is None:
        bucket = buckets.pop(total, [])
        waiting -= len(bucket)
        while bucket:
            gone, node = bucket.pop()
            if cost[node] != gone:
                continue
            if len(cost) > solver_states:
                level = f"this level of {start[0].bit_count()} boxes on {floor.bit_count()} floor cells"
                raise SolverLimit(
                    f"{level} is neither solved nor shown to be lost after {solver_states:,} states, the bound of the search; raise "
                    "solver_states (a million states take about 300 MB), or take a smaller level"
                )
            boxes, player = node
            if not boxes & off_target:
                length = total
                continue
            free = floor ^ boxes
            room_for_box = free & alive
            stands = (
                (boxes & room_for_box << width) << width & free,
                (boxes & room_for_box >> width) >> width & free,
                (boxes & room_for_box << 1) << 1 & free,
                (boxes & room_for_box >> 1) >> 1 & free,
            )
            wanted = stands[0] | stands[1] | stands[2] | stands[3]
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
                            if gone < cost.get(after, _LOST):
                                left = bound(after[0], box + offset)
                                if left < _LOST:
                                    cost[after] = gone
                                    estimate = gone + left
                                    if estimate == total:
                                        bucket.append((gone, after))
                                    else:
                                        buckets.setdefault(estimate, []).append((gone, after))
                                        waiting += 1
                    if not wanted:
                        break
                layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & free & ~seen
                seen |= layer
                gone += 1
        total += 1
    return None if length is None else (length, _on_optimal_ways(room, cost, length))


def _on_optimal_ways(room: Room, cost: dict[tuple[int, int], int], length: int) -> dict[State, int]:
    """Walk back from the solved states through every node whose costs fit."""
    ahead = [node for node, gone in cost.items() if gone == length and not node[0] & ~room.targets]
    remaining = dict.fromkeys(ahead, 0)
    while ahead:
        boxes, player = node = ahead.pop()
        for offset in room.offsets:
            if not boxes >> player + offset & 1:
                continue
            before = boxes ^ 1 << player + offset ^ 1 << player
            free = room.floor & ~before
            layer = seen = free & shift(1 << player, -offset)
            gone = cost[node] - 1
            while layer and gone >= 0:
                for cell in cells(layer):
                    earlier = (before, cell)
                    if cost.get(earlier) == gone and earlier not in remaining:
                        remaining[earlier] = length - gone
                        ahead.append(earlier)
                layer = (layer << 1 | layer >> 1 | layer << room.width | layer >> room.width) & free & ~seen
                seen |= layer
                gone -= 1
    return remaining
