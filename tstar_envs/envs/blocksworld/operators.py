"""Operators of Blocksworld: which of them a state allows, and the state that each leads to, as pure functions on block numbers.

The four are those of the 4-operator STRIPS domain; names of blocks and verbs are the business of ``language``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tstar_envs.envs.blocksworld.facts import (
    CLEAR,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    Fact,
    fact_holds,
)
from tstar_envs.envs.blocksworld.state import HAND, TABLE, State, Towers, held_block

PICK_UP, PUT_DOWN, STACK, UNSTACK = "pick-up", "put-down", "stack", "unstack"
OPERATORS = (PICK_UP, PUT_DOWN, STACK, UNSTACK)
ARITY = {PICK_UP: 1, PUT_DOWN: 1, STACK: 2, UNSTACK: 2}


class Operator(NamedTuple):
    """``under`` is the second block of stack and unstack, ``TABLE`` for the other two."""

    verb: str
    block: int
    under: int = TABLE

    @property
    def arguments(self) -> tuple[int, ...]:
        """The blocks that the operator names."""
        return (self.block, self.under)[: ARITY[self.verb]]


# The same as a plain tuple, which is made faster, and left alone by the garbage collector.
OperatorFields: TypeAlias = tuple[str, int, int]


def legal_operators(state: State, piles: Towers) -> list[Operator]:
    """Every operator whose preconditions hold; ``piles`` are ``towers(state)``.

    With a block in the hand putting it down, then on each tower; else taking each tower's top.
    """
    if HAND in state:
        held = state.index(HAND)
        return [Operator(PUT_DOWN, held), *(Operator(STACK, held, tower[-1]) for tower in piles)]
    return [
        Operator(PICK_UP, *tower) if len(tower) == 1 else Operator(UNSTACK, tower[-1], tower[-2])
        for tower in piles
    ]


def preconditions(operator: Operator) -> tuple[Fact, ...]:
    """What must hold before an operator, the hand first."""
    verb, block, under = operator
    if verb == PICK_UP:
        return Fact(HANDEMPTY), Fact(ONTABLE, block), Fact(CLEAR, block)
    if verb == UNSTACK:
        return Fact(HANDEMPTY), Fact(ON, block, under), Fact(CLEAR, block)
    if verb == STACK:
        return Fact(HOLDING, block), Fact(CLEAR, under)
    return (Fact(HOLDING, block),)


def violated(state: State, operator: Operator) -> tuple[Fact, Fact] | None:
    """Why an operator is illegal: the first precondition that fails and the fact that stands against it; None if legal."""
    for needed in preconditions(operator):
        if not fact_holds(state, needed):
            return needed, _counter_fact(state, needed)
    return None


def _counter_fact(state: State, needed: Fact) -> Fact:
    """The fact of the state that makes ``needed`` false."""
    held = held_block(state)
    if needed.predicate == HANDEMPTY or held == needed.block:
        return Fact(HOLDING, held if held is not None else needed.block)
    if needed.predicate == HOLDING:
        return Fact(HANDEMPTY) if held is None else Fact(HOLDING, held)
    if needed.predicate == CLEAR:
        return Fact(ON, state.index(needed.block), needed.block)
    under = state[needed.block]
    return Fact(ONTABLE, needed.block) if under == TABLE else Fact(ON, needed.block, under)


def transition(state: State, operator: OperatorFields) -> State:
    """The state after a legal operator."""
    verb, block, under = operator
    below = list(state)
    below[block] = under if verb in (PUT_DOWN, STACK) else HAND
    return tuple(below)
