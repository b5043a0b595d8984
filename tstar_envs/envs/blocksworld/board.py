"""A task as it is played: the problem in the words of one environment, with what has been worked out about its states.

Many rows play the same task side by side, and an episode comes back to states it has seen. So the text of a state, its
admissible actions and what each of them does are worked out once per task and words and shared by all environments of a
process. The number of boards is bounded, and so is the number of states that they keep together: a state costs up to 2 kB, a
board without states little.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from tstar_envs.core import Outcome, OutcomeFields, hash_state, state_hasher
from tstar_envs.envs.blocksworld.planner import Step, optimal_plan
from tstar_envs.envs.blocksworld.rules import HAND, TABLE, State, apply, towers
from tstar_envs.envs.blocksworld.tasks import BlocksTask
from tstar_envs.envs.blocksworld.telling import MEMORY, Standing, teller_of
from tstar_envs.envs.blocksworld.text import Language, name_blocks
from tstar_envs.envs.blocksworld.vocabulary import MYSTERY, PLAIN

MOST_BOARDS = 512
GOAL_REACHED = "The goal is reached."


# What is known about one state: the observation, the admissible actions, its key, the numbers of its towers, and the name of the block
# in the hand (None if it is empty). A plain tuple, as ``tstar_envs.core.OutcomeFields`` is and for the same reason.
Situation: TypeAlias = tuple[str, tuple[str, ...], str, Standing, str | None]


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
        self._teller = teller_of(self.language.vocabulary.name, observation)
        self._blocks = {label: block for block, label in enumerate(self.language.labels)}
        self._holds = task.problem.goal.holds
        blocks = len(task.problem.start)
        self._fingerprint = b"(%b)" % (b", ".join([b"%d"] * blocks) if blocks > 1 else b"%d,")
        self._hasher = state_hasher(task.id)
        self._situations: dict[State, Situation] = {}
        self._outcomes: dict[tuple[State, str], OutcomeFields[State]] = {}  # of legal operators in their canonical form
        self._plans: dict[State, tuple[int, Step | None]] = {}
        MEMORY.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Board:
        return self  # what it keeps is only worked out, never changed by an episode

    def __reduce__(self) -> tuple[Any, ...]:
        return board_of, (self.task, *self._words)

    def situation(self, state: State) -> Situation:
        """What is known about a state."""
        found = self._situations.get(state)
        if found is None:
            labels = self.language.labels
            piles = [[labels[block] for block in tower] for tower in towers(state)]
            with MEMORY.lock:
                MEMORY.make_room()
                found = self._settle(state, self._teller.standing(piles), labels[state.index(HAND)] if HAND in state else None)
        return found

    def forget(self) -> None:
        """Keep no states, for room."""
        self._situations.clear()
        self._outcomes.clear()
        self._plans.clear()

    def fingerprint(self, state: State) -> bytes:
        """The state as Python writes it, in half the time."""
        return self._fingerprint % state

    def _settle(self, state: State, standing: Standing, held: str | None) -> Situation:
        observation, admissible = self._teller.tell(held, standing)
        found = observation, admissible, hash_state(self._hasher, self._fingerprint % state), standing, held
        self._situations[state] = found
        return found

    def outcome(self, state: State, action: str) -> OutcomeFields[State]:
        """What an action does in a state; see ``TextEnv._apply``."""
        known = self._outcomes.get((state, action))
        if known is None:
            with MEMORY.lock:
                known = self._work_out(state, action)
        return known

    def _work_out(self, state: State, action: str) -> OutcomeFields[State]:
        observation, admissible, key, standing, held = self.situation(state)
        if action not in admissible:
            operator = self.language.read_action(action)
            if isinstance(operator, str):
                return Outcome(
                    state, f"Invalid action: {operator}.\n{observation}", "", operator, admissible=admissible, state_key=key
                )
            action = self.language.action(operator)
            if action not in admissible:
                reason = self.language.refusal(state, operator)
                return Outcome(
                    state, f"Invalid action: {reason}.\n{observation}", action, reason, admissible=admissible, state_key=key
                )
        teller, blocks, position = self._teller, self._blocks, admissible.index(action)
        below, taken = list(state), None
        if held is None:
            taken = teller.tops[standing[position]]
            below[blocks[taken]] = HAND
        else:
            below[blocks[held]] = blocks[teller.tops[standing[position - 1]]] if position else TABLE
        after = tuple(below)
        known = self._situations.get(after)
        if known is None:
            known = self._settle(after, teller.moved(standing, held, position, blocks), taken)
        observation, admissible, key, _, _ = known
        solved = self._holds(after)
        if solved:
            observation = f"{observation}\n{GOAL_REACHED}"
        MEMORY.make_room()
        outcome = (after, observation, action, "", action, solved, solved, float(solved), None, 0.0, admissible, key)
        self._outcomes[state, action] = outcome
        return outcome

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
            with MEMORY.lock:
                MEMORY.make_room(len(plan) + 1)
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
