"""The expert of Blocksworld: what it thinks before each operator of the optimal plan, and believable mistakes.

A thought says what stands already and where the next blocks are (``survey``), then the goal fact at stake, the block, and
where it goes. It says only what is true of the state.
"""

from __future__ import annotations

from tstar_envs.envs.blocksworld.board import Board
from tstar_envs.envs.blocksworld.planner import Step
from tstar_envs.envs.blocksworld.rules import (
    ANYWHERE,
    CLEAR,
    HOLDING,
    ON,
    ONTABLE,
    PICK_UP,
    PUT_DOWN,
    STACK,
    TABLE,
    UNSTACK,
    Fact,
    Operator,
    State,
    apply,
    fact_holds,
    held_block,
    legal_operators,
    towers,
)
from tstar_envs.envs.blocksworld.survey import survey
from tstar_envs.envs.blocksworld.thoughts import THOUGHTS
from tstar_envs.stable_random import StableRandom

WORDINGS = 4


def next_step(board: Board, state: State, wording: int = 0) -> tuple[str, str] | None:
    """The expert's thought and action; None if the goal holds. ``wording`` counts modulo 4."""
    step = board.next_step(state)
    if step is None:
        return None
    goal, language = board.task.problem.goal, board.language
    clauses = []
    for look in survey(goal, state, step.operator.block):
        clauses += language.in_place(look, goal) if isinstance(look, list) else [language.fact(look)]
    decision = _thought(board, state, step, wording % WORDINGS)
    thought = f"{'; '.join(dict.fromkeys(clauses))}. {decision}" if clauses else decision  # a fact once only
    return _sentence(board, thought), board.language.action(step.operator)


def nothing_left(board: Board, state: State) -> tuple[str, str]:
    """Thought and action where the goal holds already, at the start."""
    _, admissible, *_ = board.situation(state)
    return "The goal holds already, so any operator ends the task.", admissible[0]


def _thought(board: Board, state: State, step: Step, wording: int) -> str:
    goal = board.task.problem.goal
    block = step.operator.block
    wanted = goal.below[block]
    say = THOUGHTS[board.language.vocabulary.name]
    place = Fact(ON, block, wanted) if wanted >= 0 else Fact(ONTABLE, block)
    if step.operator.verb in (PICK_UP, UNSTACK):
        if step.final and wanted != ANYWHERE:
            return _say(board, say.to_block if wanted >= 0 else say.to_table, wording, place, step.operator)
        if block == goal.held and board.distance(state) == 1:
            return _say(board, say.to_table, wording, Fact(HOLDING, block), step.operator)
        freed = _freed(board, state, block)
        return _say(
            board,
            say.clear_between if freed.block == block else say.clear_away,
            wording,
            freed,
            step.operator,
        )
    if block == goal.held:
        return _say(board, say.hold_later, wording, Fact(HOLDING, block), step.operator)
    if wanted == ANYWHERE:
        upper = next((b for b, under in enumerate(goal.below) if under == block), None)
        if upper is not None:
            return _say(board, say.base, wording, Fact(ON, upper, block), step.operator)
        return _say(board, say.aside, wording, place, step.operator)
    if step.operator.verb == STACK:
        return _say(board, say.place, wording, place, step.operator)
    return _say(board, say.place_on_table if wanted == TABLE else say.wait, wording, place, step.operator)


def _freed(board: Board, state: State, block: int) -> Fact:
    """The fact of the goal for which ``block`` is taken away: the first that does not hold and needs something below it.

    One of another block is preferred. There is one: an optimal plan takes a block away, and not to its last place, for others only.
    """
    below = set()
    under = state[block]
    while under >= 0:
        below.add(under)
        under = state[under]
    facts = board.task.problem.goal.facts
    open_facts = [
        fact for fact in facts if (fact.block in below or fact.under in below) and not fact_holds(state, fact)
    ]
    return min(open_facts, key=lambda fact: fact.block == block)


def _say(board: Board, wordings: tuple[str, ...], wording: int, fact: Fact, operator: Operator) -> str:
    language = board.language
    block, beneath = operator.block, operator.under if operator.under >= 0 else operator.block
    under = fact.under if fact.under >= 0 else fact.block
    text = wordings[wording].format(
        w=language.wish(fact),
        x=language.block(block),
        y=language.block(under),
        z=language.block(beneath),
        a=language.act(operator),
        h=language.fact(Fact(HOLDING, block)),
    )
    return _sentence(board, text)


def _sentence(board: Board, text: str) -> str:
    return text[0].upper() + text[1:] if board.language.natural else text


def mistake(board: Board, state: State, draw: StableRandom) -> tuple[str, str]:
    """A legal operator that does not lead nearer to the goal; where every legal one does, one that is not possible."""
    now = board.distance(state)
    wrong = [
        operator
        for operator in legal_operators(state, towers(state))
        if board.distance(apply(state, operator)) >= now
    ]
    if not wrong:
        held = held_block(state)
        buried = [under for under in state if under >= 0]
        # With a block in hand: to take another one. Else: to take one that is covered, or to put down what is not held.
        others = [b for b in (buried if held is None else range(len(state))) if b != held]
        wrong = [Operator(PICK_UP, b) for b in others] or [
            Operator(PUT_DOWN, 0) if held is None else Operator(PICK_UP, held)
        ]
    operator = draw.choice(wrong)
    mistakes = THOUGHTS[board.language.vocabulary.name].mistakes
    return _say(
        board, (draw.choice(mistakes),), 0, Fact(CLEAR, operator.block), operator
    ), board.language.action(operator)
