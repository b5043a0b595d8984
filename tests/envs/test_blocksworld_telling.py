"""States in words, step by step: what is told after an operator is what is told of the state that it leads to."""

from blocksworld_strategies import states
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs.envs.blocksworld.phrases import phrasebook
from tstar_envs.envs.blocksworld.rules import (
    CLEAR,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    TABLE,
    State,
    apply,
    held_block,
    legal_operators,
    towers,
)
from tstar_envs.envs.blocksworld.telling import Teller

STATES = st.integers(1, 7).flatmap(states)
STYLES = st.sampled_from([("plain", True), ("plain", False), ("mystery", True), ("mystery", False)])
LABELS = ("red", "blue", "b12", "table-top", "x", "green", "cyan")


def held_of(state: State) -> int:
    held = held_block(state)
    return TABLE if held is None else held


@given(STATES, STYLES, st.data())
def test_told_step_by_step(state: State, style: tuple[str, bool], data: st.DataObject) -> None:
    teller = Teller(LABELS[: len(state)], phrasebook(*style))
    piles = teller.towers(state)
    for _ in range(8):
        operators = legal_operators(state, towers(state))
        position = data.draw(st.integers(0, len(operators) - 1))
        after, piles, held = teller.after_legal(state, piles, held_of(state), position)
        assert after == apply(state, operators[position])
        assert (piles, held) == (teller.towers(after), held_of(after))
        state = after


@given(STATES, STYLES)
def test_what_is_told(state: State, style: tuple[str, bool]) -> None:
    """The text put together anew from the facts that hold, in the order of the towers."""
    labels, book = LABELS[: len(state)], phrasebook(*style)
    teller, held = Teller(labels, book), held_of(state)
    text, actions = teller.situation(held, teller.towers(state))
    if style == ("plain", False):
        hand = "empty" if held == TABLE else labels[held]
        expected = f"hand: {hand} | towers: {' / '.join(' '.join(labels[block] for block in tower) for tower in towers(state))}"
    else:
        facts = [book[HANDEMPTY,] if held == TABLE else book[HOLDING, labels[held]]]
        for tower in towers(state):
            facts.append(book[CLEAR, labels[tower[-1]]])
            for block in reversed(tower):
                under = state[block]
                facts.append(
                    book[ONTABLE, labels[block]] if under == TABLE else book[ON, labels[block], labels[under]]
                )
        expected = ("State: {}." if style[1] else "state: {}").format(", ".join(facts))
    assert text == expected
    verbs = book.vocabulary.verbs
    names = [
        (operator.verb, *(labels[block] for block in operator.arguments))
        for operator in legal_operators(state, towers(state))
    ]
    assert list(actions) == [" ".join((verbs[verb], *rest)) for verb, *rest in names]
