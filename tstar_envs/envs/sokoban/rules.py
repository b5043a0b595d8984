"""Rules of Sokoban: a pure function from task, state and action to an outcome.

``TaskView`` is a task with the options of an environment. Moves are in ``level``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tstar_envs.envs.sokoban import text
from tstar_envs.envs.sokoban.level import (
    DIRECTIONS,
    State,
    Task,
    admissible_moves,
    cells,
    is_solved,
    read_command,
    region,
    transition,
)
from tstar_envs.outcome import Outcome
from tstar_envs.snapshot import hash_state, state_hasher

if TYPE_CHECKING:
    from tstar_envs.envs.sokoban.expert import Expert

MOST_TASKS = 512  # cached views with their experts' solutions


class ViewOptions(NamedTuple):
    """Options of an environment that change its observations; see ``SokobanEnv``."""

    observation: str
    multi_action: bool
    shaped: bool
    region_key: bool
    show_dead: bool
    end_when_lost: bool
    solver_states: int
    solver_seconds: float


class TaskView:
    """Task with the options of an environment, created by ``view_of``.

    Attributes:
        task: the task.
        room: room of the task.
        options: the options.
        solved_at_start: True if every box is on a target before the first move.
    """

    def __init__(self, task: Task, options: ViewOptions) -> None:
        self.task, self.room, self.options = task, task.room, options
        self.solved_at_start = is_solved(task.room, task.start)
        self._hasher = state_hasher(task.id)

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskView:
        return self  # immutable

    def __reduce__(self) -> tuple[Callable[..., TaskView], tuple[Task, ViewOptions]]:
        return view_of, (self.task, self.options)

    @cached_property
    def expert(self) -> Expert:
        """Expert of the task, created lazily."""
        from tstar_envs.envs.sokoban.expert import Expert  # lazy: most episodes do not need the solver

        options = self.options
        return Expert(self.task, options.solver_states, options.solver_seconds, options.multi_action)

    def observation(self, state: State) -> str:
        """Render the observation of a state."""
        return text.render(self.room, state, self.options.observation)

    def admissible(self, state: State) -> tuple[str, ...]:
        """List the moves that change something."""
        return tuple([DIRECTIONS[number] for number in admissible_moves(self.room, state)])

    def key(self, state: State) -> str:
        """Compute the key of a state, equal for states that count as equal."""
        return hash_state(self._hasher, self.fingerprint(state).encode("ascii"))

    def fingerprint(self, state: State) -> str:
        """Serialize boxes and the player's cell or region."""
        boxes, player = state
        if self.options.region_key:
            player = next(cells(region(self.room, state)))
        return f"{boxes:x}/{player}"

    def extra(self, state: State) -> Mapping[str, Any] | None:
        """Compute additional ``info`` entries.

        Raises:
            SolverLimit: the solver gave up, with ``show_dead``.
        """
        return {"dead": self.expert.plan(state) is None} if self.options.show_dead else None


@lru_cache(maxsize=MOST_TASKS)
def view_of(task: Task, options: ViewOptions) -> TaskView:
    """Get the cached view of a task, shared by all environments of the process."""
    return TaskView(task, options)


def apply(view: TaskView, state: State, action: str) -> Outcome[State]:
    """Apply an action.

    Raises:
        SolverLimit: the solver gave up on whether the new state is lost.
    """
    command = read_command(action, view.options.multi_action)
    if command.problem:
        unchanged = _outcome(view, state, "")
        observation = f"Invalid action: {command.problem}.\n{unchanged.observation}"
        return replace(unchanged, observation=observation, invalid_reason=command.reason)
    if view.solved_at_start:  # any move ends the episode with success
        moves = " || ".join(DIRECTIONS[direction] for direction in command.moves)
        return replace(_outcome(view, state, moves), terminated=True, success=True, score=1.0)
    return _play(view, state, command.moves)


def _play(view: TaskView, state: State, moves: tuple[int, ...]) -> Outcome[State]:
    """Apply the moves of one turn until the game ends."""
    done: list[Outcome[State]] = []
    for direction in moves:
        done.append(_move(view, done[-1].state if done else state, direction))
        if done[-1].terminated:
            break
    if len(done) == 1:
        return done[0]
    return replace(
        done[-1],
        action=" || ".join(outcome.action for outcome in done),
        effect_key=";".join(outcome.effect_key for outcome in done if outcome.effect_key),
        shaping=sum(outcome.shaping for outcome in done),
    )


def _move(view: TaskView, before: State, direction: int) -> Outcome[State]:
    """Apply one move."""
    room, options = view.room, view.options
    after, pushed = transition(room, before, direction)
    outcome = _outcome(view, after, DIRECTIONS[direction])
    if pushed < 0:
        return outcome
    row, column = room.place(pushed)
    outcome.effect_key = f"push:{row},{column}:{outcome.action}"
    outcome.success = is_solved(room, after)
    outcome.score = float(outcome.success)
    outcome.terminated = outcome.success or (options.end_when_lost and view.expert.plan(after) is None)
    if options.shaped:
        on_targets = (after[0] & room.targets).bit_count() - (before[0] & room.targets).bit_count()
        outcome.shaping = on_targets / after[0].bit_count()
    return outcome


def _outcome(view: TaskView, state: State, action: str) -> Outcome[State]:
    """Create an outcome that shows a state, without effect."""
    return Outcome(
        state,
        view.observation(state),
        action,
        extra=view.extra(state),
        admissible=view.admissible(state),
        state_key=view.key(state),
    )
