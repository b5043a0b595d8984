"""How far the wanted towers are built: which part of each stands already, and where its next block is.

The expert goes through this before it decides. Every clause is one look at the goal or at the towers, so that a small
model can learn to say it, and what it has said decides the operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from tstar_envs.envs.blocksworld.facts import ON, ONTABLE, Fact
from tstar_envs.envs.blocksworld.goal import Goal, goal_towers
from tstar_envs.envs.blocksworld.solver.moves import blocks_to_move
from tstar_envs.envs.blocksworld.state import TABLE, State, held_block


def tower_progress(goal: Goal, state: State, block: int) -> Iterator[list[int] | Fact]:
    """The clauses in front of the operator on ``block``: lists of blocks that are in place, from bottom to top, and facts.

    With an empty hand the wanted towers are gone through until one is found that ``block`` goes on with, with a block in
    the hand only the part of its own tower that must stand first. A fact is where the next block of a tower is, or what
    stands on that block or on its place; none says where a covered block is that is wanted on the table.
    """
    above = {under: block for block, under in enumerate(state) if under >= 0}
    must = blocks_to_move(state, goal)
    held = held_block(state)
    for chain in goal_towers(goal):
        if held is not None and held not in chain:
            continue
        wanted = [b for b in chain if b != TABLE]
        if held is not None:
            wanted = wanted[: wanted.index(held)]
        standing = list(takewhile(lambda b: not must[b], wanted))
        if standing:
            yield standing
        if len(standing) == len(wanted):
            if held is not None and wanted and wanted[-1] in above:
                yield Fact(ON, above[wanted[-1]], wanted[-1])
            continue
        following = wanted[len(standing)]
        support = goal.below[following]
        if support == TABLE and following in above:
            continue
        yield Fact(ON, following, state[following]) if state[following] >= 0 else Fact(ONTABLE, following)
        covers = [Fact(ON, above[b], b) for b in (following, support) if b in above]
        yield from covers
        if held is None and following == block and not covers:
            return
