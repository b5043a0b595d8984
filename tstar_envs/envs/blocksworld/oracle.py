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
from tstar_envs.stable_random import StableRandom

WORDINGS = 4
# {w}: what the goal demands, {x}: the block, {y}: the block it must be on, {z}: the block below it, {a}: the operator as a clause
_TO_BLOCK = ("{w} and both are free, so I {a}.", "{w}, and that can be done now: I {a}.", "Next, {w}. I {a}.", "{x} can go to {y}: I {a}.")
_TO_TABLE = ("{w}, so I {a}.", "{w}, and nothing is in the way: I {a}.", "Next, {w}. I {a}.", "{x} can go to its place: I {a}.")
_CLEAR_AWAY = (
    "{w}, but {x} is in the way, so I {a}.", "{x} is in the way, because {w}: I {a}.", "First {x} has to go, because {w}. I {a}.",
    "{w}; {x} comes off first: I {a}.",
)  # fmt: skip
# The block is above the one that it must be on, with others between them.
_CLEAR_BETWEEN = (
    "{w}, but {z} is between them, so I {a}.", "{z} is between {x} and {y}, and {w}: I {a}.", "First {z} has to go, because {w}. I {a}.",
    "{w}; {z} has to come out from between them: I {a}.",
)  # fmt: skip
_PLACE = ("{w} and {y} is ready, so I {a}.", "I have {x} and {w}: I {a}.", "{y} is ready. I {a}.", "It is time: {w}. I {a}.")
_PLACE_ON_TABLE = ("{w}, so I {a}.", "I have {x} and {w}: I {a}.", "That is the place of {x}. I {a}.", "It is time: {w}. I {a}.")
_WAIT = (
    "{w}, but {y} is not ready, so I {a}.", "{y} is not ready for {x} yet: I {a}.", "{x} has to wait, since {y} is not ready. I {a}.",
    "Not yet: {w}, but only later. I {a}.",
)  # fmt: skip
_ASIDE = (
    "{x} may be anywhere, so I {a}.",
    "The goal needs no place for {x}: I {a}.",
    "{x} is only in the way. I {a}.",
    "{x} goes aside: I {a}.",
)
# The block must be in the hand at the end, but not yet.
_HOLD_LATER = (
    "{w} in the end, but others have to be moved first, so I {a}.", "{x} has to wait, since others have to be moved first. I {a}.",
    "Not yet: {w}, but only in the end. I {a}.", "Others come first, and {x} again later: I {a}.",
)  # fmt: skip
_MISTAKES = ("I {a} next.", "It looks right to {a} now.", "{x} comes next: I {a}.", "I want {x} elsewhere, so I {a}.")


def next_step(board: Board, state: State, wording: int = 0) -> tuple[str, str] | None:
    """The expert's thought and action; None if the goal holds. ``wording`` counts modulo 4."""
    step = board.next_step(state)
    if step is None:
        return None
    clauses = [
        board.language.in_place(look) if isinstance(look, list) else board.language.fact(look)
        for look in survey(board.task.problem.goal, state, step.operator.block)
    ]
    decision = _thought(board, state, step, wording % WORDINGS)
    thought = f"{'; '.join(dict.fromkeys(clauses))}. {decision}" if clauses else decision  # a fact once only
    return _sentence(board, thought), board.language.action(step.operator)


def _thought(board: Board, state: State, step: Step, wording: int) -> str:
    goal = board.task.problem.goal
    block = step.operator.block
    wanted = goal.below[block]
    place = Fact(ON, block, wanted) if wanted >= 0 else Fact(ONTABLE, block)
    if step.operator.verb in (PICK_UP, UNSTACK):
        if step.final and wanted != ANYWHERE:
            return _say(board, _TO_BLOCK if wanted >= 0 else _TO_TABLE, wording, place, step.operator)
        if block == goal.held and board.distance(state) == 1:
            return _say(board, _TO_TABLE, wording, Fact(HOLDING, block), step.operator)
        freed = _freed(board, state, block)
        return _say(board, _CLEAR_BETWEEN if freed.block == block else _CLEAR_AWAY, wording, freed, step.operator)
    if block == goal.held:
        return _say(board, _HOLD_LATER, wording, Fact(HOLDING, block), step.operator)
    if wanted == ANYWHERE:
        return _say(board, _ASIDE, wording, place, step.operator)
    if step.operator.verb == STACK:
        return _say(board, _PLACE, wording, place, step.operator)
    return _say(board, _PLACE_ON_TABLE if wanted == TABLE else _WAIT, wording, place, step.operator)


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
    open_facts = [fact for fact in facts if (fact.block in below or fact.under in below) and not fact_holds(state, fact)]
    return min(open_facts, key=lambda fact: fact.block == block)


def _say(board: Board, wordings: tuple[str, ...], wording: int, fact: Fact, operator: Operator) -> str:
    language = board.language
    block, beneath = operator.block, operator.under if operator.under >= 0 else operator.block
    under = fact.under if fact.under >= 0 else fact.block
    text = wordings[wording].format(
        w=language.wish(fact), x=language.block(block), y=language.block(under), z=language.block(beneath),
        a=language.act(operator),
    )  # fmt: skip
    return _sentence(board, text)


def _sentence(board: Board, text: str) -> str:
    return text[0].upper() + text[1:] if board.language.natural else text


def mistake(board: Board, state: State, draw: StableRandom) -> tuple[str, str]:
    """A legal operator that does not lead nearer to the goal; where every legal one does, one that is not possible."""
    now = board.distance(state)
    wrong = [operator for operator in legal_operators(state, towers(state)) if board.distance(apply(state, operator)) >= now]
    if not wrong:
        held = held_block(state)
        buried = [under for under in state if under >= 0]
        # With a block in hand: to take another one. Else: to take one that is covered, or to put down what is not held.
        others = [b for b in (buried if held is None else range(len(state))) if b != held]
        wrong = [Operator(PICK_UP, b) for b in others] or [Operator(PUT_DOWN, 0) if held is None else Operator(PICK_UP, held)]
    operator = draw.choice(wrong)
    return _say(board, (draw.choice(_MISTAKES),), 0, Fact(CLEAR, operator.block), operator), board.language.action(operator)
