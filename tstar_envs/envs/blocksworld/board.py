"""A task as it is played: the problem in the words of one environment, with what has been worked out about its states.

Many rows play the same task side by side, and an episode comes back to states it has seen. So the text of a state, its
admissible actions and what each of them does are worked out once per task and words and shared by all environments of a
process; the number of boards and of states kept on each is bounded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tstar_envs.core import Outcome
from tstar_envs.envs.blocksworld.planner import Step, optimal_plan
from tstar_envs.envs.blocksworld.rules import HAND, TABLE, State, Towers, apply, legal_operator, towers, towers_after
from tstar_envs.envs.blocksworld.tasks import BlocksTask
from tstar_envs.envs.blocksworld.text import Language, name_blocks
from tstar_envs.envs.blocksworld.vocabulary import MYSTERY, PLAIN

MOST_BOARDS = 64
MOST_STATES = 512  # kept per board; at most about 2 kB each
GOAL_REACHED = "The goal is reached."


class Situation:
    """What is known about one state: its towers, text, admissible actions and key, and what each action does, once asked for.

    Few objects for the garbage collector to walk over: there are many of these.
    """

    __slots__ = ("admissible", "fingerprint", "observation", "outcomes", "piles", "state")

    def __init__(self, state: State, piles: Towers, language: Language) -> None:
        self.state = state
        self.piles = piles
        self.observation, self.admissible = language.situation(state.index(HAND) if HAND in state else TABLE, piles)
        self.fingerprint = str(state)
        self.outcomes: list[Outcome[State] | None] = [None] * len(self.admissible)


class Board:
    """See the module; made by ``board_of``.

    Attributes:
        task: the task.
        language: its words.
        goal_text: the goal as the agent reads it.
    """

    def __init__(self, task: BlocksTask, names: str, observation: str) -> None:
        self.task = task
        self.language = Language(name_blocks(task.problem, names), MYSTERY if names == "mystery" else PLAIN, observation)
        self.goal_text = self.language.goal(task.problem.goal)
        self._words = (names, observation)
        self._situations: dict[State, Situation] = {}
        self._plans: dict[State, tuple[int, Step | None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Board:
        return self  # what it keeps is only worked out, never changed by an episode

    def __reduce__(self) -> tuple[Any, ...]:
        return board_of, (self.task, *self._words)

    def situation(self, state: State) -> Situation:
        """What is known about a state."""
        return self._situations.get(state) or self._settle(state, towers(state))

    def _settle(self, state: State, piles: Towers) -> Situation:
        if len(self._situations) >= MOST_STATES:
            self._situations.clear()
        found = self._situations[state] = Situation(state, piles, self.language)
        return found

    def outcome(self, state: State, action: str) -> Outcome[State]:
        """What an action does in a state; see ``TextEnv._apply``."""
        situation = self.situation(state)
        if action in situation.admissible:
            return self._legal(situation, action)
        operator = self.language.read_action(action)
        if isinstance(operator, str):
            return Outcome(state, f"Invalid action: {operator}.\n{situation.observation}", "", invalid_reason=operator)
        canonical = self.language.action(operator)
        if canonical in situation.admissible:
            return self._legal(situation, canonical)
        reason = self.language.refusal(state, operator)
        return Outcome(state, f"Invalid action: {reason}.\n{situation.observation}", canonical, invalid_reason=reason)

    def _legal(self, situation: Situation, action: str) -> Outcome[State]:
        position = situation.admissible.index(action)
        outcome = situation.outcomes[position]
        if outcome is None:
            outcome = situation.outcomes[position] = self._work_out(situation, position, action)
        return outcome

    def _work_out(self, situation: Situation, position: int, action: str) -> Outcome[State]:
        operator = legal_operator(situation.state, situation.piles, position)
        state = apply(situation.state, operator)
        after = self._situations.get(state) or self._settle(state, towers_after(situation.piles, operator))
        if not self.task.problem.goal.holds(state):
            return Outcome(state, after.observation, action, "", action)
        text = f"{after.observation}\n{GOAL_REACHED}"
        return Outcome(state, text, action, effect_key=action, terminated=True, success=True, score=1.0)

    def optimal_length(self) -> int:
        """Operators of a shortest plan from the start."""
        stored = self.task.optimal_length
        return self.distance(self.task.problem.start) if stored is None else stored

    def next_step(self, state: State) -> Step | None:
        """The first step of the optimal plan, None where the goal holds."""
        return self._plan(state)[1]

    def distance(self, state: State) -> int:
        """Operators left to the goal on an optimal plan."""
        return self._plan(state)[0]

    def _plan(self, state: State) -> tuple[int, Step | None]:
        found = self._plans.get(state)
        if found is None:
            plan = optimal_plan(state, self.task.problem.goal)
            if len(self._plans) + len(plan) >= 2 * MOST_STATES:
                self._plans.clear()
            # The plan of a later state is the rest of this one (see planner), so an episode is planned once.
            passed = state
            for position, step in enumerate(plan):
                self._plans[passed] = (len(plan) - position, step)
                passed = apply(passed, step.operator)
            self._plans[passed] = (0, None)
            found = self._plans[state]
        return found


@lru_cache(maxsize=MOST_BOARDS)
def board_of(task: BlocksTask, names: str, observation: str) -> Board:
    """The board of a task in the given words, shared by all environments of the process."""
    return Board(task, names, observation)
