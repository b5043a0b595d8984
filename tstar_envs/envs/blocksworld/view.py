"""What environments with given options show of a task, remembered for all environments of the process.

Many rows play the same task side by side, and an episode comes back to states it has seen. So the text of a state, its
admissible actions and its key are worked out once per task and options; the number of views and of states kept in each is bounded.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tstar_envs.envs.blocksworld.language import Language, name_blocks
from tstar_envs.envs.blocksworld.operators import OperatorFields
from tstar_envs.envs.blocksworld.solver.plan import SOLVER_SECONDS
from tstar_envs.envs.blocksworld.state import State
from tstar_envs.envs.blocksworld.task import Task
from tstar_envs.envs.blocksworld.text import Renderer, TowerTexts
from tstar_envs.envs.blocksworld.vocabularies import MYSTERY, PLAIN
from tstar_envs.errors import SolverLimit
from tstar_envs.state_hash import hash_state, state_hasher

if TYPE_CHECKING:
    from tstar_envs.envs.blocksworld.oracle import Expert

MOST_TASKS = 32
# Kept per task, a kilobyte each with eight blocks. With 512 a walk through new states took a fifth longer: memory was further apart.
MOST_STATES = 128


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
        solved_at_start: whether the goal holds before the first operator.
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
        self.solved_at_start = task.problem.goal.holds(task.problem.start)
        blocks = len(task.problem.start)
        self._fingerprint = b"(%b)" % (b", ".join([b"%d"] * blocks) if blocks > 1 else b"%d,")
        self._hasher = state_hasher(task.id)
        self.shown: dict[State, StateView] = {}

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

    def show_after(self, state: State, before: TowerTexts, operator: OperatorFields) -> StateView:
        """A state as it is shown that is not among those remembered: only the tower that the operator changed is written anew.

        Args:
            state: the one after the operator.
            before: the towers before it.
            operator: a legal one.
        """
        return self._show(state, self._renderer.towers_after(before, operator))

    def fingerprint(self, state: State) -> str:
        """Text that is equal exactly for equal states: the state as Python writes it, in half the time."""
        return (self._fingerprint % state).decode()

    def _show(self, state: State, towers: TowerTexts) -> StateView:
        if len(self.shown) >= MOST_STATES:
            self.shown.clear()
        observation, admissible = self._renderer.render(state, towers)
        shown = observation, admissible, hash_state(self._hasher, self._fingerprint % state), towers
        self.shown[state] = shown
        return shown


@lru_cache(maxsize=MOST_TASKS)
def view_of(task: Task, options: ViewOptions) -> TaskView:
    """The one view of a task under some options."""
    return TaskView(task, options)
