"""What the expert thinks before an operator of the optimal plan.

A thought says what stands already and where the next blocks are (``progress``), then the goal fact at stake, the block, and
where it goes. It says only what is true of the state.
"""

from __future__ import annotations

from tstar_envs.envs.blocksworld.facts import HOLDING, ON, ONTABLE, Fact, fact_holds
from tstar_envs.envs.blocksworld.goal import ANYWHERE, Goal
from tstar_envs.envs.blocksworld.language import Language
from tstar_envs.envs.blocksworld.operators import PICK_UP, STACK, UNSTACK, Operator
from tstar_envs.envs.blocksworld.progress import tower_progress
from tstar_envs.envs.blocksworld.solver.plan import Step
from tstar_envs.envs.blocksworld.state import TABLE, State
from tstar_envs.envs.blocksworld.thoughts import THOUGHTS

WORDINGS = 4
NOTHING_LEFT = "The goal holds already, so any operator ends the task."


def explain(goal: Goal, language: Language, state: State, step: Step, last: bool, wording: int) -> str:
    """The thought before a step.

    Args:
        goal: of the plan.
        language: words of the problem.
        state: before the step.
        step: of an optimal plan.
        last: whether the goal holds after it.
        wording: counts modulo ``WORDINGS``.
    """
    clauses: list[str] = []
    for found in tower_progress(goal, state, step.operator.block):
        clauses += language.in_place(found, goal) if isinstance(found, list) else [language.fact(found)]
    wordings, fact = _reason(goal, language, state, step, last)
    decision = say(language, wordings, wording % WORDINGS, fact, step.operator)
    if not clauses:
        return decision
    return _sentence(language, f"{'; '.join(dict.fromkeys(clauses))}. {decision}")  # a fact once only


def _reason(
    goal: Goal, language: Language, state: State, step: Step, last: bool
) -> tuple[tuple[str, ...], Fact]:
    """Why a step is taken: the wordings of the reason, and the fact that it is about."""
    block = step.operator.block
    wanted = goal.below[block]
    thoughts = THOUGHTS[language.vocabulary.name]
    place = Fact(ON, block, wanted) if wanted >= 0 else Fact(ONTABLE, block)
    if step.operator.verb in (PICK_UP, UNSTACK):
        if step.final and wanted != ANYWHERE:
            return (thoughts.to_block if wanted >= 0 else thoughts.to_table), place
        if block == goal.held and last:
            return thoughts.to_table, Fact(HOLDING, block)
        freed = _freed(goal, state, block)
        return (thoughts.clear_between if freed.block == block else thoughts.clear_away), freed
    if block == goal.held:
        return thoughts.hold_later, Fact(HOLDING, block)
    if wanted == ANYWHERE:
        upper = next((b for b, under in enumerate(goal.below) if under == block), None)
        return (thoughts.aside, place) if upper is None else (thoughts.base, Fact(ON, upper, block))
    if step.operator.verb == STACK:
        return thoughts.place, place
    return (thoughts.place_on_table if wanted == TABLE else thoughts.wait), place


def _freed(goal: Goal, state: State, block: int) -> Fact:
    """The fact of the goal for which ``block`` is taken away: the first that does not hold and needs something below it.

    One of another block is preferred. There is one: an optimal plan takes a block away, and not to its last place, for others only.
    """
    below = set()
    under = state[block]
    while under >= 0:
        below.add(under)
        under = state[under]
    open_facts = [
        fact
        for fact in goal.facts
        if (fact.block in below or fact.under in below) and not fact_holds(state, fact)
    ]
    return min(open_facts, key=lambda fact: fact.block == block)


def say(language: Language, wordings: tuple[str, ...], wording: int, fact: Fact, operator: Operator) -> str:
    """One of the wordings of a reason, about a fact and an operator."""
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
    return _sentence(language, text)


def _sentence(language: Language, text: str) -> str:
    return text[0].upper() + text[1:] if language.natural else text
