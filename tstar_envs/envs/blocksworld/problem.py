"""Problems: states, facts, goals and operators on numbered blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

TABLE, HAND = -1, -2
# ``state[block]`` is what is below a block: a block, TABLE, or HAND for the held block.
State = tuple[int, ...]
Towers = tuple[tuple[int, ...], ...]  # from bottom to top


def held_block(state: State) -> int | None:
    """Get the held block, None if the hand is empty."""
    return state.index(HAND) if HAND in state else None


def towers(state: State) -> Towers:
    """List the towers from bottom to top, in the order of their bottom blocks."""
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
    """Build a state from towers (bottom to top) and the held block.

    They contain all ``blocks`` blocks.
    """
    below = [TABLE] * blocks
    for tower in piles:
        for under, block in pairwise(tower):
            below[block] = under
    if held is not None:
        below[held] = HAND
    return tuple(below)


ON, ONTABLE, CLEAR, HOLDING, HANDEMPTY = "on", "ontable", "clear", "holding", "handempty"
FACT_ARITY = {ON: 2, ONTABLE: 1, CLEAR: 1, HOLDING: 1, HANDEMPTY: 0}


class Fact(NamedTuple):
    """Fact of the domain; unused arguments are ``TABLE``."""

    predicate: str
    block: int = TABLE
    under: int = TABLE

    @property
    def arguments(self) -> tuple[int, ...]:
        """Blocks of the fact."""
        return (self.block, self.under)[: FACT_ARITY[self.predicate]]


def fact_holds(state: State, fact: Fact) -> bool:
    """Check whether a fact holds; a held block is not clear."""
    predicate, block, under = fact
    if predicate in (ON, ONTABLE):
        return state[block] == under
    if predicate == HOLDING:
        return state[block] == HAND
    if predicate == HANDEMPTY:
        return HAND not in state
    return state[block] != HAND and block not in state


def state_facts(state: State) -> list[Fact]:
    """List all facts of a state."""
    facts = [] if HAND in state else [Fact(HANDEMPTY)]
    for block, under in enumerate(state):
        if under == HAND:
            facts.append(Fact(HOLDING, block))
            continue
        facts.append(Fact(ONTABLE, block) if under == TABLE else Fact(ON, block, under))
        if block not in state:
            facts.append(Fact(CLEAR, block))
    return facts


ANYWHERE = -3  # place of a block that the goal does not mention


@dataclass(frozen=True)
class Goal:
    """Goal: a conjunction of facts, usually partial.

    Blocks that it does not mention may be anywhere.

    Attributes:
        facts: the facts, in the given order.
        blocks: number of blocks of the problem.
    """

    facts: tuple[Fact, ...]
    blocks: int

    @cached_property
    def below(self) -> tuple[int, ...]:
        """Required place of each block: a block, ``TABLE``, or ``ANYWHERE``."""
        wanted = {f.block: f.under for f in self.facts if f.predicate in (ON, ONTABLE)}
        return tuple(wanted.get(block, ANYWHERE) for block in range(self.blocks))

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Pairs (block, required place), in the order of the facts."""
        return tuple((f.block, f.under) for f in self.facts if f.predicate in (ON, ONTABLE))

    @cached_property
    def clear(self) -> frozenset[int]:
        """Blocks that must be clear."""
        return frozenset(f.block for f in self.facts if f.predicate == CLEAR)

    @cached_property
    def held(self) -> int | None:
        """Block that must be held, None if the goal has no such fact."""
        return next((f.block for f in self.facts if f.predicate == HOLDING), None)

    @cached_property
    def hand_empty(self) -> bool:
        """True if the hand must be empty."""
        return any(f.predicate == HANDEMPTY for f in self.facts)

    def holds(self, state: State) -> bool:
        """Check whether every fact holds in ``state``."""
        for block, under in self.places:
            if state[block] != under:
                return False
        if len(self.places) == len(self.facts):
            return True
        return all(fact_holds(state, fact) for fact in self.facts)


def goal_towers(goal: Goal) -> list[list[int]]:
    """List the goal's places as chains from bottom to top.

    A chain that must stand on the table starts with ``TABLE``.
    """
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
    """Explain why a goal is impossible, with the names of the blocks.

    "" if it is reachable from every state.
    """
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


@dataclass(frozen=True)
class Problem:
    """Problem: block number b is named ``names[b]``; ``start`` and ``goal`` use numbers."""

    names: tuple[str, ...]
    start: State
    goal: Goal


@dataclass(frozen=True)
class Task:
    """One planning task.

    Attributes:
        id: unique in its set.
        split: train, valid or test.
        problem: start and goal.
        optimal_length: operators of a shortest plan, None if not stored.
    """

    id: str
    split: str
    problem: Problem
    optimal_length: int | None = None

    def __hash__(self) -> int:
        # Hashing all fields would cost more than a step, and every reset looks up a view.
        return hash(self.id)


PICK_UP, PUT_DOWN, STACK, UNSTACK = "pick-up", "put-down", "stack", "unstack"
OPERATORS = (PICK_UP, PUT_DOWN, STACK, UNSTACK)
OPERATOR_ARITY = {PICK_UP: 1, PUT_DOWN: 1, STACK: 2, UNSTACK: 2}


class Operator(NamedTuple):
    """Operator; ``under`` is the second block of stack and unstack, ``TABLE`` for the other two."""

    verb: str
    block: int
    under: int = TABLE

    @property
    def arguments(self) -> tuple[int, ...]:
        """Blocks of the operator."""
        return (self.block, self.under)[: OPERATOR_ARITY[self.verb]]


def legal_operators(state: State, piles: Towers) -> list[Operator]:
    """List all legal operators; ``piles`` are ``towers(state)``.

    With a held block: put it down, then stack it on each tower. Else: take the top of each tower.
    """
    if HAND in state:
        held = state.index(HAND)
        return [Operator(PUT_DOWN, held), *(Operator(STACK, held, tower[-1]) for tower in piles)]
    return [
        Operator(PICK_UP, *tower) if len(tower) == 1 else Operator(UNSTACK, tower[-1], tower[-2])
        for tower in piles
    ]


def preconditions(operator: Operator) -> tuple[Fact, ...]:
    """List the preconditions of an operator, the hand first."""
    verb, block, under = operator
    if verb == PICK_UP:
        return Fact(HANDEMPTY), Fact(ONTABLE, block), Fact(CLEAR, block)
    if verb == UNSTACK:
        return Fact(HANDEMPTY), Fact(ON, block, under), Fact(CLEAR, block)
    if verb == STACK:
        return Fact(HOLDING, block), Fact(CLEAR, under)
    return (Fact(HOLDING, block),)


def violated(state: State, operator: Operator) -> tuple[Fact, Fact] | None:
    """Find why an operator is illegal: the first failing precondition and the contradicting fact.

    None if legal.
    """
    for needed in preconditions(operator):
        if not fact_holds(state, needed):
            return needed, _counter_fact(state, needed)
    return None


def _counter_fact(state: State, needed: Fact) -> Fact:
    """Find the fact of the state that contradicts ``needed``."""
    held = held_block(state)
    if needed.predicate == HANDEMPTY or held == needed.block:
        return Fact(HOLDING, held if held is not None else needed.block)
    if needed.predicate == HOLDING:
        return Fact(HANDEMPTY) if held is None else Fact(HOLDING, held)
    if needed.predicate == CLEAR:
        return Fact(ON, state.index(needed.block), needed.block)
    under = state[needed.block]
    return Fact(ONTABLE, needed.block) if under == TABLE else Fact(ON, needed.block, under)


def transition(state: State, operator: Operator) -> State:
    """Apply a legal operator."""
    verb, block, under = operator
    below = list(state)
    below[block] = under if verb in (PUT_DOWN, STACK) else HAND
    return tuple(below)


SOLVER_SECONDS = 20.0  # timeout of the planner
