"""What environments with given options show of a task, remembered for all environments of the process.

Many rows play the same task side by side, and an episode comes back to states it has seen. So the text of a state, its
admissible actions and what each of them does are worked out once per task and options; the number of views and of states kept
in each is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tstar_envs.envs.blocksworld import rules
from tstar_envs.envs.blocksworld.commands import read_command
from tstar_envs.envs.blocksworld.language import Language, name_blocks
from tstar_envs.envs.blocksworld.solver.plan import SOLVER_SECONDS
from tstar_envs.envs.blocksworld.state import State
from tstar_envs.envs.blocksworld.task import Task
from tstar_envs.envs.blocksworld.text import Renderer, TowerTexts
from tstar_envs.envs.blocksworld.vocabularies import MYSTERY, PLAIN
from tstar_envs.errors import SolverLimit
from tstar_envs.outcome import Outcome
from tstar_envs.state_hash import hash_state, state_hasher

if TYPE_CHECKING:
    from tstar_envs.envs.blocksworld.oracle import Expert

MOST_TASKS = 32
# Kept per task, a kilobyte each with eight blocks. With 512 a walk through new states took a fifth longer: memory was further apart.
MOST_STATES = 128
GOAL_REACHED = "The goal is reached."


class ViewOptions(NamedTuple):
    """The options of an environment that change what it shows; see ``BlocksworldEnv``."""

    names: str
    observation: str
    solver_seconds: float = SOLVER_SECONDS


# One state as it is shown: the observation, the admissible actions, its key, and its towers in words. A plain tuple,
# which the garbage collector leaves alone: thousands are kept.
StateView: TypeAlias = tuple[str, tuple[str, ...], str, TowerTexts]


class TaskView:
    """One task under some options; made by ``view_of``.

    Attributes:
        task: the task.
        language: its words.
        goal_text: the goal as the agent reads it.
        shown: states that are remembered as they are shown, ``MOST_STATES`` at most.
    """

    def __init__(self, task: Task, options: ViewOptions) -> None:
        self.task = task
        self._options = options
        names, observation, _ = options
        vocabulary = MYSTERY if names == "mystery" else PLAIN
        self.language = Language(name_blocks(task.problem, names), vocabulary, observation)
        self.goal_text = self.language.goal(task.problem.goal)
        self._renderer = Renderer(self.language)
        self._holds = task.problem.goal.holds
        self._won = self._holds(task.problem.start)
        blocks = len(task.problem.start)
        self._fingerprint = b"(%b)" % (b", ".join([b"%d"] * blocks) if blocks > 1 else b"%d,")
        self._hasher = state_hasher(task.id)
        self.shown: dict[State, StateView] = {}
        # What legal operators do, by state and canonical action.
        self._outcomes: dict[tuple[State, str], Outcome[State]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskView:
        return self  # what it keeps is only worked out, never changed by an episode

    def __reduce__(self) -> tuple[Any, ...]:
        return view_of, (self.task, self._options)

    @cached_property
    def expert(self) -> Expert:
        """Plays the task; loaded and made when it is first asked for, since most episodes never do."""
        from tstar_envs.envs.blocksworld.oracle import Expert

        return Expert(self.task.problem, self.language, self._options.solver_seconds)

    @cached_property
    def optimal_length(self) -> int | None:
        """Operators of a shortest plan from the start, None where the planner gives up."""
        if self.task.optimal_length is not None:
            return self.task.optimal_length
        try:
            return self.expert.distance(self.task.problem.start)
        except SolverLimit:
            return None

    def show(self, state: State) -> StateView:
        """A state as it is shown."""
        return self.shown.get(state) or self._show(state, self._renderer.towers(state))

    def outcome(self, state: State, action: str) -> Outcome[State]:
        """What an action does; see ``TextEnv._apply``."""
        return self._outcomes.get((state, action)) or self._work_out(state, action)

    def fingerprint(self, state: State) -> str:
        """Text that is equal exactly for equal states: the state as Python writes it, in half the time."""
        return (self._fingerprint % state).decode()

    def _show(self, state: State, towers: TowerTexts) -> StateView:
        if len(self.shown) >= MOST_STATES:
            self.shown.clear()
            self._outcomes.clear()
        observation, admissible = self._renderer.render(state, towers)
        shown = observation, admissible, hash_state(self._hasher, self._fingerprint % state), towers
        self.shown[state] = shown
        return shown

    def _work_out(self, state: State, action: str) -> Outcome[State]:
        observation, admissible, key, towers = self.show(state)
        if action not in admissible:
            unchanged = Outcome(state, observation, "", admissible=admissible, state_key=key)
            command = read_command(action, self.language.labels, self.language.vocabulary)
            if command.operator is None:
                return _refused(unchanged, command.problem)
            action = self.language.action(command.operator)
            if action not in admissible:
                reason = self.language.refusal(state, command.operator)
                return _refused(replace(unchanged, action=action), reason)
        if self._won:  # at the start: any legal operator ends the episode, and none spoils it
            text = f"{observation}\n{GOAL_REACHED}"
            return Outcome(state, text, action, "", "", True, True, 1.0, admissible=admissible, state_key=key)
        operator = self.language.operator(action)
        after = rules.apply(state, operator)
        known = self.shown.get(after)
        shown = known or self._show(after, self._renderer.towers_after(towers, operator))
        observation, admissible, key, _ = shown
        solved, score = self._holds(after), 0.0
        if solved:
            observation, score = f"{observation}\n{GOAL_REACHED}", 1.0
        outcome = Outcome(
            after,
            observation,
            action,
            "",
            action,
            solved,
            solved,
            score,
            admissible=admissible,
            state_key=key,
        )
        if known:  # what leads to a state that was never seen before is not kept at once: most such ways are never taken again
            self._outcomes[state, action] = outcome
        return outcome


def _refused(unchanged: Outcome[State], reason: str) -> Outcome[State]:
    observation = f"Invalid action: {reason}.\n{unchanged.observation}"
    return replace(unchanged, observation=observation, invalid_reason=reason)


@lru_cache(maxsize=MOST_TASKS)
def view_of(task: Task, options: ViewOptions) -> TaskView:
    """The one view of a task under some options."""
    return TaskView(task, options)
