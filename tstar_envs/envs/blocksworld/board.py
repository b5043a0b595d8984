"""A task as it is played: the problem in the words of one environment, with what has been worked out about its states.

Many rows play the same task side by side, and an episode comes back to states it has seen. So the text of a state, its
admissible actions and what each of them does are worked out once per task and words and shared by all environments of a
process; the number of boards and of states kept on each is bounded.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from tstar_envs.envs.blocksworld.planner import SOLVER_SECONDS, Step, optimal_plan
from tstar_envs.envs.blocksworld.rules import HAND, TABLE, State, apply
from tstar_envs.envs.blocksworld.tasks import BlocksTask
from tstar_envs.envs.blocksworld.telling import ToldTowers
from tstar_envs.envs.blocksworld.text import Language, name_blocks
from tstar_envs.envs.blocksworld.vocabulary import MYSTERY, PLAIN
from tstar_envs.errors import SolverLimit
from tstar_envs.outcome import Outcome, OutcomeFields
from tstar_envs.state_hash import hash_state, state_hasher

MOST_BOARDS = 32
# Kept per board, a kilobyte each with eight blocks. With 512 a walk through new states took a fifth longer: memory was further apart.
MOST_STATES = 128
GOAL_REACHED = "The goal is reached."


# What is known about one state: the observation, the admissible actions, its key, its towers, and the block in the hand (``TABLE`` if
# it is empty). A plain tuple, as ``tstar_envs.outcome.OutcomeFields`` is and for the same reason.
Situation: TypeAlias = tuple[str, tuple[str, ...], str, ToldTowers, int]


class Board:
    """See the module; made by ``board_of``.

    Attributes:
        task: the task.
        language: its words.
        goal_text: the goal as the agent reads it.
    """

    def __init__(
        self, task: BlocksTask, names: str, observation: str, solver_seconds: float = SOLVER_SECONDS
    ) -> None:
        self.task = task
        self.language = Language(
            name_blocks(task.problem, names), MYSTERY if names == "mystery" else PLAIN, observation
        )
        self.goal_text = self.language.goal(task.problem.goal)
        self._teller = self.language.teller
        self._made_with = (names, observation, solver_seconds)
        self._seconds = solver_seconds
        self._holds = task.problem.goal.holds
        self._won = self._holds(task.problem.start)
        blocks = len(task.problem.start)
        self._fingerprint = b"(%b)" % (b", ".join([b"%d"] * blocks) if blocks > 1 else b"%d,")
        self._hasher = state_hasher(task.id)
        self._situations: dict[State, Situation] = {}
        self._outcomes: dict[
            tuple[State, str], OutcomeFields[State]
        ] = {}  # of legal operators in their canonical form
        self._plans: dict[State, tuple[int, Step | None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Board:
        return self  # what it keeps is only worked out, never changed by an episode

    def __reduce__(self) -> tuple[Any, ...]:
        return board_of, (self.task, *self._made_with)

    def situation(self, state: State) -> Situation:
        """What is known about a state."""
        return self._situations.get(state) or self._settle(
            state, self._teller.towers(state), state.index(HAND) if HAND in state else TABLE
        )

    def fingerprint(self, state: State) -> bytes:
        """The state as Python writes it, in half the time."""
        return self._fingerprint % state

    def _settle(self, state: State, piles: ToldTowers, held: int) -> Situation:
        if len(self._situations) >= MOST_STATES:
            self._situations.clear()
            self._outcomes.clear()
        observation, admissible = self._teller.situation(held, piles)
        found = observation, admissible, hash_state(self._hasher, self._fingerprint % state), piles, held
        self._situations[state] = found
        return found

    def outcome(self, state: State, action: str) -> OutcomeFields[State]:
        """What an action does in a state; see ``TextEnv._apply``."""
        return self._outcomes.get((state, action)) or self._work_out(state, action)

    def _work_out(self, state: State, action: str) -> OutcomeFields[State]:
        observation, admissible, key, piles, held = self.situation(state)
        if action not in admissible:
            operator = self.language.read_action(action)
            if isinstance(operator, str):
                return Outcome(
                    state,
                    f"Invalid action: {operator}.\n{observation}",
                    "",
                    operator,
                    admissible=admissible,
                    state_key=key,
                )
            action = self.language.action(operator)
            if action not in admissible:
                reason = self.language.refusal(state, operator)
                return Outcome(
                    state,
                    f"Invalid action: {reason}.\n{observation}",
                    action,
                    reason,
                    admissible=admissible,
                    state_key=key,
                )
        if self._won:  # at the start: any legal operator ends the episode, and none spoils it
            observation = f"{observation}\n{GOAL_REACHED}"
            return Outcome(
                state,
                observation,
                action,
                terminated=True,
                success=True,
                score=1.0,
                admissible=admissible,
                state_key=key,
            )
        after, piles, held = self._teller.after_legal(state, piles, held, admissible.index(action))
        known = self._situations.get(after)
        observation, admissible, key, _, _ = known or self._settle(after, piles, held)
        solved = self._holds(after)
        if solved:
            observation = f"{observation}\n{GOAL_REACHED}"
        outcome = (
            after,
            observation,
            action,
            "",
            action,
            solved,
            solved,
            1.0 if solved else 0.0,
            None,
            0.0,
            admissible,
            key,
        )
        if known:  # what leads to a state that was never seen before is not kept at once: most such ways are never taken again
            self._outcomes[state, action] = outcome
        return outcome

    @cached_property
    def optimal_length(self) -> int | None:
        """Operators of a shortest plan from the start, None where the planner gives up."""
        if self.task.optimal_length is not None:
            return self.task.optimal_length
        try:
            return self.distance(self.task.problem.start)
        except SolverLimit:
            return None

    def next_step(self, state: State) -> Step | None:
        """The first step of the optimal plan, None where the goal holds; SolverLimit if the planner gives up."""
        return self._plan(state)[1]

    def distance(self, state: State) -> int:
        """Operators left to the goal on an optimal plan; SolverLimit if the planner gives up."""
        return self._plan(state)[0]

    def _plan(self, state: State) -> tuple[int, Step | None]:
        found = self._plans.get(state)
        if found is None:
            plan = optimal_plan(state, self.task.problem.goal, self._seconds)
            if len(self._plans) + len(plan) >= 2 * MOST_STATES:
                self._plans.clear()
            # The plan of a later state is the rest of this one (see planner), so an episode is planned once.
            passed = state
            for position, step in enumerate(plan):
                self._plans[passed] = (len(plan) - position, step)
                passed = apply(passed, step.operator)
            self._plans[passed] = (0, None)
            found = (len(plan), plan[0] if plan else None)  # another thread may have made room meanwhile
        return found


@lru_cache(maxsize=MOST_BOARDS)
def board_of(task: BlocksTask, names: str, observation: str, solver_seconds: float = SOLVER_SECONDS) -> Board:
    """The board of a task in the given words, shared by all environments of the process."""
    return Board(task, names, observation, solver_seconds)
