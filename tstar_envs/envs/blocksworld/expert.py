"""Expert policy: an optimal plan from any state, thoughts, and the distance to the goal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from tstar_envs.envs.blocksworld.language import Language
from tstar_envs.envs.blocksworld.problem import (
    ANYWHERE,
    CLEAR,
    HOLDING,
    ON,
    ONTABLE,
    PICK_UP,
    PUT_DOWN,
    SOLVER_SECONDS,
    STACK,
    TABLE,
    UNSTACK,
    Fact,
    Goal,
    Operator,
    Problem,
    State,
    fact_holds,
    goal_towers,
    held_block,
    legal_operators,
    towers,
    transition,
)
from tstar_envs.envs.blocksworld.solver import Step, blocks_to_move, optimal_plan
from tstar_envs.utils import StableRandom


def tower_progress(goal: Goal, state: State, block: int) -> Iterator[list[int] | Fact]:
    """List the clauses of a thought before the operator on ``block``.

    A clause is a list of blocks in place, from bottom to top, or a fact.
    With an empty hand it goes through the goal towers up to the one that ``block`` continues. With a held block it covers
    only the part of its tower that must stand first. A fact says where the next block of a tower is, or what stands on that block
    or on its place. There is none for a covered block whose place is the table.
    """
    above = {under: block for block, under in enumerate(state) if under >= 0}
    must = blocks_to_move(state, goal)
    held = held_block(state)
    for chain in goal_towers(goal):
        if held is not None and held not in chain:
            continue
        wanted = [b for b in chain if b != TABLE]
        if held is not None:
            wanted = wanted[: wanted.index(held)]
        standing = list(takewhile(lambda b: not must[b], wanted))
        if standing:
            yield standing
        if len(standing) == len(wanted):
            if held is not None and wanted and wanted[-1] in above:
                yield Fact(ON, above[wanted[-1]], wanted[-1])
            continue
        following = wanted[len(standing)]
        support = goal.below[following]
        if support == TABLE and following in above:
            continue
        yield Fact(ON, following, state[following]) if state[following] >= 0 else Fact(ONTABLE, following)
        covers = [Fact(ON, above[b], b) for b in (following, support) if b in above]
        yield from covers
        if held is None and following == block and not covers:
            return


Wordings = tuple[str, str, str, str]


@dataclass(frozen=True)
class Thoughts:
    """Wordings of thoughts, by reason of the step.

    Attributes:
        to_block: take a block to stack it next.
        to_table: take a block to its final place, the table or the hand.
        clear_away: take a block that covers a needed one.
        clear_between: take a block from between two that must touch.
        place: stack a block in its final place.
        place_on_table: put a block down in its final place.
        base: put down a block that another must be on and that may be anywhere.
        wait: put down a block whose final place is not ready.
        aside: put down a block without a place in the goal.
        hold_later: put down a block that must be held in the end.
        mistakes: reason for a wrong operator.
    """

    to_block: Wordings
    to_table: Wordings
    clear_away: Wordings
    clear_between: Wordings
    place: Wordings
    place_on_table: Wordings
    base: Wordings
    wait: Wordings
    aside: Wordings
    hold_later: Wordings
    mistakes: tuple[str, ...]


_PLAIN = Thoughts(
    to_block=(
        "{w} and both are free, so I {a}.",
        "{w}, and that can be done now: I {a}.",
        "Next, {w}. I {a}.",
        "{x} can go to {y}: I {a}.",
    ),
    to_table=(
        "{w}, so I {a}.",
        "{w}, and nothing is in the way: I {a}.",
        "Next, {w}. I {a}.",
        "{x} can go to its place: I {a}.",
    ),
    clear_away=(
        "{w}, but {x} is in the way, so I {a}.",
        "{x} is in the way, because {w}: I {a}.",
        "First {x} has to go, because {w}. I {a}.",
        "{w}; {x} comes off first: I {a}.",
    ),
    clear_between=(
        "{w}, but {z} is between them, so I {a}.",
        "{z} is between {x} and {y}, and {w}: I {a}.",
        "First {z} has to go, because {w}. I {a}.",
        "{w}; {z} has to come out from between them: I {a}.",
    ),
    place=(
        "{w} and {y} is ready, so I {a}.",
        "I have {x} and {w}: I {a}.",
        "{y} is ready. I {a}.",
        "It is time: {w}. I {a}.",
    ),
    place_on_table=(
        "{w}, so I {a}.",
        "I have {x} and {w}: I {a}.",
        "That is the place of {x}. I {a}.",
        "It is time: {w}. I {a}.",
    ),
    base=(
        "{w}, and {y} may be anywhere, so I {a}.",
        "{y} comes first, because {w}: I {a}.",
        "{y} bears what the goal wants on it. I {a}.",
        "Something of the goal begins with {y}: I {a}.",
    ),
    wait=(
        "{w}, but {y} is not ready, so I {a}.",
        "{y} is not ready for {x} yet: I {a}.",
        "{x} has to wait, since {y} is not ready. I {a}.",
        "Not yet: {w}, but only later. I {a}.",
    ),
    aside=(
        "{x} may be anywhere, so I {a}.",
        "The goal needs no place for {x}: I {a}.",
        "{x} is only in the way. I {a}.",
        "{x} goes aside: I {a}.",
    ),
    hold_later=(
        "{w} in the end, but others have to be moved first, so I {a}.",
        "{x} has to wait, since others have to be moved first. I {a}.",
        "Not yet: {w}, but only in the end. I {a}.",
        "Others come first, and {x} again later: I {a}.",
    ),
    mistakes=(
        "I {a} next.",
        "It looks right to {a} now.",
        "{x} comes next: I {a}.",
        "I want {x} elsewhere, so I {a}.",
    ),
)

_FIRST: Wordings = (
    "{w}, but first I {a}.",
    "Before that can be I {a}: {w}.",
    "First I {a}, because {w}.",
    "{w}; for that I {a} now.",
)
_NOW: Wordings = (
    "{w}, so I {a}.",
    "{w}, and now it can: I {a}.",
    "It is time: {w}. I {a}.",
    "I {a}, because {w}.",
)
_LATER: Wordings = (
    "{w}, but not yet, so I {a}.",
    "It is too early for that: {w}. I {a}.",
    "Not yet: {w}, but only later. I {a}.",
    "{x} has to wait: I {a}.",
)
_MYSTERY = Thoughts(
    to_block=_NOW,
    to_table=_NOW,
    clear_away=_FIRST,
    clear_between=_FIRST,
    place=_NOW,
    place_on_table=_NOW,
    base=_FIRST,
    wait=_LATER,
    aside=(
        "The goal needs {h} no more, so I {a}.",
        "{h} is not needed now: I {a}.",
        "I end {h}. I {a}.",
        "Enough of {h}: I {a}.",
    ),
    hold_later=_LATER,
    mistakes=_PLAIN.mistakes[:3],
)

THOUGHTS: Mapping[str, Thoughts] = {"plain": _PLAIN, "mystery": _MYSTERY}


WORDINGS = 4
NOTHING_LEFT = "The goal holds already, so any operator ends the task."


def explain(goal: Goal, language: Language, state: State, step: Step, last: bool, paraphrase: int) -> str:
    """Word the thought before a step.

    Args:
        goal: goal of the plan.
        language: words of the problem.
        state: state before the step.
        step: step of an optimal plan.
        last: True if the goal holds after it.
        paraphrase: counts modulo ``WORDINGS``.
    """
    clauses: list[str] = []
    for found in tower_progress(goal, state, step.operator.block):
        clauses += language.in_place(found, goal) if isinstance(found, list) else [language.fact(found)]
    wordings, fact = _reason(goal, language, state, step, last)
    decision = say(language, wordings, paraphrase % WORDINGS, fact, step.operator)
    if not clauses:
        return decision
    return _sentence(language, f"{'; '.join(dict.fromkeys(clauses))}. {decision}")  # without repeated facts


def _reason(
    goal: Goal, language: Language, state: State, step: Step, last: bool
) -> tuple[tuple[str, ...], Fact]:
    """Find the reason of a step: its wordings, and its fact."""
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
    """Find the goal fact for which ``block`` is taken away.

    It is the first unsatisfied one that needs a block below it.
    Facts of other blocks are preferred. There always is one, because an optimal plan moves a block aside only for another.
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


def say(
    language: Language, wordings: tuple[str, ...], paraphrase: int, fact: Fact, operator: Operator
) -> str:
    """Fill a template of a reason with a fact and an operator."""
    block, beneath = operator.block, operator.under if operator.under >= 0 else operator.block
    under = fact.under if fact.under >= 0 else fact.block
    text = wordings[paraphrase].format(
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


MOST_KNOWN = 256  # cached states with plans per problem


class Expert:
    """Expert of one problem. A plan is cached for all states along it.

    Args:
        problem: the problem.
        language: its words.
        solver_seconds: timeout of the planner.

    Attributes:
        known: cached state -> remaining operators and first step; at most ``MOST_KNOWN`` states.
    """

    def __init__(self, problem: Problem, language: Language, solver_seconds: float = SOLVER_SECONDS) -> None:
        self._goal = problem.goal
        self._language = language
        self._seconds = solver_seconds
        self.known: dict[State, tuple[int, Step | None]] = {}

    def first_step(self, state: State) -> Step | None:
        """Plan the first step, None if the goal holds; SolverLimit if the planner gives up."""
        return self._plan(state)[1]

    def distance(self, state: State) -> int:
        """Count the remaining operators of an optimal plan; SolverLimit if the planner gives up."""
        return self._plan(state)[0]

    def _plan(self, state: State) -> tuple[int, Step | None]:
        found = self.known.get(state)
        if found is None:
            plan = optimal_plan(state, self._goal, self._seconds)
            if len(self.known) + len(plan) >= MOST_KNOWN:
                self.known.clear()
            # The plan of a later state is the rest of this one (see the solver), so an episode is planned only once.
            passed = state
            for position, step in enumerate(plan):
                self.known[passed] = (len(plan) - position, step)
                passed = transition(passed, step.operator)
            self.known[passed] = (0, None)
            found = (len(plan), plan[0] if plan else None)  # another thread may have evicted it
        return found

    def next_step(self, state: State, paraphrase: int = 0) -> tuple[str, str]:
        """Choose the expert's thought and action; ``paraphrase`` counts modulo 4."""
        left, step = self._plan(state)
        if step is None:  # the goal holds at the start
            return NOTHING_LEFT, self._language.action(legal_operators(state, towers(state))[0])
        thought = explain(self._goal, self._language, state, step, left == 1, paraphrase)
        return thought, self._language.action(step.operator)

    def mistake(self, state: State, rng: StableRandom) -> tuple[str, str]:
        """Choose a legal operator without progress, or an illegal one if all legal ones make progress."""
        now = self.distance(state)
        wrong = [
            operator
            for operator in legal_operators(state, towers(state))
            if self.distance(transition(state, operator)) >= now
        ]
        operator = rng.choice(wrong or _impossible(state))
        wordings = (rng.choice(THOUGHTS[self._language.vocabulary.name].mistakes),)
        thought = say(self._language, wordings, 0, Fact(CLEAR, operator.block), operator)
        return thought, self._language.action(operator)


def _impossible(state: State) -> list[Operator]:
    """List plausible illegal operators.

    With a held block: take another. Else: take a covered block, or put down a block that is not held.
    """
    held = held_block(state)
    others = [under for under in state if under >= 0] if held is None else range(len(state))
    found = [Operator(PICK_UP, block) for block in others if block != held]
    return found or [Operator(PUT_DOWN, 0) if held is None else Operator(PICK_UP, held)]
