"""What environments with given options show of a level, remembered for all environments of the process.

Rules and texts are pure, so what a move does in a state, how that state looks and what its key is are worked out once and
shared by every environment that plays the level. Both caches are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tstar_envs.core import Outcome, hash_state
from tstar_envs.envs.sokoban import rules
from tstar_envs.envs.sokoban.levels import State, cells
from tstar_envs.envs.sokoban.oracle import Expert
from tstar_envs.envs.sokoban.rules import DIRECTIONS
from tstar_envs.envs.sokoban.tasks import LevelSet
from tstar_envs.envs.sokoban.text import Painter

MOST_LEVELS = 1024
MOST_STATES = 128  # of one level; an episode rarely sees more


class Look(NamedTuple):
    """The options of an environment that change what it shows; see ``SokobanEnv``."""

    observation: str
    multi_action: bool
    shaped: bool
    region_key: bool
    show_dead: bool


class Sight(NamedTuple):
    """One state as it is shown, and what actions were found to do in it."""

    text: str
    admissible: tuple[str, ...]
    key: str
    extra: Mapping[str, Any]
    outcomes: dict[str, Outcome[State]]


class LevelView:
    """One level under one ``Look``."""

    def __init__(self, levels: LevelSet, task_id: str, look: Look) -> None:
        self.level = levels.level(task_id)
        self.look = look
        self.expert = Expert(self.level)
        self._levels = levels
        self._painter = Painter(self.level.room, look.observation)
        self._sights: dict[State, Sight] = {}

    def __reduce__(self) -> tuple[Callable[..., LevelView], tuple[LevelSet, str, Look]]:
        return view_of, (self._levels, self.level.id, self.look)

    def sight(self, state: State) -> Sight:
        """A state as it is shown."""
        return self._sights.get(state) or self._see(state)

    def outcome(self, state: State, action: str) -> Outcome[State]:
        """What an action does."""
        sight = self._sights.get(state) or self._see(state)
        return sight.outcomes.get(action) or self._play(state, sight, action)

    def fingerprint(self, state: State) -> str:
        """Text that is equal exactly for states that count as equal: boxes, and the player's cell or region."""
        player = state.player
        if self.look.region_key:
            player = next(cells(rules.region(self.level.room, state)))
        return f"{state.boxes:x}/{player}"

    def _see(self, state: State) -> Sight:
        room = self.level.room
        sight = Sight(
            self._painter.paint(state),
            tuple(DIRECTIONS[direction] for direction in rules.open_moves(room, state)),
            hash_state(self.level.id, self.fingerprint(state)),
            {"dead": self.expert.plan(state) is None} if self.look.show_dead else {},
            {},
        )
        if len(self._sights) >= MOST_STATES:
            self._sights.clear()
        self._sights[state] = sight
        return sight

    def _play(self, state: State, sight: Sight, action: str) -> Outcome[State]:
        parsed = rules.parse_action(action, self.look.multi_action)
        if parsed.problem:
            observation = f"Invalid action: {parsed.problem}.\n{sight.text}"
            return Outcome(state, observation, "", invalid_reason=parsed.problem, extra=sight.extra)
        if len(parsed.moves) == 1:
            outcome = self._move(state, parsed.moves[0])
            if len(sight.outcomes) < len(DIRECTIONS):  # other ways to write a move are read anew each time
                sight.outcomes[action] = outcome
            return outcome
        return self._move_on(state, parsed.moves)

    def _move(self, state: State, direction: int) -> Outcome[State]:
        room = self.level.room
        after, pushed = rules.move(room, state, direction)
        action = DIRECTIONS[direction]
        sight = self.sight(after)
        if pushed < 0:
            return Outcome(after, sight.text, action, extra=sight.extra)
        row, column = room.place(pushed)
        solved = not after.boxes & ~room.targets
        shaping = 0.0
        if self.look.shaped:
            gained = (after.boxes & room.targets).bit_count() - (state.boxes & room.targets).bit_count()
            shaping = gained / after.boxes.bit_count()
        return Outcome(
            after, sight.text, action, "", f"push:{row},{column}:{action}", solved, solved, float(solved), sight.extra, shaping
        )

    def _move_on(self, state: State, moves: tuple[int, ...]) -> Outcome[State]:
        """Several moves of one turn; the game stops at success."""
        done: list[Outcome[State]] = []
        for direction in moves:
            done.append(self._move(done[-1].state if done else state, direction))
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
