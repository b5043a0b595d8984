"""States of Sokoban and the bit sets that they are made of.

Cell (row, column) is bit ``row * width + column``. Floor never touches the edge of the grid, so shifting a set of floor
cells by one step in any direction never wraps around into other floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

# The boxes as a bit set of cells, and the player's cell. A plain tuple, since many states are remembered: the garbage
# collector leaves plain tuples of numbers alone, and walks over objects of any class of our own again and again.
State: TypeAlias = tuple[int, int]

_LONG = 4096  # bits


def cells(bits: int) -> Iterator[int]:
    """The cells of a bit set, ascending."""
    # Taking cells out of millions of bits one by one would take the square of their number.
    if bits.bit_length() > _LONG:
        data = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
        for start in range(0, len(data), _LONG // 8):
            chunk = int.from_bytes(data[start : start + _LONG // 8], "little")
            yield from (8 * start + cell for cell in cells(chunk))
        return
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def shift(bits: int, offset: int) -> int:
    """A bit set moved by an offset."""
    return bits << offset if offset > 0 else bits >> -offset


def flood(floor: int, start: int, width: int) -> int:
    """The cells of ``floor`` connected with ``start`` (both bit sets)."""
    reached, layer = start, start
    while layer:
        layer = (layer << 1 | layer >> 1 | layer << width | layer >> width) & floor & ~reached
        reached |= layer
    return reached
