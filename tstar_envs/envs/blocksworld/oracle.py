"""The expert of Blocksworld: an optimal plan from any state, what it thinks along the way, and believable mistakes."""

from __future__ import annotations

from tstar_envs.envs.blocksworld.explanation import NOTHING_LEFT, explain, say
from tstar_envs.envs.blocksworld.facts import CLEAR, Fact
from tstar_envs.envs.blocksworld.language import Language
from tstar_envs.envs.blocksworld.operators import PICK_UP, PUT_DOWN, Operator, legal_operators, transition
from tstar_envs.envs.blocksworld.solver.plan import SOLVER_SECONDS, Step, optimal_plan
from tstar_envs.envs.blocksworld.state import State, held_block, towers
from tstar_envs.envs.blocksworld.task import Problem
from tstar_envs.envs.blocksworld.thoughts import THOUGHTS
from tstar_envs.stable_random import StableRandom

MOST_KNOWN = 256  # states of a problem whose plans are remembered


class Expert:
    """Plays one problem. A plan, once found, is remembered for all states on it.

    Args:
        problem: to be played.
        language: its words.
        solver_seconds: bound of a search for a plan.

    Attributes:
        known: of states on plans that were found, the operators left and the first step; ``MOST_KNOWN`` states at most.
    """

    def __init__(self, problem: Problem, language: Language, solver_seconds: float = SOLVER_SECONDS) -> None:
        self._goal = problem.goal
        self._language = language
        self._seconds = solver_seconds
        self.known: dict[State, tuple[int, Step | None]] = {}

    def first_step(self, state: State) -> Step | None:
        """The first step of the optimal plan, None where the goal holds; SolverLimit if the planner gives up."""
        return self._plan(state)[1]

    def distance(self, state: State) -> int:
        """Operators left to the goal on an optimal plan; SolverLimit if the planner gives up."""
        return self._plan(state)[0]

    def _plan(self, state: State) -> tuple[int, Step | None]:
        found = self.known.get(state)
        if found is None:
            plan = optimal_plan(state, self._goal, self._seconds)
            if len(self.known) + len(plan) >= MOST_KNOWN:
                self.known.clear()
            # The plan of a later state is the rest of this one (see the solver), so an episode is planned once.
            passed = state
            for position, step in enumerate(plan):
                self.known[passed] = (len(plan) - position, step)
                passed = transition(passed, step.operator)
            self.known[passed] = (0, None)
            found = (len(plan), plan[0] if plan else None)  # another thread may have made room meanwhile
        return found

    def next_step(self, state: State, wording: int = 0) -> tuple[str, str]:
        """The expert's thought and action; ``wording`` counts modulo 4."""
        left, step = self._plan(state)
        if step is None:  # the goal holds at the start
            return NOTHING_LEFT, self._language.action(legal_operators(state, towers(state))[0])
        thought = explain(self._goal, self._language, state, step, left == 1, wording)
        return thought, self._language.action(step.operator)

    def mistake(self, state: State, rng: StableRandom) -> tuple[str, str]:
        """A legal operator that does not lead nearer to the goal; where every legal one does, one that is not possible."""
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
    """Operators that somebody may try in vain.

    With a block in hand: to take another one. Else: to take one that is covered, or to put down what is not held.
    """
    held = held_block(state)
    others = [under for under in state if under >= 0] if held is None else range(len(state))
    found = [Operator(PICK_UP, block) for block in others if block != held]
    return found or [Operator(PUT_DOWN, 0) if held is None else Operator(PICK_UP, held)]
