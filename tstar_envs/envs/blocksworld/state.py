"""States of Blocksworld: what is below each block.

A state is the whole configuration (which block is held and the set of towers), so equal configurations are equal states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

TABLE, HAND = -1, -2
# ``state[block]`` is what is below it: a block, TABLE, or HAND for the block that is held.
State = tuple[int, ...]
Towers = tuple[tuple[int, ...], ...]  # from bottom to top


def held_block(state: State) -> int | None:
    """The block in the hand, None if it is empty."""
    return state.index(HAND) if HAND in state else None


def towers(state: State) -> Towers:
    """The towers, each from bottom to top, in the order of their bottom blocks; the held block is in none."""
    above = {under: block for block, under in enumerate(state) if under >= 0}
    found = []
    for block, under in enumerate(state):
        if under == TABLE:
            tower = [block]
            while (block := above.get(block, TABLE)) != TABLE:
                tower.append(block)
            found.append(tuple(tower))
    return tuple(found)


def state_of(piles: Iterable[Sequence[int]], blocks: int, held: int | None = None) -> State:
    """The state with the given towers (bottom to top), all of ``blocks`` blocks standing in one or held."""
    below = [TABLE] * blocks
    for tower in piles:
        for under, block in pairwise(tower):
            below[block] = under
    if held is not None:
        below[held] = HAND
    return tuple(below)
