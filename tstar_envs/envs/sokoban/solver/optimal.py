"""Optimal solutions in moves of levels and states: ``search`` finds their lengths, ``solution`` says which of them is given."""

from __future__ import annotations

from tstar_envs.choices import is_whole
from tstar_envs.envs.sokoban.level_files.xsb import parse_level
from tstar_envs.envs.sokoban.moves import DIRECTIONS, LETTERS
from tstar_envs.envs.sokoban.solver.search import Search
from tstar_envs.envs.sokoban.solver.solution import solution
from tstar_envs.envs.sokoban.state import State
from tstar_envs.envs.sokoban.task import Room
from tstar_envs.errors import UnknownOption
from tstar_envs.horizon import check_seconds

SOLVER_STATES = 1_000_000  # about 300 MB; ten seconds with four boxes, a minute with seven
SOLVER_SECONDS = 120.0


def solve(
    level_text: str, solver_states: int = SOLVER_STATES, solver_seconds: float = SOLVER_SECONDS
) -> list[str] | None:
    """An optimal solution, in moves, of a level in XSB text.

    Args:
        level_text: see ``tstar_envs.envs.sokoban.level_files.xsb.parse_level``.
        solver_states: how many states the search may keep before it gives up; a million take about 300 MB and ten
            seconds with four boxes, a minute with seven.
        solver_seconds: for how long it may search, by the clock.

    Returns:
        Moves (``Up``, ``Down``, ``Left``, ``Right``), none if it is solved already, or None if it cannot be solved. Time and memory
        grow steeply with boxes and floor: four boxes in 10x10, inner walls or none, take seconds (scripts/bench_solver.py).

    Raises:
        BadData: the text is not a level.
        SolverLimit: the search gave up, so that nothing is known.
        UnknownOption: ``solver_states`` is not a whole number of at least 1, or ``solver_seconds`` no number above 0.
    """
    check_solver_bounds(solver_states, solver_seconds)
    room, state = parse_level(level_text)
    moves = solve_state(room, state, solver_states, solver_seconds)
    return None if moves is None else [DIRECTIONS[LETTERS.index(letter)] for letter in moves]


def check_solver_bounds(states: object, seconds: object) -> None:
    """Raise UnknownOption unless the values are bounds of a search."""
    if not is_whole(states) or states < 1:
        raise UnknownOption(f"solver_states must be a whole number of at least 1, got {states!r:.80}")
    check_seconds(seconds)


def solve_state(
    room: Room, state: State, solver_states: int = SOLVER_STATES, solver_seconds: float = SOLVER_SECONDS
) -> str | None:
    """The solution of a state as UDLR letters, None if it is lost; see ``solve``."""
    found = Search(room, state, solver_states, solver_seconds).run()
    return None if found is None else solution(room, state, *found)
