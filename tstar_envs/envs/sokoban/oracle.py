"""The expert of Sokoban: an optimal solution from any state, and what it thinks along the way."""

from __future__ import annotations

from tstar_envs.envs.sokoban import rules, text
from tstar_envs.envs.sokoban.bound import push_distances
from tstar_envs.envs.sokoban.levels import Level, State, cells
from tstar_envs.envs.sokoban.rules import DIRECTIONS, LETTERS
from tstar_envs.envs.sokoban.solver import SOLVER_SECONDS, SOLVER_STATES, solve_state
from tstar_envs.stable_random import StableRandom

MOST_KNOWN = 4096  # states of a level whose solutions are remembered


class Expert:
    """Plays one level. A solution, once found, is remembered for all states on it.

    Args:
        level: to be played.
        solver_states: bound of a search; see ``solver.solve``.
        solver_seconds: another.
        several: whether a turn has several moves: the walk to a box and its pushes in one direction, ``rules.MOST_ACTIONS`` at most.
    """

    def __init__(
        self,
        level: Level,
        solver_states: int = SOLVER_STATES,
        solver_seconds: float = SOLVER_SECONDS,
        several: bool = False,
    ) -> None:
        self._level = level
        self._several = several
        self._bounds = (solver_states, solver_seconds)
        self._known: dict[State, str | None] = {}

    def plan(self, state: State) -> str | None:
        """The solution of a state as UDLR letters, None if it is lost; SolverLimit if the search gave up."""
        try:
            return self._known[state]
        except KeyError:
            pass
        if state == self._level.start and self._level.moves:
            found: str | None = self._level.moves
        else:
            found = solve_state(self._level.room, state, *self._bounds)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[state] = found
        if found:
            self._remember_on_the_way(state, found)
        return found

    def _remember_on_the_way(self, state: State, moves: str) -> None:
        for number, letter in enumerate(moves, start=1):
            state, _ = rules.move(self._level.room, state, LETTERS.index(letter))
            self._known[state] = moves[number:]

    def next_step(self, state: State, wording: int) -> tuple[str, str] | None:
        """The expert's thought and action; None if the state is lost."""
        moves = self.plan(state)
        if moves is None:
            return None
        room = self._level.room
        if not moves:  # solved at the start
            return text.NOTHING_LEFT, DIRECTIONS[next(iter(rules.open_moves(room, state)), 0)]
        walked, pushed, target = self._next_push(state, moves)
        walk = len(walked) - 1
        offset = room.offsets[LETTERS.index(moves[walk])]
        way, step = (DIRECTIONS[LETTERS.index(letter)].lower() for letter in (moves[walk], moves[0]))
        turn, pushes = moves[:1], 1
        if self._several:
            line = moves[walk : rules.MOST_ACTIONS]
            pushes = len(line) - len(line.lstrip(moves[walk]))
            turn = moves[: min(walk, rules.MOST_ACTIONS) + pushes]
            step = "to " + ", ".join(text.place(room, cell) for cell in walked[1 : rules.MOST_ACTIONS + 1])
            if pushes:
                way += f" to {text.place(room, pushed + pushes * offset)}"
        distances, _ = push_distances(
            room
        )  # it ends on the target, so it can be pushed there from both cells
        now, then = (dict(distances[cell])[target] for cell in (pushed, pushed + max(pushes, 1) * offset))
        thought = text.expert_thought(
            box=text.place(room, pushed),
            way=way,
            stand=text.place(room, walked[-1]),
            player=text.place(room, state[1]),
            target=text.place(room, target),
            step=step,
            pushes=walk == 0,
            away=then > now,
            wording=wording,
        )
        return thought, " || ".join(DIRECTIONS[LETTERS.index(letter)] for letter in turn)

    def _next_push(self, state: State, moves: str) -> tuple[list[int], int, int]:
        """The player's cells up to the next push, the cell of the box that it pushes, and the target on which that box ends."""
        room = self._level.room
        walked, box, target = [state[1]], -1, -1
        for letter in moves:
            direction = LETTERS.index(letter)
            state, pushed = rules.move(room, state, direction)
            if box < 0 and pushed < 0:
                walked.append(state[1])
            elif box < 0:
                box, target = pushed, pushed + room.offsets[direction]
            elif pushed == target:
                target += room.offsets[direction]
        return walked, box, target

    def mistake(self, state: State, draw: StableRandom) -> tuple[str, str]:
        """A move that is not on a shortest way, one that does not lose if there is such, with a thought that fits it."""
        room = self._level.room
        best = self.plan(state)
        wrong: list[int] = []
        losing: list[int] = []
        for direction in rules.open_moves(room, state):
            left = self.plan(rules.move(room, state, direction)[0])
            if left is None:
                losing.append(direction)
            elif best is None or len(left) >= len(best):
                wrong.append(direction)
        bumps = [d for d in range(len(DIRECTIONS)) if rules.move(room, state, d)[0] is state]
        direction = draw.choice(wrong or losing or bumps or list(range(len(DIRECTIONS))))
        boxes, player = state
        ahead = player + room.offsets[direction]
        pushes = bool(boxes >> ahead & 1)
        thought = text.wrong_thought(
            box=text.place(room, ahead if pushes else draw.choice(list(cells(boxes)))),
            way=DIRECTIONS[direction].lower(),
            player=text.place(room, player),
            target=text.place(room, draw.choice(list(cells(room.targets)))),
            pushes=pushes,
            wording=draw.below(2),
        )
        return thought, DIRECTIONS[direction]
