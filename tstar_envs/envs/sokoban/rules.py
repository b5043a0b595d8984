"""Rules of Sokoban: a pure function from (task, state, action) to an outcome.

A task comes with the options that it is played under (``TaskView``). Moves themselves are in ``level``.
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

MOST_TASKS = 512  # with their experts, which remember solutions


class ViewOptions(NamedTuple):
    """Options of an environment that change what it shows; see ``SokobanEnv``."""

    observation: str
    multi_action: bool
    shaped: bool
    region_key: bool
    show_dead: bool
    end_when_lost: bool
    solver_states: int
    solver_seconds: float


class TaskView:
    """A task under the options of an environment; made by ``view_of``.

    Attributes:
        task: the task.
        room: of the task.
        options: the options.
        solved_at_start: whether every box is on a target before the first move.
    """

    def __init__(self, task: Task, options: ViewOptions) -> None:
        self.task, self.room, self.options = task, task.room, options
        self.solved_at_start = is_solved(task.room, task.start)
        self._hasher = state_hasher(task.id)

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskView:
        return self  # an episode never changes it

    def __reduce__(self) -> tuple[Callable[..., TaskView], tuple[Task, ViewOptions]]:
        return view_of, (self.task, self.options)

    @cached_property
    def expert(self) -> Expert:
        """Expert of the task, made when it is first asked for."""
        from tstar_envs.envs.sokoban.expert import Expert  # with the solver, which most episodes never need

        options = self.options
        return Expert(self.task, options.solver_states, options.solver_seconds, options.multi_action)

    def observation(self, state: State) -> str:
        """Text of a state."""
        return text.render(self.room, state, self.options.observation)

    def admissible(self, state: State) -> tuple[str, ...]:
        """Moves that change something."""
        return tuple([DIRECTIONS[number] for number in admissible_moves(self.room, state)])

    def key(self, state: State) -> str:
        """Key of a state, equal exactly for states that count as equal."""
        return hash_state(self._hasher, self.fingerprint(state).encode("ascii"))

    def fingerprint(self, state: State) -> str:
        """Boxes, and the player's cell or region, as text."""
        boxes, player = state
        if self.options.region_key:
            player = next(cells(region(self.room, state)))
        return f"{boxes:x}/{player}"

    def extra(self, state: State) -> Mapping[str, Any] | None:
        """Further entries of ``info``.

        Raises:
            SolverLimit: with ``show_dead``, and the solver gave up.
        """
        return {"dead": self.expert.plan(state) is None} if self.options.show_dead else None


@lru_cache(maxsize=MOST_TASKS)
def view_of(task: Task, options: ViewOptions) -> TaskView:
    """View of a task, shared by all environments of the process, so that no solution is searched for twice."""
    return TaskView(task, options)


def apply(view: TaskView, state: State, action: str) -> Outcome[State]:
    """What an action does.

    Raises:
        SolverLimit: whether the state after it is lost has to be known, and the solver gave up.
    """
    command = read_command(action, view.options.multi_action)
    if command.problem:
        unchanged = _outcome(view, state, "")
        observation = f"Invalid action: {command.problem}.\n{unchanged.observation}"
        return replace(unchanged, observation=observation, invalid_reason=command.reason)
    if view.solved_at_start:  # any move ends the episode, and none spoils it
        moves = " || ".join(DIRECTIONS[direction] for direction in command.moves)
        return replace(_outcome(view, state, moves), terminated=True, success=True, score=1.0)
    return _play(view, state, command.moves)


def _play(view: TaskView, state: State, moves: tuple[int, ...]) -> Outcome[State]:
    """The moves of one turn; the game stops at its end."""
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
    """One move."""
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
    """An outcome that shows a state, without effect."""
    return Outcome(
        state,
        view.observation(state),
        action,
        extra=view.extra(state),
        admissible=view.admissible(state),
        state_key=view.key(state),
    )
