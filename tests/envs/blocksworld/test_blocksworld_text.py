"""States in words, step by step: what is written after an operator is what is written of the state that it leads to."""

from blocksworld_strategies import states
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs.envs.blocksworld.facts import CLEAR, HANDEMPTY, HOLDING, ON, ONTABLE
from tstar_envs.envs.blocksworld.language import Language
from tstar_envs.envs.blocksworld.operators import legal_operators, transition
from tstar_envs.envs.blocksworld.state import TABLE, State, held_block, towers
from tstar_envs.envs.blocksworld.text import Renderer
from tstar_envs.envs.blocksworld.vocabularies import MYSTERY, PLAIN

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


@given(STATES, STYLES, st.data())
def test_written_step_by_step(state: State, style: tuple[str, bool], data: st.DataObject) -> None:
    renderer = Renderer(language(state, style))
    piles = renderer.towers(state)
    for _ in range(8):
        operator = data.draw(st.sampled_from(legal_operators(state, towers(state))))
        state, piles = transition(state, operator), renderer.towers_after(piles, operator)
        assert piles == renderer.towers(state)


@given(STATES, STYLES)
def test_what_is_written(state: State, style: tuple[str, bool]) -> None:
    """The text put together anew from the facts that hold, in the order of the towers."""
    words = language(state, style)
    labels, clauses, held = words.labels, words.clauses, held_block(state)
    renderer = Renderer(words)
    text, actions = renderer.render(state, renderer.towers(state))
    if style == ("plain", False):
        hand = "empty" if held is None else labels[held]
        expected = f"hand: {hand} | towers: {' / '.join(' '.join(labels[block] for block in tower) for tower in towers(state))}"
    else:
        facts = [clauses[HANDEMPTY,] if held is None else clauses[HOLDING, labels[held]]]
        for tower in towers(state):
            facts.append(clauses[CLEAR, labels[tower[-1]]])
            for block in reversed(tower):
                on_table = state[block] == TABLE
                key = (ONTABLE, labels[block]) if on_table else (ON, labels[block], labels[state[block]])
                facts.append(clauses[key])
        expected = ("State: {}." if style[1] else "state: {}").format(", ".join(facts))
    assert text == expected
    operators = legal_operators(state, towers(state))
    assert list(actions) == [words.action(operator) for operator in operators]
    assert [words.operator(action) for action in actions] == operators
    verbs = words.vocabulary.verbs
    names = [(operator.verb, *(labels[block] for block in operator.arguments)) for operator in operators]
    assert list(actions) == [" ".join((verbs[verb], *rest)) for verb, *rest in names]
