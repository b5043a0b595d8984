"""Where the nodes of a cognitive tree stand: layers from top to bottom by depth, few crossings, children below parents.

Each node's layer is given (by depth every edge leads one layer down; by state a layer is the earliest visit and edges may lead anywhere),
so what is left of Sugiyama's method is the order within a layer (sweeps that sort by the mean of the neighbours) and the places (least
squares with a minimum distance). `routes.py` draws the edges that do not lead one layer down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Edge = tuple[int, int, float]
SWEEPS = 12


def place(depths: Mapping[int, int], edges: Sequence[Edge]) -> dict[int, float]:
    """Horizontal places, at least 1 apart within a layer, the leftmost 0.

    Args:
        depths: layer of each node, by id; ids break ties.
        edges: (source, target, weight); a heavier edge pulls harder, so that busy ways run straight. One that leads up pulls as if it
            led down; one within a layer pulls nothing.
    """
    layers: dict[int, list[int]] = {}
    for node in sorted(depths):
        layers.setdefault(depths[node], []).append(node)
    above: dict[int, list[tuple[int, float]]] = {node: [] for node in depths}
    below: dict[int, list[tuple[int, float]]] = {node: [] for node in depths}
    for source, target, weight in edges:
        if depths[source] != depths[target]:
            upper, lower = sorted((source, target), key=depths.__getitem__)
            above[lower].append((upper, weight))
            below[upper].append((lower, weight))

    places = {node: float(k) for layer in layers.values() for k, node in enumerate(layer)}
    for sweep in range(SWEEPS):
        downward = sweep % 2 == 0
        neighbours = above if downward else below
        for depth in sorted(layers, reverse=not downward):
            aims = sorted((_aim(node, neighbours[node], places), node) for node in layers[depth])
            layers[depth] = [node for _, node in aims]
            places.update(zip(layers[depth], spread([aim for aim, _ in aims]), strict=True))
    for (
        layer
    ) in layers.values():  # the order stands; the places settle between the neighbours above and below
        settled = spread([_aim(node, [*above[node], *below[node]], places) for node in layer])
        places.update(zip(layer, settled, strict=True))
    left = min(places.values(), default=0.0)
    return {node: round(x - left, 3) for node, x in places.items()}


def spread(aims: Sequence[float]) -> list[float]:
    """The places nearest to `aims` (least squares) that are at least 1 apart in the given order.

    Taking k from the k-th place turns "1 apart" into "not falling", which pooling adjacent violators solves exactly.
    """
    blocks: list[tuple[float, int]] = []  # (sum, count)
    for k, aim in enumerate(aims):
        total, count = aim - k, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            more, others = blocks.pop()
            total, count = total + more, count + others
        blocks.append((total, count))
    level = [total / count for total, count in blocks for _ in range(count)]
    return [x + k for k, x in enumerate(level)]


def _aim(node: int, neighbours: Sequence[tuple[int, float]], places: Mapping[int, float]) -> float:
    """The neighbours' mean place, or the node's own where it has none."""
    total = sum(weight for _, weight in neighbours)
    return sum(places[n] * weight for n, weight in neighbours) / total if total else places[node]
