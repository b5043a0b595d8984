"""Facts of the Blocksworld domain, and which of them hold in a state."""

from __future__ import annotations

from typing import NamedTuple

from tstar_envs.envs.blocksworld.state import HAND, TABLE, State

ON, ONTABLE, CLEAR, HOLDING, HANDEMPTY = "on", "ontable", "clear", "holding", "handempty"
ARITY = {ON: 2, ONTABLE: 1, CLEAR: 1, HOLDING: 1, HANDEMPTY: 0}


class Fact(NamedTuple):
    """A fact of the domain; arguments that a predicate does not have are ``TABLE``."""

    predicate: str
    block: int = TABLE
    under: int = TABLE

    @property
    def arguments(self) -> tuple[int, ...]:
        """The blocks that the fact names."""
        return (self.block, self.under)[: ARITY[self.predicate]]


def fact_holds(state: State, fact: Fact) -> bool:
    """Whether one fact holds; a held block is not clear."""
    predicate, block, under = fact
    if predicate in (ON, ONTABLE):
        return state[block] == under
    if predicate == HOLDING:
        return state[block] == HAND
    if predicate == HANDEMPTY:
        return HAND not in state
    return state[block] != HAND and block not in state


def state_facts(state: State) -> list[Fact]:
    """Every fact that holds in a state."""
    facts = [] if HAND in state else [Fact(HANDEMPTY)]
    for block, under in enumerate(state):
        if under == HAND:
            facts.append(Fact(HOLDING, block))
            continue
        facts.append(Fact(ONTABLE, block) if under == TABLE else Fact(ON, block, under))
        if block not in state:
            facts.append(Fact(CLEAR, block))
    return facts
