"""Optimal solver: bidirectional A* over pushes, with lower bounds on the remaining pushes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import combinations
from math import comb, inf
from time import monotonic
from typing import NamedTuple, NoReturn, TypeAlias

from tstar_envs.envs.sokoban.level import (
    DIRECTIONS,
    LETTERS,
    SOLVER_SECONDS,
    SOLVER_STATES,
    Room,
    State,
    cells,
    check_solver_bounds,
    is_solved,
    parse_level,
    shift,
)
from tstar_envs.errors import SolverLimit

LOST = 1 << 30  # infinite cost: unsolvable
_MANY = 20  # boxes: one layout of hundreds takes a second

Pushes: TypeAlias = tuple[tuple[int, int], ...]  # goal cells, each with its pushes from a given cell


class Assignment:
    """Minimum total pushes of a layout, by an optimal assignment of boxes to goal cells.

    Args:
        pushes: for each cell its reachable goal cells with the pushes. A missing cell has none.
        in_time: called regularly if there are many boxes, to raise on a timeout.
    """

    def __init__(self, pushes: Mapping[int, Pushes], in_time: Callable[[], None] = lambda: None) -> None:
        wanted = sorted({cell for row in pushes.values() for cell, _ in row})
        self._pushes = pushes
        self._in_time = in_time
        self._number = {cell: number for number, cell in enumerate(wanted)}
        # The same with numbered goal cells, filled on demand.
        self._rows: dict[int, Pushes] = {}
        self._wanted = len(wanted)
        self._prices = [0] * len(wanted)

    def __call__(self, boxes: int) -> int:
        """Compute the minimum total pushes of a layout, ``LOST`` if no assignment exists."""
        rows: list[Pushes] = []
        while boxes:
            lowest = boxes & -boxes
            boxes ^= lowest
            cell = lowest.bit_length() - 1
            row = self._rows.get(cell)
            if row is None:
                row = self._rows[cell] = tuple(
                    (self._number[wanted], cost) for wanted, cost in self._pushes.get(cell, ())
                )
            if not row:
                return LOST
            rows.append(row)
        if len(rows) > self._wanted:
            return LOST
        # Unassigned goal cells must have price 0, so prices are only used if every cell is assigned.
        prices = self._prices[:] if len(rows) == self._wanted else [0] * self._wanted
        costs = [0] * len(rows)
        taken = [-1] * self._wanted
        late = []
        for place, row in enumerate(rows):
            least = LOST
            free = -1
            for cell, pushes in row:
                cost = pushes - prices[cell]
                if cost < least:
                    least, free = cost, (cell if taken[cell] < 0 else -1)
                elif cost == least and free < 0 and taken[cell] < 0:
                    free = cell
            costs[place] = least
            if free < 0:
                late.append(place)
            else:
                taken[free] = place
        for place in late:
            if len(rows) > _MANY:
                self._in_time()
            if not _augment(place, rows, costs, prices, taken):
                return LOST
        if len(rows) == self._wanted:
            self._prices = prices
        return sum(costs) + sum(prices)


def _augment(place: int, rows: list[Pushes], costs: list[int], prices: list[int], taken: list[int]) -> bool:
    """Assign one more box along the cheapest augmenting path, updating costs and prices.

    False if there is none.
    """
    reach = [LOST] * len(prices)  # cheapest path to each cell
    before = [-1] * len(prices)  # previous cell on that path
    passed: list[int] = []
    last, box, so_far = -1, place, 0
    open_cells: set[int] = set()
    closed: set[int] = set()
    while True:
        base = so_far - costs[box]
        for cell, pushes in rows[box]:
            way = base + pushes - prices[cell]
            if way < reach[cell] and cell not in closed:
                reach[cell], before[cell] = way, last
                open_cells.add(cell)
        if not open_cells:
            return False
        last = min(open_cells, key=reach.__getitem__)
        so_far = reach[last]
        if taken[last] < 0:
            break
        open_cells.discard(last)
        closed.add(last)
        passed.append(last)
        box = taken[last]
    costs[place] += so_far
    for cell in passed:
        costs[taken[cell]] += so_far - reach[cell]
        prices[cell] -= so_far - reach[cell]
    while before[last] >= 0:
        taken[last] = taken[before[last]]
        last = before[last]
    taken[last] = place
    return True


_MOST_ASKED = 200  # boxes checked per call of FrozenBoxes; large fields of boxes take too long


class FrozenBoxes:
    """Deadlock check: is the box just pushed frozen, together with a box that is off its target?"""

    def __init__(self, room: Room, alive: int) -> None:
        self._room = room
        self._alive = alive
        self._asked = 0

    def __call__(self, boxes: int, pushed: int) -> bool:
        """Check whether the box just pushed is frozen with a box off its target.

        Returns False if the check takes too long.
        """
        self._asked = 0
        return bool(self._freeze(boxes, pushed, 0) & ~self._room.targets)

    def _freeze(self, boxes: int, cell: int, walled: int) -> int:
        """Find the boxes that are frozen together with the box on ``cell``.

        Returns a bit set, 0 if the box can still move. Boxes in ``walled`` count as walls, because their own check is in progress.
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


class PushBound:
    """Cached lower bounds of the pushes between a box layout and the goal cells.

    Args:
        pushes: for each cell the goal cells that a lone box can reach or come from. A missing cell has none.
        frozen: deadlock check of a layout, given the cell of the box that moved last.
        in_time: called regularly, to raise on a timeout.
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
        """Compute the bound of a layout, ``LOST`` if it is certainly lost.

        ``moved`` is the box pushed last, if any.
        """
        bound = self._known.get(boxes)
        if bound is None:
            stuck = self._frozen is not None and moved >= 0 and self._frozen(boxes, moved)
            bound = self._known[boxes] = LOST if stuck else self._assignment(boxes)
        return bound


_MOST_TABLES = 64
_tables: dict[Room, tuple[dict[int, Pushes], int]] = {}


def push_distances(room: Room, in_time: Callable[[], None] = lambda: None) -> tuple[dict[int, Pushes], int]:
    """Compute the targets that a lone box can reach from each cell, with the pushes.

    Returns also the bit set of live cells, from which a target is in reach. Cached for recent rooms.

    Args:
        room: walls and targets.
        in_time: called regularly, to raise on a timeout.
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
    """Compute which boxes could be pushed to each cell if they were alone, with the pushes."""
    return _lone_pushes(room, cells(boxes), 1, in_time)


def _lone_pushes(
    room: Room, ends: Iterable[int], sign: int, in_time: Callable[[], None]
) -> dict[int, Pushes]:
    """Compute the pushes of a lone box between each cell and each of ``ends``.

    These are the pushes from it with sign 1, to it with sign -1.
    """
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
                else:  # pulled back: the box comes from the previous cell, the player from the one before
                    fresh |= shift(layer, -offset) & shift(room.floor, offset)
            layer = fresh & room.floor & ~reached
            reached |= layer
            pushes += 1
    return {cell: tuple(found) for cell, found in table.items()}


# Moves so far, the node, and the cell of the pushed box (-1 backwards).
Successor: TypeAlias = tuple[int, State, int]


def after_a_push(room: Room, alive: int, node: State, gone: int, known: dict[State, int]) -> list[Successor]:
    """Expand forwards: the nodes after each reachable push.

    ``alive`` are the cells from which a box can reach a target.
    """
    boxes, player = node
    width, offsets = room.width, room.offsets
    free = room.floor ^ boxes
    open_to_boxes = free & alive
    stands = (
        (boxes & open_to_boxes << width) << width & free,
        (boxes & open_to_boxes >> width) >> width & free,
        (boxes & open_to_boxes << 1) << 1 & free,
        (boxes & open_to_boxes >> 1) >> 1 & free,
    )
    wanted = stands[0] | stands[1] | stands[2] | stands[3]
    found = []
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
                    if gone < known.get(after, LOST):
                        found.append((gone, after, box + offset))
            if not wanted:
                break
        layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & free & ~seen
        seen |= layer
        gone += 1
    return found


def before_the_push(room: Room, node: State, gone: int, known: dict[State, int]) -> list[Successor]:
    """Expand backwards: the nodes before each push that leads to this one."""
    boxes, player = node
    width = room.width
    found = []
    for offset in room.offsets:
        if not boxes >> player + offset & 1:
            continue
        before = boxes ^ 1 << player + offset ^ 1 << player
        free = room.floor & ~before
        wanted = just_pushed(room, before)
        layer = seen = free & shift(1 << player, -offset)
        walked = gone + 1
        while layer:
            ready = layer & wanted
            if ready:
                wanted ^= ready
                while ready:
                    bit = ready & -ready
                    ready ^= bit
                    earlier = (before, bit.bit_length() - 1)
                    if walked < known.get(earlier, LOST):
                        found.append((walked, earlier, -1))
                if not wanted:
                    break
            layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & free & ~seen
            seen |= layer
            walked += 1
    return found


def just_pushed(room: Room, boxes: int) -> int:
    """Find the possible cells of a player who has just pushed one of the boxes."""
    width = room.width
    free = room.floor & ~boxes
    beside = (
        boxes >> width & free << width
        | boxes << width & free >> width
        | boxes >> 1 & free << 1
        | boxes << 1 & free >> 1
    )
    return beside & free


Successors: TypeAlias = Callable[[State, int, dict[State, int]], list[Successor]]  # see ``successors``
Fits: TypeAlias = Callable[[int, int, int], bool]  # (moves so far, total, surplus)


class Frontier:
    """Nodes of one direction of the search, with the open list.

    Attributes:
        gone: node -> minimum known moves between it and this end.
        waiting: open nodes, by moves so far, total and surplus.
    """

    def __init__(self, successors: Successors, ahead: PushBound, behind: PushBound | None) -> None:
        self.successors = successors
        self.ahead = ahead
        self.behind = behind  # None: every surplus counts as 0
        self.gone: dict[State, int] = {}
        self.waiting: dict[tuple[int, int, int], list[State]] = {}

    def begin(self, nodes: list[State]) -> None:
        """Add start nodes of one box layout."""
        for node in nodes:
            self.gone[node] = 0
            self.waiting.setdefault((0, self.ahead(node[0]), 0), []).append(node)

    def partners(self, length: int, in_time: Callable[[], None]) -> Fits | None:
        """Create a test for nodes of the other end; None if no node can pass.

        A node passes if it can form a path of ``length`` moves with an open node of this end.
        """
        keys = [key for key in self.waiting if key[1] <= length]
        if not keys:
            return None
        first_gone, last_gone = min(key[0] for key in keys), max(key[0] for key in keys)
        first_total = min(key[1] for key in keys)
        # Minimum surplus of open nodes, cumulative over moves so far and total.
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


class Push(NamedTuple):
    """Push: the box's cell, the direction (index), the player's cell, and the walk there as UDLR letters."""

    box: int
    direction: int
    stand: int
    walk: str


def next_push(room: Room, state: State, length: int, remaining: Callable[[State], int | None]) -> Push:
    """Find the next push of the solution from a solvable, unsolved state.

    Args:
        room: walls and targets.
        state: current state.
        length: moves from ``state`` to the nearest solved state.
        remaining: the same for states right after a push; None if unknown or off the shortest solutions.
    """
    boxes, player = state
    free = room.floor & ~boxes
    layer = seen = 1 << player
    walked = 0
    while layer:
        found = []
        for direction, offset in enumerate(room.offsets):
            for stand in cells(layer & shift(boxes, -offset) & shift(free, -2 * offset)):
                box = stand + offset
                after = (boxes ^ 1 << box ^ 1 << box + offset, box)
                if remaining(after) == length - walked - 1:
                    found.append((box, direction, stand))
        if found:
            box, direction, stand = min(found)
            return Push(box, direction, stand, shortest_walk(room, boxes, player, stand))
        layer = (layer << 1 | layer >> 1 | layer << room.width | layer >> room.width) & free & ~seen
        seen |= layer
        walked += 1
    raise ValueError("no push leads from this state to a solved one in the given length")


def shortest_walk(room: Room, boxes: int, start: int, end: int) -> str:
    """Find the first of the shortest walks between two cells, as UDLR letters."""
    free = room.floor & ~boxes
    layer = seen = 1 << end
    layers = []
    while not layer >> start & 1:
        layers.append(layer)
        layer = (layer << 1 | layer >> 1 | layer << room.width | layer >> room.width) & free & ~seen
        seen |= layer
    letters = []
    cell = start
    for nearer in reversed(layers):
        direction = next(d for d, offset in enumerate(room.offsets) if nearer >> cell + offset & 1)
        letters.append(LETTERS[direction])
        cell += room.offsets[direction]
    return "".join(letters)


def solution(room: Room, state: State, length: int, remaining: Callable[[State], int | None]) -> str:
    """Compute the whole solution as UDLR letters; arguments as in ``next_push``."""
    moves = ""
    while not is_solved(room, state):
        push = next_push(room, state, length - len(moves), remaining)
        moves += push.walk + LETTERS[push.direction]
        state = (state[0] ^ 1 << push.box ^ 1 << push.box + room.offsets[push.direction], push.box)
    return moves


ALONE = 500  # forward states before the backward search starts
MOST_ENTRIES = 4_000_000  # (target, cell) pairs of the push tables, per million states
MOST_SOLVED = 2000  # solved layouts; with more (more targets than boxes) there is no backward search


class Search:
    """One search. It gives up (SolverLimit) at the limit of states or seconds.

    Attributes:
        lengths_tried: number of solution lengths tried so far.
    """

    def __init__(self, room: Room, start: State, most_states: int, seconds: float = inf) -> None:
        self._room = room
        self._start = start
        self._most_states = most_states
        self._seconds = seconds
        self._end_of_time = monotonic() + seconds
        self._at_least = 0  # lower bound of the solution length
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
        """Run the search; returns None if the level is lost.

        Otherwise returns the optimal length, and a function for the remaining moves of states right after a push.
        """
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
            # Any path that is not found yet passes an open node of each end.
            least = max(min((total for _, total, _ in end.waiting), default=0) for end in ends)
            self._at_least = length = min(max(length + 1, least), self._shortest)
        ways = self._optimal_ways(length)
        known_back = self._backward.gone if self._backward is not None else {}
        # A node of the other end that is off all optimal paths has too many moves left to be used.
        return length, lambda state: ways[state] if state in ways else known_back.get(state)

    @property
    def states(self) -> int:
        """Count the stored states."""
        return len(self._forward.gone) + (0 if self._backward is None else len(self._backward.gone))

    def _other_end(self) -> Frontier:
        """Create the backward search from the solved states."""
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
        """Expand the nodes that can be on a path of ``length`` moves to the other end."""
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
                    continue  # a shorter path to it was found
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
        """Raise SolverLimit after the timeout."""
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
        """Compute the remaining moves of nodes on optimal paths, backwards from where the two searches met."""
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


def solve(
    level_text: str, solver_states: int = SOLVER_STATES, solver_seconds: float = SOLVER_SECONDS
) -> list[str] | None:
    r"""Solve a level in XSB text with the minimum number of moves.

    >>> from tstar_envs.envs.sokoban import solve
    >>> solve("#####\n#@$.#\n#####")
    ['Right']

    Args:
        level_text: XSB text; see ``tstar_envs.envs.sokoban.level.parse_level``.
        solver_states: maximum number of states of the search. A million take about 300 MB, and ten seconds with four
            boxes, a minute with seven.
        solver_seconds: timeout of the search, in seconds.

    Returns:
        Moves (``Up``, ``Down``, ``Left``, ``Right``), empty if the level is solved already, None if it is unsolvable. Time and
        memory grow steeply with boxes and floor; four boxes in 10x10 take seconds (scripts/bench/bench_solver.py).

    Raises:
        BadData: the text is not a level.
        SolverLimit: the search gave up without a result.
        UnknownOption: ``solver_states`` is not a whole number of at least 1, or ``solver_seconds`` is not above 0.
    """
    check_solver_bounds(solver_states, solver_seconds)
    room, state = parse_level(level_text)
    moves = solve_state(room, state, solver_states, solver_seconds)
    return None if moves is None else [DIRECTIONS[LETTERS.index(letter)] for letter in moves]


def solve_state(
    room: Room, state: State, solver_states: int = SOLVER_STATES, solver_seconds: float = SOLVER_SECONDS
) -> str | None:
    """Solve a state; returns UDLR letters, None if it is lost; see ``solve``."""
    found = Search(room, state, solver_states, solver_seconds).run()
    return None if found is None else solution(room, state, *found)
