"""How hard a solution is: its pushes, its box-lines, and the wrong pushes along it that would lose."""

from __future__ import annotations

from dataclasses import dataclass

from tstar_envs.envs.sokoban.generate.retrograde import DistanceTable
from tstar_envs.envs.sokoban.moves import LETTERS, admissible_moves, transition
from tstar_envs.envs.sokoban.state import State
from tstar_envs.envs.sokoban.task import Room


@dataclass(frozen=True, slots=True)
class SolutionStatistics:
    """Figures of a solution; see ``difficulties.Difficulty``."""

    pushes: int
    lines: int
    traps: int


def solution_statistics(room: Room, start: State, moves: str, table: DistanceTable) -> SolutionStatistics:
    """Pushes, box-lines and losing pushes met along a solution; ``table`` knows every state that is not lost."""
    pushes = lines = traps = 0
    last: tuple[int, int] | None = None
    state = start
    for letter in moves:
        for direction in admissible_moves(room, state):
            after, pushed = transition(room, state, direction)
            traps += pushed >= 0 and table(after) is None
        direction = LETTERS.index(letter)
        state, pushed = transition(room, state, direction)
        if pushed >= 0:
            pushes += 1
            lines += last != (pushed, direction)
            last = (pushed + room.offsets[direction], direction)
    return SolutionStatistics(pushes, lines, traps)
