"""States and operators in words."""

from blocksworld_strategies import states
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs.envs.blocksworld.language import MYSTERY, PLAIN, Language, read_command
from tstar_envs.envs.blocksworld.problem import (
    CLEAR,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    TABLE,
    Fact,
    State,
    held_block,
    legal_operators,
    state_facts,
    towers,
)
from tstar_envs.envs.blocksworld.text import render

STATES = st.integers(1, 7).flatmap(states)
STYLES = st.sampled_from([("plain", True), ("plain", False), ("mystery", True), ("mystery", False)])
LABELS = ("red", "blue", "b12", "table-top", "x", "green", "cyan")


def language(state: State, style: tuple[str, bool]) -> Language:
    vocabulary, natural = style
    return Language(
        LABELS[: len(state)],
        MYSTERY if vocabulary == "mystery" else PLAIN,
        "natural" if natural else "compact",
    )


@given(STATES, STYLES)
def test_what_is_written(state: State, style: tuple[str, bool]) -> None:
    """Every fact that holds, no other, and each tower from its top down; or the towers of ``compact`` from their bottoms up."""
    words = language(state, style)
    labels, held = words.labels, held_block(state)
    text = render(words, state, towers(state))
    if style == ("plain", False):
        hand, piles = text.removeprefix("hand: ").split(" | towers: ")
        assert hand == ("empty" if held is None else labels[held])
        read = [tower.split(" ") for tower in piles.split(" / ")] if piles else []
        assert read == [[labels[block] for block in tower] for tower in towers(state)]
    else:
        before, after = ("State: ", ".") if style[1] else ("state: ", "")
        clauses = text.removeprefix(before).removesuffix(after).split(", ")
        assert sorted(clauses) == sorted(words.fact(fact) for fact in state_facts(state))
        place = {clause: number for number, clause in enumerate(clauses)}
        assert place[words.fact(Fact(HANDEMPTY) if held is None else Fact(HOLDING, held))] == 0
        order = [block for tower in towers(state) for block in reversed(tower)]
        below = [Fact(ONTABLE, b) if state[b] == TABLE else Fact(ON, b, state[b]) for b in order]
        assert [place[words.fact(fact)] for fact in below] == sorted(
            place[words.fact(fact)] for fact in below
        )
        for tower in towers(state):
            top = below[order.index(tower[-1])]
            assert place[words.fact(Fact(CLEAR, tower[-1]))] + 1 == place[words.fact(top)]


@given(STATES, STYLES)
def test_actions(state: State, style: tuple[str, bool]) -> None:
    words = language(state, style)
    verbs = words.vocabulary.verbs
    for operator in legal_operators(state, towers(state)):
        names = [words.labels[block] for block in operator.arguments]
        assert words.action(operator) == " ".join((verbs[operator.verb], *names))
        assert read_command(words.action(operator), words.labels, words.vocabulary).operator == operator
