"""Initial states of PDDL problems: they must be one complete configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tstar_envs.data.expressions import Expressions
from tstar_envs.envs.blocksworld.facts import HANDEMPTY, HOLDING, ON, ONTABLE, Fact, state_facts
from tstar_envs.envs.blocksworld.pddl.sections import fail
from tstar_envs.envs.blocksworld.state import HAND, State, towers
from tstar_envs.envs.blocksworld.vocabulary import Vocabulary

_HANDLESS = (
    "; without any fact about the hand this is a problem of the 3-operator domain (move-b-to-b, move-b-to-t, move-t-to-b), "
    "which is not played: add (handempty)"
)


def places_of(
    facts: Iterable[Fact], names: Sequence[str], where: str, section: Expressions
) -> dict[int, int]:
    """What is below each block of which some fact says it; BadData where two facts say different things."""
    below: dict[int, int] = {}
    for fact in facts:
        if fact.predicate in (ON, ONTABLE, HOLDING):
            place = HAND if fact.predicate == HOLDING else fact.under
            if below.setdefault(fact.block, place) != place:
                fail(where, f"in (:init ...) {names[fact.block]} is in two places", section)
    return below


def check_towers(state: State, names: Sequence[str], where: str, section: Expressions) -> None:
    """Every block stands on one that carries no other, and in the end on the table."""
    for under, count in Counter(state).items():
        if under >= 0 and count > 1:
            fail(where, f"in (:init ...) {count} blocks are on {names[under]}", section)
    if state.count(HAND) > 1:
        fail(where, f"in (:init ...) {state.count(HAND)} blocks are held", section)
    for block, under in enumerate(state):
        if under >= 0 and state[under] == HAND:
            fail(where, f"in (:init ...) {names[block]} is on a block that is held", section)
    standing = {block for tower in towers(state) for block in tower}
    for block, under in enumerate(state):
        if block not in standing and under != HAND:
            fail(
                where, f"in (:init ...) {names[block]} is in a circle of blocks, with no table below", section
            )


def check_facts(
    state: State,
    facts: Iterable[Fact],
    names: Sequence[str],
    vocabulary: Vocabulary,
    where: str,
    section: Expressions,
) -> None:
    """The facts about clear blocks and the hand must be those of the configuration."""
    given, true = set(facts), set(state_facts(state))
    for fact in sorted(given ^ true):
        words = [vocabulary.predicates[fact.predicate], *(names[block] for block in fact.arguments)]
        fault = (
            "is missing, but follows from the places of the blocks"
            if fact in true
            else "contradicts the places of the blocks"
        )
        form = _HANDLESS if fact.predicate == HANDEMPTY and fact in true else ""
        fail(where, f"in (:init ...) ({' '.join(words)}) {fault}{form}", section)
