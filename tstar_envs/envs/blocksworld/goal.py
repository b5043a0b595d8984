"""Goals of Blocksworld: conjunctions of facts, and which of them can be reached at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tstar_envs.envs.blocksworld.facts import CLEAR, HANDEMPTY, HOLDING, ON, ONTABLE, Fact, fact_holds
from tstar_envs.envs.blocksworld.state import TABLE, State

ANYWHERE = -3  # as what is below a block whose place the goal does not mention


@dataclass(frozen=True)
class Goal:
    """A conjunction of facts, usually partial: what it does not mention may be as it likes.

    Attributes:
        facts: as given, in that order.
        blocks: number of blocks of the problem.
    """

    facts: tuple[Fact, ...]
    blocks: int

    @cached_property
    def below(self) -> tuple[int, ...]:
        """What each block must stand on: a block, ``TABLE``, or ``ANYWHERE``."""
        wanted = {f.block: f.under for f in self.facts if f.predicate in (ON, ONTABLE)}
        return tuple(wanted.get(block, ANYWHERE) for block in range(self.blocks))

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The pairs (block, what it must stand on), in the order of the facts."""
        return tuple((f.block, f.under) for f in self.facts if f.predicate in (ON, ONTABLE))

    @cached_property
    def clear(self) -> frozenset[int]:
        """Blocks that must be clear."""
        return frozenset(f.block for f in self.facts if f.predicate == CLEAR)

    @cached_property
    def held(self) -> int | None:
        """The block that must be held, None if no fact says so."""
        return next((f.block for f in self.facts if f.predicate == HOLDING), None)

    @cached_property
    def hand_empty(self) -> bool:
        """Whether the hand must be empty."""
        return any(f.predicate == HANDEMPTY for f in self.facts)

    def holds(self, state: State) -> bool:
        """Whether every fact holds in ``state``."""
        for block, under in self.places:
            if state[block] != under:
                return False
        if len(self.places) == len(self.facts):
            return True
        return all(fact_holds(state, fact) for fact in self.facts)


def goal_towers(goal: Goal) -> list[list[int]]:
    """The goal's places as chains from bottom to top; a chain that must stand on the table starts with ``TABLE``."""
    above = {under: block for block, under in goal.places if under >= 0}
    found, done = [], set()
    for block, under in goal.places:
        while under >= 0:
            block, under = under, goal.below[under]
        if block not in done:
            done.add(block)
            chain = [TABLE] if under == TABLE else []
            while block != TABLE:
                chain.append(block)
                block = above.get(block, TABLE)
            found.append(chain)
    return found


def contradiction(goal: Goal, names: Sequence[str]) -> str:
    """What makes a goal impossible, in the names of the blocks; "" if it can be reached from every state."""
    below: dict[int, int] = {}
    above: dict[int, int] = {}
    for block, under in goal.places:
        if below.setdefault(block, under) != under:
            return f"{names[block]} would have to be in two places"
        if under >= 0 and above.setdefault(under, block) != block:
            return f"two blocks would have to be on {names[under]}"
    for block in below:
        seen, under = {block}, below[block]
        while under >= 0:
            if under in seen:
                return f"{names[under]} would have to be above itself"
            seen.add(under)
            under = below.get(under, TABLE)
    held = {f.block for f in goal.facts if f.predicate == HOLDING}
    for block in sorted(held):
        if len(held) > 1 or goal.hand_empty or block in below or block in above or block in goal.clear:
            return f"{names[block]} would have to be held, which another fact of the goal forbids"
    for block in sorted(goal.clear):
        if block in above:
            return f"{names[block]} would have to be clear below {names[above[block]]}"
    return ""
