"""What environments with given options show of a task, remembered for all environments of the process.

Texts are pure, so how a state looks and what its key is are worked out once and shared by every environment that plays the task.
All caches are bounded. What a move does is worked out each time: that takes less than keeping it, for the many that are played once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

from tstar_envs.envs.sokoban.moves import DIRECTIONS, admissible_moves, is_solved, region
from tstar_envs.envs.sokoban.oracle import Expert
from tstar_envs.envs.sokoban.solver.optimal import SOLVER_SECONDS, SOLVER_STATES
from tstar_envs.envs.sokoban.state import State, cells
from tstar_envs.envs.sokoban.task import Task
from tstar_envs.envs.sokoban.text import Renderer
from tstar_envs.state_hash import hash_state, state_hasher

MOST_TASKS = 512
MOST_STATES = 512  # of one task; about a kilobyte each
_NAMES = {
    moves: tuple(DIRECTIONS[d] for d in moves)
    for count in range(5)
    for moves in combinations(range(4), count)
}


@lru_cache(maxsize=64)
def _neighbours(width: int) -> tuple[int, dict[int, tuple[str, ...]]]:
    """The four cells around a cell, as a bit set that begins with the cell above it; for each subset the moves into it."""
    bits = [1 << width + offset for offset in (-width, width, -1, 1)]
    return sum(bits), {sum(bits[direction] for direction in moves): names for moves, names in _NAMES.items()}


class ViewOptions(NamedTuple):
    """The options of an environment that change what it shows; see ``SokobanEnv``."""

    observation: str
    multi_action: bool
    shaped: bool
    region_key: bool
    show_dead: bool
    end_when_lost: bool = False
    solver_states: int = SOLVER_STATES
    solver_seconds: float = SOLVER_SECONDS


# One state as it is shown: the observation, the admissible actions, its key, and further entries of ``info``. A plain tuple of
# plain things, which the garbage collector leaves alone: thousands are kept.
StateView: TypeAlias = tuple[str, tuple[str, ...], str, Mapping[str, Any] | None]


class TaskView:
    """One task under some options; made by ``view_of``.

    Attributes:
        task: the task.
        room: of the task.
        options: the options.
        solved_at_start: whether every box is on a target before the first move.
        shown: states that are remembered as they are shown, ``MOST_STATES`` at most.
    """

    # Slots: many views are alive at a time, and a garbage collection walks over every dictionary of them.
    __slots__ = (
        "_cross",
        "_expert",
        "_hasher",
        "_names_into",
        "_region_key",
        "_renderer",
        "_show_dead",
        "options",
        "room",
        "shown",
        "solved_at_start",
        "task",
    )

    def __init__(self, task: Task, options: ViewOptions) -> None:
        self.task = task
        self.options = options
        self.room = room = task.room
        self._region_key, self._show_dead = options.region_key, options.show_dead
        self.solved_at_start = is_solved(room, task.start)
        self._expert: Expert | None = None
        self._renderer = Renderer(room, options.observation)
        self._hasher = state_hasher(task.id)
        self.shown: dict[State, StateView] = {}
        self._cross, self._names_into = _neighbours(room.width)

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskView:
        return self  # what it keeps is only worked out, never changed by an episode

    def __reduce__(self) -> tuple[Callable[..., TaskView], tuple[Task, ViewOptions]]:
        return view_of, (self.task, self.options)

    @property
    def expert(self) -> Expert:
        """Plays the task; made when it is first asked for, since most episodes never do."""
        if self._expert is None:
            options = self.options
            self._expert = Expert(
                self.task, options.solver_states, options.solver_seconds, options.multi_action
            )
        return self._expert

    def show(self, state: State) -> StateView:
        """A state as it is shown."""
        return self.shown.get(state) or self.show_new(state)

    def show_new(self, state: State) -> StateView:
        """A state as it is shown that is not among those remembered; it is from now on."""
        boxes, player = state
        shown = (
            self._renderer.render(state),
            self._admissible(boxes, player),
            hash_state(self._hasher, self._fingerprint(state)),
            {"dead": self.expert.plan(state) is None} if self._show_dead else None,
        )
        if len(self.shown) >= MOST_STATES:
            self.shown.clear()
        self.shown[state] = shown
        return shown

    def fingerprint(self, state: State) -> str:
        """Text that is equal exactly for states that count as equal: boxes, and the player's cell or region."""
        return self._fingerprint(state).decode()

    def _fingerprint(self, state: State) -> bytes:
        if self._region_key:
            state = state[0], next(cells(region(self.room, state)))
        return b"%x/%d" % state

    def _admissible(self, boxes: int, player: int) -> tuple[str, ...]:
        """The moves that change something. Where no box is beside the player, the floor around it decides."""
        room = self.room
        above = player - room.width  # no floor is in the first row
        if boxes >> above & self._cross:
            return _NAMES[admissible_moves(room, (boxes, player))]
        return self._names_into[room.floor >> above & self._cross]


@lru_cache(maxsize=MOST_TASKS)
def view_of(task: Task, options: ViewOptions) -> TaskView:
    """The one view of a task under some options."""
    return TaskView(task, options)
