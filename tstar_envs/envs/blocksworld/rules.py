"""Rules of Blocksworld: a pure function from task, state and action to an outcome.

``TaskView`` is a task with the options of an environment. Operators are in ``problem``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tstar_envs.envs.blocksworld import text
from tstar_envs.envs.blocksworld.language import MYSTERY, PLAIN, Language, name_blocks, read_command
from tstar_envs.envs.blocksworld.problem import (
    SOLVER_SECONDS,
    State,
    Task,
    Towers,
    legal_operators,
    towers,
    transition,
)
from tstar_envs.errors import SolverLimit
from tstar_envs.outcome import Outcome
from tstar_envs.snapshot import hash_state, state_hasher

if TYPE_CHECKING:
    from tstar_envs.envs.blocksworld.expert import Expert

MOST_TASKS = 32  # cached views with their experts' plans


class ViewOptions(NamedTuple):
    """Options of an environment that change its observations; see ``BlocksworldEnv``."""

    names: str
    observation: str
    solver_seconds: float = SOLVER_SECONDS


class TaskView:
    """Task with the options of an environment, created by ``view_of``.

    Attributes:
        task: the task.
        language: its words.
        goal_text: the goal as text for the agent.
        solved_at_start: True if the goal holds before the first operator.
    """

    def __init__(self, task: Task, options: ViewOptions) -> None:
        self.task, self._options = task, options
        vocabulary = MYSTERY if options.names == "mystery" else PLAIN
        self.language = Language(name_blocks(task.problem, options.names), vocabulary, options.observation)
        self.goal_text = self.language.goal(task.problem.goal)
        self.solved_at_start = task.problem.goal.holds(task.problem.start)
        self._hasher = state_hasher(task.id)
        blocks = len(task.problem.start)
        self._form = f"({', '.join(['%d'] * blocks)})" if blocks > 1 else "(%d,)"

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskView:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return view_of, (self.task, self._options)

    @cached_property
    def expert(self) -> Expert:
        """Expert of the task, created lazily."""
        from tstar_envs.envs.blocksworld.expert import (
            Expert,  # lazy: most episodes do not need the planner
        )

        return Expert(self.task.problem, self.language, self._options.solver_seconds)

    @cached_property
    def optimal_length(self) -> int | None:
        """Count the operators of a shortest plan from the start, None if the planner gives up."""
        if self.task.optimal_length is not None:
            return self.task.optimal_length
        try:
            return self.expert.distance(self.task.problem.start)
        except SolverLimit:
            return None

    def observation(self, state: State) -> str:
        """Render the observation of a state."""
        return text.render(self.language, state, towers(state))

    def admissible(self, state: State, piles: Towers) -> tuple[str, ...]:
        """List the actions of all legal operators; ``piles`` are the towers of the state."""
        return tuple(map(self.language.action, legal_operators(state, piles)))

    def key(self, state: State) -> str:
        """Compute the key of a state, equal only for equal states."""
        return hash_state(self._hasher, self.fingerprint(state).encode("ascii"))

    def fingerprint(self, state: State) -> str:
        """Serialize a state; raises for anything else, so that a damaged snapshot is refused."""
        return self._form % state


@lru_cache(maxsize=MOST_TASKS)
def view_of(task: Task, options: ViewOptions) -> TaskView:
    """Get the cached view of a task, shared by all environments of the process."""
    return TaskView(task, options)


def apply(view: TaskView, state: State, action: str) -> Outcome[State]:
    """Apply an action."""
    language = view.language
    # The canonical form first: names of blocks may contain characters that parsing strips.
    operator, problem = language.operator(action), ""
    if operator is None:
        operator, problem = read_command(action, language.labels, language.vocabulary)
    if operator is None:
        return _refused(view, state, "", problem)
    action = language.action(operator)
    if reason := language.feedback(state, operator):
        return _refused(view, state, action, reason)
    if view.solved_at_start:  # any legal operator ends the episode with success
        return _reached(_outcome(view, state, action))
    after = transition(state, operator)
    outcome = _outcome(view, after, action)
    outcome.effect_key = action
    return _reached(outcome) if view.task.problem.goal.holds(after) else outcome


def _refused(view: TaskView, state: State, action: str, reason: str) -> Outcome[State]:
    unchanged = _outcome(view, state, action)
    observation = f"Invalid action: {reason}.\n{unchanged.observation}"
    return replace(unchanged, observation=observation, invalid_reason=reason)


def _reached(outcome: Outcome[State]) -> Outcome[State]:
    observation = f"{outcome.observation}\n{text.GOAL_REACHED}"
    return replace(outcome, observation=observation, terminated=True, success=True, score=1.0)


def _outcome(view: TaskView, state: State, action: str) -> Outcome[State]:
    """Create an outcome that shows a state, without effect."""
    piles = towers(state)
    return Outcome(
        state,
        text.render(view.language, state, piles),
        action,
        admissible=view.admissible(state, piles),
        state_key=view.key(state),
    )
