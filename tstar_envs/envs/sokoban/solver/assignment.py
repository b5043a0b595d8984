"""The cheapest assignment of boxes to wanted cells, exact, in time that grows with the cube of their number.

Shortest augmenting paths with prices on the wanted cells (the Hungarian method: Kuhn 1955; in this form Jonker and Volgenant, "A shortest
augmenting path algorithm for dense and sparse linear assignment problems", Computing 38, 1987). A search asks for thousands of
layouts that differ by one box, so prices are kept from layout to layout: most boxes then find their cell at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

LOST = 1 << 30  # a cost that no level reaches: there is no way
_MANY = 20  # boxes: one layout of hundreds takes a second

Pushes: TypeAlias = tuple[tuple[int, int], ...]  # wanted cells, and the pushes between each and some cell


class Assignment:
    """Least total pushes of a layout, by an assignment of its boxes to wanted cells.

    Args:
        pushes: for each cell the wanted cells that go with it, and the pushes. A cell that is missing has none.
        in_time: called now and then where there are many boxes, to raise if this takes too long.
    """

    def __init__(self, pushes: Mapping[int, Pushes], in_time: Callable[[], None] = lambda: None) -> None:
        wanted = sorted({cell for row in pushes.values() for cell, _ in row})
        self._pushes = pushes
        self._in_time = in_time
        self._number = {cell: number for number, cell in enumerate(wanted)}
        # The same with numbers for the wanted cells, as far as they were asked for.
        self._rows: dict[int, Pushes] = {}
        self._wanted = len(wanted)
        self._prices = [0] * len(wanted)

    def __call__(self, boxes: int) -> int:
        """The least pushes of a layout in all if no two boxes go with one wanted cell, ``LOST`` if that cannot be."""
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
        # Cells that are left over must be free of charge, so prices are kept only where none is.
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
    """Give one more box a cell on the cheapest path of exchanges; costs and prices go along. False if there is none."""
    reach = [LOST] * len(prices)  # cheapest way to each cell
    before = [-1] * len(prices)  # the cell whose box goes there on it
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
