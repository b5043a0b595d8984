"""Which blocks must move for a goal, and where each is best put.

* A block must move if its place is wrong, if something else must stand on (or nothing may cover) the block below it, or
  if the block below it must move. Every such block moves at least once, and no other block ever has to.
* A block that can go to its last place now may as well go now: its goal support is clear and need not move any more, or
  the goal wants it on the table, or does not say where. Such a move is part of some optimal plan.

(Gupta and Nau 1992; Slaney and Thiebaux 2001; carried over to partial goals.)
"""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.envs.blocksworld.goal import ANYWHERE, Goal, goal_towers
from tstar_envs.envs.blocksworld.state import HAND, TABLE, State

Move = tuple[int, int]  # block, new place


class MoveRules:
    """Moves for one goal, between configurations with an empty hand.

    A configuration is two lists: what is below each block, and what is above it (``TABLE`` if nothing is).

    Args:
        goal: to be reached.
        held: the block that the hand shall hold in the end, None for none; with those that the goal wants clear it ends bare.
    """

    def __init__(self, goal: Goal, held: int | None) -> None:
        self._below = goal.below
        self.held = held
        self._bare = goal.clear if held is None else goal.clear | {held}
        self._on_top = {under: block for block, under in goal.places if under != TABLE}
        # Blocks whose last place the goal names first are tried first, the others by number.
        named = [block for block, _ in goal.places]
        self._order = named + [b for b in range(goal.blocks) if b not in set(named)]
        self._towers = [[block for block in tower if block != TABLE] for tower in goal_towers(goal)]

    def must_move(self, below: Sequence[int], above: Sequence[int]) -> list[bool]:
        """Whether each block has to leave its place; ``above`` is the inverse of ``below``."""
        must = [False] * len(below)
        for bottom, under in enumerate(below):
            if under != TABLE:
                continue
            block, moving = bottom, False
            while block != TABLE:
                moving = moving or self._misplaced(block, below[block])
                must[block] = moving
                block = above[block]
        return must

    def _misplaced(self, block: int, under: int) -> bool:
        """Whether a block must leave its place for a reason of its own, or of the block below it."""
        if self._below[block] not in (ANYWHERE, under):
            return True
        if under == TABLE:
            return False
        # The block that the goal wants in the hand leaves this place anyhow.
        return self._on_top.get(under, block) != block or (under in self._bare and block != self.held)

    def least_extra(self, below: list[int], must: list[bool]) -> int:
        """Lower bound of the extra moves: blocks above a part of their own goal support that must move."""
        count = 0
        for block, moving in enumerate(must):
            if not moving or below[block] == TABLE:
                continue
            support, wanted = set(), self._below[block]
            while wanted >= 0:
                support.add(wanted)
                wanted = self._below[wanted]
            under = below[block]
            while under != TABLE:
                if under in support and must[under]:
                    count += 1
                    break
                under = below[under]
        return count

    def in_the_way(self, above: list[int], must: list[bool]) -> dict[int, None]:
        """Blocks in the order in which taking them away is tried: first what covers the next block of a tower, or its place."""
        order: dict[int, None] = {}
        for tower in self._towers:
            following = next((block for block in tower if must[block]), TABLE)
            for block in (following, self._below[following] if following != TABLE else TABLE):
                if block >= 0:
                    while above[block] != TABLE:
                        block = above[block]
                    order[block] = None
        return order | dict.fromkeys(self._order)

    def final_move(self, above: list[int], must: list[bool]) -> Move | None:
        """The first block that can go to its last place now; building before clearing."""
        clearing: Move | None = None
        for block in self._order:
            if must[block] and above[block] == TABLE:
                wanted = self._below[block]
                if wanted < 0:
                    clearing = clearing or (block, TABLE)
                elif above[wanted] == TABLE and not must[wanted]:
                    return block, wanted
        return clearing

    def drop(self, state: State, held: int) -> Move:
        """Where a held block is best put: its last place if that is ready, else the table."""
        below = [TABLE if under == HAND else under for under in state]
        above = inverse(below)
        wanted = self._below[held]
        ready = wanted >= 0 and above[wanted] == TABLE and not self.must_move(below, above)[wanted]
        return held, wanted if ready else TABLE


def inverse(below: Sequence[int]) -> list[int]:
    """What is above each block, ``TABLE`` if nothing is."""
    above = [TABLE] * len(below)
    for block, under in enumerate(below):
        if under >= 0:
            above[under] = block
    return above


def carry(below: list[int], above: list[int], block: int, place: int) -> None:
    """Move a clear block in both views of a configuration."""
    if below[block] >= 0:
        above[below[block]] = TABLE
    below[block] = place
    if place >= 0:
        above[place] = block


def blocks_to_move(state: State, goal: Goal) -> list[bool]:
    """Whether each block has to leave its place before the goal can hold; a held block does."""
    must = MoveRules(goal, goal.held).must_move(state, inverse(state))
    return [moving or under == HAND for moving, under in zip(must, state, strict=True)]
