"""How the edges of a state graph run that do not lead one row down: back, sideways, to a node met earlier, or past rows.

Each is one cubic curve that swings out to a side. Of a few widths the one is taken that touches fewest nodes and runs least along
curves that stand already. Lengths are in the drawing's own units: 1 is the least distance of two nodes in a row, or of two rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tstar_train.report.layout import Edge, place

Point = tuple[float, float]
Curve = tuple[Point, Point, Point, Point]
SAMPLES = 24
CELLS = 5  # of the grid that remembers where curves run, to a unit
REACH_X, REACH_Y = 0.42, 0.3  # how near a curve may come to a node's middle before it counts as touching it
SWINGS = (0.45, 0.8, 1.2, 1.7, 2.4, 3.2)
TOUCH, ALONG, SWING = 3.0, 0.35, 0.25  # what a touched node, a crowded cell and a unit of swing cost


@dataclass(frozen=True)
class Drawing:
    """Where everything stands, from 0 to the right and downward.

    Attributes:
        spots: (x, row) of each node, by id.
        curves: of the edges that do not lead to the next row, by (source, target).
        rows: the depth of each row; depths without a node take no room.
        width: the rightmost place of a node or curve.
    """

    spots: dict[int, tuple[float, int]]
    curves: dict[tuple[int, int], Curve]
    rows: list[int]
    width: float


def drawing(depths: Mapping[int, int], edges: Sequence[Edge]) -> Drawing:
    """The layout of a graph, which may hold cycles; arguments as of `layout.place`."""
    rows = sorted(set(depths.values()))
    places = place(depths, edges)
    spots = {node: (x, rows.index(depths[node])) for node, x in places.items()}
    curves = route(spots, [(source, target) for source, target, _ in edges])
    reached = [point_at(curve, k / SAMPLES)[0] for curve in curves.values() for k in range(SAMPLES + 1)]
    left = min([0.0, *reached])  # curves may swing out further than any node stands
    return Drawing(
        {node: (round(x - left, 3), row) for node, (x, row) in spots.items()},
        {edge: _rounded([(x - left, y) for x, y in curve]) for edge, curve in curves.items()},
        rows,
        round(max([*places.values(), *reached], default=0.0) - left, 3),
    )


def route(spots: Mapping[int, Point], edges: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Curve]:
    """The curves of all edges but those that lead to the next row.

    Args:
        spots: (x, row) of each node, by id.
        edges: (source, target), no self-loops.

    Returns:
        By edge, the four points of a cubic Bezier curve from source to target, rounded to 3 digits.
    """
    # The short ones first: they have the least choice.
    winding = sorted(
        {(a, b) for a, b in edges if a != b and spots[b][1] - spots[a][1] != 1},
        key=lambda edge: (abs(spots[edge[1]][1] - spots[edge[0]][1]), edge),
    )
    standing: dict[float, list[tuple[int, float]]] = {}  # the nodes of each row
    for node, (x, row) in spots.items():
        standing.setdefault(row, []).append((node, x))
    taken: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int], Curve] = {}
    extent = (
        min((x for x, _ in spots.values()), default=0.0),
        max((x for x, _ in spots.values()), default=0.0),
    )
    for source, target in winding:
        start, end = spots[source], spots[target]
        best, best_cost, best_cells = None, 0.0, frozenset[tuple[int, int]]()
        for swing, curve in _candidates(start, end, extent):
            path = [point_at(curve, k / SAMPLES) for k in range(1, SAMPLES)]
            cells = frozenset((round(x * CELLS), round(y * CELLS)) for x, y in path)
            cost = (
                TOUCH * _touched(path, standing, (source, target))
                + ALONG * sum(taken.get(cell, 0) for cell in cells)
                + SWING * swing
            )
            if best is None or cost < best_cost:
                best, best_cost, best_cells = curve, cost, cells
        if best is None:  # every pair of points has candidates
            raise RuntimeError(f"no curve from {source} to {target}")
        found[source, target] = best
        for cell in best_cells:
            taken[cell] = taken.get(cell, 0) + 1
    return found


def point_at(curve: Curve, share: float) -> Point:
    """The point of a cubic Bezier curve at a share (0 to 1) of its parameter."""
    a, b, c, d = (1 - share) ** 3, 3 * share * (1 - share) ** 2, 3 * share**2 * (1 - share), share**3
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = curve
    return a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3


def _candidates(start: Point, end: Point, extent: tuple[float, float]) -> list[tuple[float, Curve]]:
    """Curves to choose from, each with how far it swings out."""
    (x0, y0), (x1, y1) = start, end
    # An arc: above the row to the right, below it to the left, so that a way and its return part.
    if y0 == y1:
        side = -1.0 if x1 > x0 else 1.0
        flat, inset = (x1 - x0), 0.2
        return [
            (
                height,
                _rounded(
                    [
                        start,
                        (x0 + inset * flat, y0 + side * height),
                        (x1 - inset * flat, y1 + side * height),
                        end,
                    ]
                ),
            )
            for height in (0.4, 0.6, 0.8)
        ]
    middle, lift = (x0 + x1) / 2, 0.2 * (y1 - y0)
    # Past all nodes, on either side.
    around = [(extent[0] - 0.6 - middle) / 0.75, (extent[1] + 0.6 - middle) / 0.75]
    swings = [sign * swing for swing in SWINGS for sign in (1.0, -1.0)] + around
    if y1 > y0:
        swings.insert(0, 0.0)  # a way down may run straight where nothing stands in between
    return [
        (abs(swing), _rounded([start, (x0 + swing, y0 + lift), (x1 + swing, y1 - lift), end]))
        for swing in swings
    ]


def _rounded(points: Sequence[Point]) -> Curve:
    a, b, c, d = [(round(x, 3), round(y, 3)) for x, y in points]
    return a, b, c, d


def _touched(
    path: Sequence[Point], standing: Mapping[float, Sequence[tuple[int, float]]], ends: tuple[int, int]
) -> int:
    """How many nodes a path touches, its own two ends apart. A point comes near one row at most."""
    touched: set[int] = set()
    for x, y in path:
        row = round(y)
        room = 1 - ((y - row) / REACH_Y) ** 2
        if room > 0:
            touched |= {node for node, u in standing.get(row, ()) if ((x - u) / REACH_X) ** 2 < room}
    return len(touched.difference(ends))
