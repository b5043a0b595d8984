"""Retrograde analysis, the exact distances of all states of a room: breadth-first search backwards from every solved state.

It goes over single moves. All player cells of one box layout travel together as a bit set, so a layer costs a handful of
integer operations for each layout that it touches.
"""

from __future__ import annotations

from itertools import combinations

from tstar_envs.envs.sokoban.state import State, cells
from tstar_envs.envs.sokoban.task import Room


class DistanceTable:
    """Moves from each state to the nearest solved one; with the whole room searched, states that are not in it are lost.

    Attributes:
        layers: per distance, box layout -> bit set of the player cells at exactly this distance.
    """

    def __init__(self, room: Room, boxes: int, deepest: int | None = None) -> None:
        """Search backwards with so many boxes, up to a distance of ``deepest`` (None: the whole room)."""
        self.layers: list[dict[int, int]] = []
        self._by_layout: dict[int, list[tuple[int, int]]] = {}
        found: dict[int, int] = {}
        for chosen in combinations(cells(room.targets), boxes):
            layout = sum(1 << cell for cell in chosen)
            found[layout] = room.floor & ~layout
        seen: dict[int, int] = {}
        while found and (deepest is None or len(self.layers) <= deepest):
            layer: dict[int, int] = {}
            for layout, players in found.items():
                known = seen.get(layout, 0)
                fresh = players & ~known
                if fresh:
                    layer[layout] = fresh
                    seen[layout] = known | fresh
                    if known:
                        self._by_layout[layout].append((len(self.layers), fresh))
                    else:
                        self._by_layout[layout] = [(len(self.layers), fresh)]
            if not layer:
                return
            self.layers.append(layer)
            found = _step_back(room, layer)

    def __call__(self, state: State) -> int | None:
        """The distance of a state, None if it is not in the table."""
        boxes, player = state
        bit = 1 << player
        for distance, players in self._by_layout.get(boxes, ()):
            if players & bit:
                return distance
        return None


def _step_back(room: Room, layer: dict[int, int]) -> dict[int, int]:
    """All states from which one move leads into the layer (and some that are nearer)."""
    floor, width = room.floor, room.width
    found: dict[int, int] = {}
    get = found.get
    for layout, players in layer.items():
        free = floor & ~layout
        walked = (players << 1 | players >> 1 | players << width | players >> width) & free
        if walked:
            found[layout] = get(layout, 0) | walked
        # A push undone: the player steps back from the box in front, and the box follows. In turn: the push went
        # up, down, left, right. Shifts are written out, this loop is most of the cost of making levels.
        pulls = players & layout << width & free >> width
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit >> width
            found[before] = get(before, 0) | bit << width
        pulls = players & layout >> width & free << width
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit << width
            found[before] = get(before, 0) | bit >> width
        pulls = players & layout << 1 & free >> 1
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit >> 1
            found[before] = get(before, 0) | bit << 1
        pulls = players & layout >> 1 & free << 1
        while pulls:
            bit = pulls & -pulls
            pulls ^= bit
            before = layout ^ bit ^ bit << 1
            found[before] = get(before, 0) | bit >> 1
    return found
