"""Expert policy: an optimal solution from any state, with thoughts."""

from __future__ import annotations

from tstar_envs.envs.sokoban import text
from tstar_envs.envs.sokoban.level import (
    DIRECTIONS,
    LETTERS,
    MOST_MOVES,
    SOLVER_SECONDS,
    SOLVER_STATES,
    State,
    Task,
    admissible_moves,
    cells,
    transition,
)
from tstar_envs.envs.sokoban.solver import push_distances, solve_state
from tstar_envs.utils import StableRandom

NOTHING_LEFT = "Every box is on a target already, so any move ends the game."
# {box}, {stand}, {player} and {target} are cells, {way} is the direction of the push, {step} the next move.
_WALK = (
    "The box at {box} belongs on {target}. It has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To get the box at {box} onto {target} I push it {way} next. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, on its way to {target}. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} goes to {target}, first {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH = (
    "The box at {box} belongs on {target}. It has to go {way}, and I stand at {stand}, so I push {way}.",
    "To get the box at {box} onto {target} I push it {way} next. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, on its way to {target}. I am at {stand}, so I can push now.",
    "The box at {box} goes to {target}, first {way}. I stand at {stand}, so {way} comes next.",
)
# A box that is pushed off a target to which it returns.
_WALK_OFF = (
    "The box at {box} has to leave its target for now. It has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To make way I push the box at {box} {way} next, off its target. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, and back onto its target later. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} comes back to its target later, but first {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH_OFF = (
    "The box at {box} has to leave its target for now. It has to go {way}, and I stand at {stand}, so I push {way}.",
    "To make way I push the box at {box} {way} next, off its target. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, and back onto its target later. I am at {stand}, so I can push now.",
    "The box at {box} comes back to its target later, but first {way}. I stand at {stand}, so {way} comes next.",
)
# A push away from the box's target.
_WALK_ROUND = (
    "The box at {box} belongs on {target}, but goes round: it has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To get the box at {box} onto {target} later I push it {way} first. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, though that is away from {target}. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} goes to {target} in the end, but now {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH_ROUND = (
    "The box at {box} belongs on {target}, but goes round: it has to go {way}, and I stand at {stand}, so I push {way}.",
    "To get the box at {box} onto {target} later I push it {way} first. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, though that is away from {target}. I am at {stand}, so I can push now.",
    "The box at {box} goes to {target} in the end, but now {way}. I stand at {stand}, so {way} comes next.",
)
_WRONG_PUSH = (
    "The box at {box} belongs on {target}, so I push it {way}.",
    "I push the box at {box} {way}, on its way to {target}.",
)
_WRONG_WALK = (
    "I go {way} to get behind the box at {box}.",
    "The box at {box} belongs on {target}, so from {player} I go {way}.",
)


def expert_thought(
    *,
    box: str,
    way: str,
    stand: str,
    player: str,
    target: str,
    step: str,
    pushes: bool,
    away: bool,
    paraphrase: int,
) -> str:
    """Word the expert's thought before a move.

    If the target is the box's own cell, the box leaves it and returns.
    """
    if target == box:
        templates = _PUSH_OFF if pushes else _WALK_OFF
    elif away:
        templates = _PUSH_ROUND if pushes else _WALK_ROUND
    else:
        templates = _PUSH if pushes else _WALK
    return templates[paraphrase % len(templates)].format(
        box=box, way=way, stand=stand, player=player, target=target, step=step
    )


def wrong_thought(*, box: str, way: str, player: str, target: str, pushes: bool, paraphrase: int) -> str:
    """Word a plausible thought before a wrong move."""
    templates = _WRONG_PUSH if pushes else _WRONG_WALK
    return templates[paraphrase % len(templates)].format(box=box, way=way, player=player, target=target)


MOST_KNOWN = 4096  # cached states with solutions per level


class Expert:
    """Expert of one task. A solution is cached for all states along it.

    Args:
        task: the task.
        solver_states: maximum states of a search; see ``solver.solve``.
        solver_seconds: timeout of a search.
        several: True plays several moves per turn: the walk to a box and its pushes in one direction, at most ``level.MOST_MOVES``.
    """

    def __init__(
        self,
        task: Task,
        solver_states: int = SOLVER_STATES,
        solver_seconds: float = SOLVER_SECONDS,
        several: bool = False,
    ) -> None:
        self._task = task
        self._several = several
        self._bounds = (solver_states, solver_seconds)
        self._known: dict[State, str | None] = {}

    def plan(self, state: State) -> str | None:
        """Solve a state.

        Returns UDLR letters, None if it is lost, and raises SolverLimit if the search gives up.
        """
        try:
            return self._known[state]
        except KeyError:
            pass
        if state == self._task.start and self._task.moves:
            found: str | None = self._task.moves
        else:
            found = solve_state(self._task.room, state, *self._bounds)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[state] = found
        if found:
            self._remember_on_the_way(state, found)
        return found

    def _remember_on_the_way(self, state: State, moves: str) -> None:
        for number, letter in enumerate(moves, start=1):
            state, _ = transition(self._task.room, state, LETTERS.index(letter))
            self._known[state] = moves[number:]

    def next_step(self, state: State, paraphrase: int) -> tuple[str, str] | None:
        """Choose the expert's thought and action; None if the state is lost."""
        moves = self.plan(state)
        if moves is None:
            return None
        room = self._task.room
        if not moves:  # the level is solved at the start
            return NOTHING_LEFT, DIRECTIONS[next(iter(admissible_moves(room, state)), 0)]
        walked, pushed, target = self._next_push(state, moves)
        walk = len(walked) - 1
        offset = room.offsets[LETTERS.index(moves[walk])]
        way, step = (DIRECTIONS[LETTERS.index(letter)].lower() for letter in (moves[walk], moves[0]))
        turn, pushes = moves[:1], 1
        if self._several:
            line = moves[walk:MOST_MOVES]
            pushes = len(line) - len(line.lstrip(moves[walk]))
            turn = moves[: min(walk, MOST_MOVES) + pushes]
            step = "to " + ", ".join(text.place(room, cell) for cell in walked[1 : MOST_MOVES + 1])
            if pushes:
                way += f" to {text.place(room, pushed + pushes * offset)}"
        # The box ends on this target, so it can be pushed there from both cells.
        distances, _ = push_distances(room)
        now, then = (dict(distances[cell])[target] for cell in (pushed, pushed + max(pushes, 1) * offset))
        thought = expert_thought(
            box=text.place(room, pushed),
            way=way,
            stand=text.place(room, walked[-1]),
            player=text.place(room, state[1]),
            target=text.place(room, target),
            step=step,
            pushes=walk == 0,
            away=then > now,
            paraphrase=paraphrase,
        )
        return thought, " || ".join(DIRECTIONS[LETTERS.index(letter)] for letter in turn)

    def _next_push(self, state: State, moves: str) -> tuple[list[int], int, int]:
        """Find the player's path to the next push, the pushed box, and its final target."""
        room = self._task.room
        walked, box, target = [state[1]], -1, -1
        for letter in moves:
            direction = LETTERS.index(letter)
            state, pushed = transition(room, state, direction)
            if box < 0 and pushed < 0:
                walked.append(state[1])
            elif box < 0:
                box, target = pushed, pushed + room.offsets[direction]
            elif pushed == target:
                target += room.offsets[direction]
        return walked, box, target

    def mistake(self, state: State, rng: StableRandom) -> tuple[str, str]:
        """Choose a move off the shortest solutions, preferably a safe one, with a matching thought."""
        room = self._task.room
        best = self.plan(state)
        wrong: list[int] = []
        losing: list[int] = []
        for direction in admissible_moves(room, state):
            left = self.plan(transition(room, state, direction)[0])
            if left is None:
                losing.append(direction)
            elif best is None or len(left) >= len(best):
                wrong.append(direction)
        bumps = [d for d in range(len(DIRECTIONS)) if transition(room, state, d)[0] is state]
        direction = rng.choice(wrong or losing or bumps or list(range(len(DIRECTIONS))))
        boxes, player = state
        ahead = player + room.offsets[direction]
        pushes = bool(boxes >> ahead & 1)
        thought = wrong_thought(
            box=text.place(room, ahead if pushes else rng.choice(list(cells(boxes)))),
            way=DIRECTIONS[direction].lower(),
            player=text.place(room, player),
            target=text.place(room, rng.choice(list(cells(room.targets)))),
            pushes=pushes,
            paraphrase=rng.below(2),
        )
        return thought, DIRECTIONS[direction]
