"""Random Blocksworld states and goals for hypothesis, and the slow, obvious twins that the fast code is held against."""

from collections.abc import Sequence

from hypothesis import strategies as st

from tstar_envs.envs.blocksworld.problem import (
    CLEAR,
    HAND,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    OPERATORS,
    PICK_UP,
    PUT_DOWN,
    STACK,
    Fact,
    Goal,
    Operator,
    State,
    state_facts,
    state_of,
)


@st.composite
def states(draw: st.DrawFn, blocks: int, may_hold: bool = True) -> State:
    order = draw(st.permutations(range(blocks)))
    held = order.pop() if may_hold and draw(st.booleans()) else None
    piles: list[list[int]] = []
    for block in order:
        place = draw(st.integers(0, len(piles)))
        if place == len(piles):
            piles.append([block])
        else:
            piles[place].append(block)
    return state_of(piles, blocks, held)


@st.composite
def goals(draw: st.DrawFn, blocks: int, places_only: bool = False) -> Goal:
    """Some facts of a random state, so that the goal can be reached; any of them may be missing."""
    facts = [f for f in state_facts(draw(states(blocks))) if not places_only or f.predicate in (ON, ONTABLE)]
    kept = draw(st.lists(st.sampled_from(facts), unique=True)) if facts else []
    return Goal(tuple(kept), blocks)


@st.composite
def problems(draw: st.DrawFn, most_blocks: int = 5, places_only: bool = False) -> tuple[State, Goal]:
    blocks = draw(st.integers(1, most_blocks))
    return draw(states(blocks)), draw(goals(blocks, places_only))


# The domain once more, as STRIPS says it: sets of facts, preconditions, effects.


def all_operators(blocks: int) -> list[Operator]:
    ones = [Operator(verb, b) for verb in (PICK_UP, PUT_DOWN) for b in range(blocks)]
    return ones + [
        Operator(verb, b, u) for verb in OPERATORS[2:] for b in range(blocks) for u in range(blocks)
    ]


def strips(operator: Operator) -> tuple[set[Fact], set[Fact], set[Fact]]:
    """Preconditions, added and deleted facts."""
    verb, x, y = operator
    if verb in (PICK_UP, PUT_DOWN):
        before, after = {Fact(CLEAR, x), Fact(ONTABLE, x), Fact(HANDEMPTY)}, {Fact(HOLDING, x)}
        return (before, after, before) if verb == PICK_UP else (after, before, after)
    before, after = {Fact(HOLDING, x), Fact(CLEAR, y)}, {Fact(ON, x, y), Fact(CLEAR, x), Fact(HANDEMPTY)}
    return (before, after, before) if verb == STACK else (after, before, after)


def strips_apply(facts: set[Fact], operator: Operator) -> set[Fact] | None:
    """The facts after an operator, None if it is illegal."""
    needed, added, deleted = strips(operator)
    return (facts - deleted) | added if needed <= facts else None


def shortest(state: State, goal: Goal) -> int:
    """Breadth-first search over STRIPS states."""
    wanted = set(goal.facts)
    frontier = [frozenset(state_facts(state))]
    seen = set(frontier)
    operators = all_operators(len(state))
    steps = 0
    while not any(wanted <= facts for facts in frontier):
        found = [
            frozenset(after)
            for facts in frontier
            for op in operators
            if (after := strips_apply(set(facts), op)) is not None
        ]
        frontier = [facts for facts in dict.fromkeys(found) if facts not in seen]
        seen.update(frontier)
        steps += 1
        assert frontier, "every consistent goal can be reached"
    return steps


def held_and_below(facts: Sequence[Fact], blocks: int) -> State:
    """The state that facts describe."""
    places = {
        f.block: HAND if f.predicate == HOLDING else f.under
        for f in facts
        if f.predicate in (ON, ONTABLE, HOLDING)
    }
    return tuple(places[block] for block in range(blocks))
