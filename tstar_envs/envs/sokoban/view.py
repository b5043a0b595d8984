"""What environments with given options show of a level, remembered for all environments of the process.

Texts are pure, so how a state looks and what its key is are worked out once and shared by every environment that plays the level.
All caches are bounded. What a move does is worked out each time: that takes less than keeping it, for the many that are played once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

from tstar_envs.envs.sokoban import rules
from tstar_envs.envs.sokoban.levels import State, cells
from tstar_envs.envs.sokoban.oracle import Expert
from tstar_envs.envs.sokoban.rules import DIRECTIONS
from tstar_envs.envs.sokoban.solver import SOLVER_SECONDS, SOLVER_STATES
from tstar_envs.envs.sokoban.tasks import LevelSet
from tstar_envs.envs.sokoban.text import Painter
from tstar_envs.outcome import Outcome, OutcomeFields
from tstar_envs.state_hash import hash_state, state_hasher

MOST_LEVELS = 512
MOST_STATES = 512  # of one level; about a kilobyte each
_NUMBER = {name: number for number, name in enumerate(DIRECTIONS)}
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


class Look(NamedTuple):
    """The options of an environment that change what it shows; see ``SokobanEnv``."""

    observation: str
    multi_action: bool
    shaped: bool
    region_key: bool
    show_dead: bool
    end_when_lost: bool = False
    solver_states: int = SOLVER_STATES
    solver_seconds: float = SOLVER_SECONDS


# What is remembered, and what a move does, are plain tuples of plain things (see ``tstar_envs.outcome.OutcomeFields``).
# One state as it is shown: the observation, the moves that change something, its key, and further entries of ``info``.
Sight: TypeAlias = tuple[str, tuple[str, ...], str, Mapping[str, Any] | None]
# What all states of one box layout have in common: the grid without the player, the lists, and what their keys start from.
Layout: TypeAlias = tuple[str, str, hashlib.blake2b]


class LevelView:
    """One level under one ``Look``."""

    # Slots: many views are alive at a time, and a garbage collection walks over every dictionary of them.
    __slots__ = (
        "_cross",
        "_expert",
        "_hasher",
        "_layouts",
        "_levels",
        "_names_into",
        "_painter",
        "_region_key",
        "_room",
        "_show_dead",
        "_sights",
        "_won",
        "level",
        "look",
    )

    def __init__(self, levels: LevelSet, task_id: str, look: Look) -> None:
        self.level = levels.level(task_id)
        self.look = look
        self._levels = levels
        self._room = room = self.level.room
        self._region_key, self._show_dead = look.region_key, look.show_dead
        self._won = rules.is_solved(room, self.level.start)
        self._expert: Expert | None = None
        self._painter = Painter(room, look.observation)
        self._hasher = state_hasher(task_id)
        self._sights: dict[State, Sight] = {}
        self._layouts: dict[int, Layout] = {}
        self._cross, self._names_into = _neighbours(room.width)

    def __reduce__(self) -> tuple[Callable[..., LevelView], tuple[LevelSet, str, Look]]:
        return view_of, (self._levels, self.level.id, self.look)

    @property
    def expert(self) -> Expert:
        """Plays the level; made when it is first asked for, since most episodes never do."""
        if self._expert is None:
            self._expert = Expert(
                self.level, self.look.solver_states, self.look.solver_seconds, self.look.multi_action
            )
        return self._expert

    def sight(self, state: State) -> Sight:
        """A state as it is shown."""
        return self._sights.get(state) or self._see(state)

    def outcome(self, state: State, action: str) -> OutcomeFields[State]:
        """What an action does."""
        direction = _NUMBER.get(action)
        if direction is None or self._won:
            return self._read(state, action)
        after, pushed = rules.move(self._room, state, direction)
        text, admissible, key, extra = self._sights.get(after) or self._see(after)
        if pushed < 0:
            return after, text, action, "", "", False, False, 0.0, extra, 0.0, admissible, key
        return self._push(state, action, after, pushed)

    def fingerprint(self, state: State) -> str:
        """Text that is equal exactly for states that count as equal: boxes, and the player's cell or region."""
        return (self._layout_part(state[0]) + self._player_part(state)).decode()

    def _layout_part(self, boxes: int) -> bytes:
        return b"%x/" % boxes

    def _player_part(self, state: State) -> bytes:
        return b"%d" % (next(cells(rules.region(self._room, state))) if self._region_key else state[1])

    def _see(self, state: State) -> Sight:
        boxes, player = state
        grid, lists, hasher = self._layouts.get(boxes) or self._lay_out(boxes)
        sight = (
            self._painter.player(grid, lists, player),
            self._admissible(boxes, player),
            hash_state(hasher, self._player_part(state)),
            {"dead": self.expert.plan(state) is None} if self._show_dead else None,
        )
        if len(self._sights) >= MOST_STATES:
            self._sights.clear()
            self._layouts.clear()
        self._sights[state] = sight
        return sight

    def _admissible(self, boxes: int, player: int) -> tuple[str, ...]:
        """The moves that change something. Where no box is beside the player, the floor around it tells."""
        room = self._room
        above = player - room.width  # no floor is in the first row
        if boxes >> above & self._cross:
            return _NAMES[rules.open_moves(room, (boxes, player))]
        return self._names_into[room.floor >> above & self._cross]

    def _lay_out(self, boxes: int) -> Layout:
        hasher = self._hasher.copy()
        hasher.update(self._layout_part(boxes))
        layout = self._layouts[boxes] = (*self._painter.boxes(boxes), hasher)
        return layout

    def _read(self, state: State, action: str) -> OutcomeFields[State]:
        """What an action does that is not one move in its canonical form."""
        parsed = rules.parse_action(action, self.look.multi_action)
        if parsed.problem:
            text, admissible, key, extra = self.sight(state)
            observation = f"Invalid action: {parsed.problem}.\n{text}"
            return Outcome(
                state,
                observation,
                "",
                invalid_reason=parsed.reason,
                extra=extra,
                admissible=admissible,
                state_key=key,
            )
        if self._won:  # at the start: any move ends the episode, and none spoils it
            text, admissible, key, extra = self.sight(state)
            moves = " || ".join(DIRECTIONS[direction] for direction in parsed.moves)
            return Outcome(
                state,
                text,
                moves,
                terminated=True,
                success=True,
                score=1.0,
                extra=extra,
                admissible=admissible,
                state_key=key,
            )
        if len(parsed.moves) > 1:
            return self._move_on(state, parsed.moves)
        return self.outcome(state, DIRECTIONS[parsed.moves[0]])

    def _push(self, before: State, action: str, after: State, pushed: int) -> OutcomeFields[State]:
        room = self._room
        row, column = room.place(pushed)
        solved = rules.is_solved(room, after)
        lost = self.look.end_when_lost and not solved and self.expert.plan(after) is None
        shaping = 0.0
        if self.look.shaped:
            shaping = (
                (after[0] & room.targets).bit_count() - (before[0] & room.targets).bit_count()
            ) / after[0].bit_count()
        text, admissible, key, extra = self.sight(after)
        effect = f"push:{row},{column}:{action}"
        return (
            after,
            text,
            action,
            "",
            effect,
            solved or lost,
            solved,
            float(solved),
            extra,
            shaping,
            admissible,
            key,
        )

    def _move_on(self, state: State, moves: tuple[int, ...]) -> Outcome[State]:
        """Several moves of one turn; the game stops at success."""
        done: list[Outcome[State]] = []
        for direction in moves:
            done.append(Outcome(*self.outcome(done[-1].state if done else state, DIRECTIONS[direction])))
            if done[-1].terminated:
                break
        return done[-1]._replace(
            action=" || ".join(outcome.action for outcome in done),
            effect_key=";".join(outcome.effect_key for outcome in done if outcome.effect_key),
            shaping=sum(outcome.shaping for outcome in done),
        )


@lru_cache(maxsize=MOST_LEVELS)
def view_of(levels: LevelSet, task_id: str, look: Look) -> LevelView:
    """The one view of a level under a look.

    Raises:
        UnknownTask: the set has no such level.
    """
    return LevelView(levels, task_id, look)
