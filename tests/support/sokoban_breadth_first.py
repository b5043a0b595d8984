"""A plain breadth-first search over single moves, written apart from the environment: no tables, no pruning, no bit sets."""

from __future__ import annotations


def shortest(level_text: str) -> int | None:
    """Length of a shortest solution of a level in XSB text, None if there is none."""
    walls, targets, boxes, player = set(), set(), set(), None
    for row, line in enumerate(level_text.splitlines()):
        for column, symbol in enumerate(line):
            cell = 100 * row + column
            if symbol == "#":
                walls.add(cell)
            if symbol in ".*+":
                targets.add(cell)
            if symbol in "$*":
                boxes.add(cell)
            if symbol in "@+":
                player = cell
    start = (player, frozenset(boxes))
    seen, layer, length = {start}, [start], 0
    while layer:
        following = []
        for player, boxes in layer:
            if boxes <= targets:
                return length
            for step in (-100, 100, -1, 1):
                ahead = player + step
                after = boxes
                if ahead in walls:
                    continue
                if ahead in boxes:
                    if ahead + step in walls or ahead + step in boxes:
                        continue
                    after = boxes - {ahead} | {ahead + step}
                state = (ahead, after)
                if state not in seen:
                    seen.add(state)
                    following.append(state)
        layer = following
        length += 1
    return None
