"""The expert of Sokoban: an optimal solution from any state, and what it thinks along the way."""

from __future__ import annotations

from tstar_envs.envs.sokoban import rules, text
from tstar_envs.envs.sokoban.levels import Level, State, cells
from tstar_envs.envs.sokoban.rules import DIRECTIONS, LETTERS
from tstar_envs.envs.sokoban.solver import SOLVER_STATES, push_distances, solve_state
from tstar_envs.stable_random import StableRandom

MOST_KNOWN = 4096  # states of a level whose solutions are remembered


class Expert:
    """Plays one level. A solution, once found, is remembered for all states on it.

    Args:
        level: to be played.
        solver_states: bound of a search; see ``solver.solve``.
    """

    def __init__(self, level: Level, solver_states: int = SOLVER_STATES) -> None:
        self._level = level
        self._solver_states = solver_states
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
            found = solve_state(self._level.room, state, self._solver_states)
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
        """The expert's thought and action; None if the state is lost or solved."""
        moves = self.plan(state)
        if not moves:
            return None
        room = self._level.room
        stand, pushed, direction = state, -1, -1
        rest = iter(moves)
        while pushed < 0:
            before = stand
            direction = LETTERS.index(next(rest))
            stand, pushed = rules.move(room, before, direction)
        target, after = pushed + room.offsets[direction], stand
        for letter in rest:
            number = LETTERS.index(letter)
            after, moved = rules.move(room, after, number)
            if moved == target:
                target += room.offsets[number]
        action = DIRECTIONS[LETTERS.index(moves[0])]
        distances, _ = push_distances(room)  # it ends on the target, so it can be pushed there from both cells
        now, then = (dict(distances[cell])[1 << target] for cell in (pushed, pushed + room.offsets[direction]))
        thought = text.expert_thought(
            box=text.place(room, pushed), way=DIRECTIONS[direction].lower(), stand=text.place(room, before[1]),
            player=text.place(room, state[1]), target=text.place(room, target), step=action.lower(),
            pushes=before is state, away=then > now, wording=wording,
        )  # fmt: skip
        return thought, action

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
            box=text.place(room, ahead if pushes else draw.choice(list(cells(boxes)))), way=DIRECTIONS[direction].lower(),
            player=text.place(room, player), target=text.place(room, draw.choice(list(cells(room.targets)))),
            pushes=pushes, wording=draw.below(2),
        )  # fmt: skip
        return thought, DIRECTIONS[direction]
