"""Sokoban: push every box onto a target. ``solve`` is an optimal solver for XSB text, ``generate_level`` makes fresh levels."""

from typing import TYPE_CHECKING, Any

from tstar_envs.envs.sokoban.level_files.xsb import parse_level, print_level
from tstar_envs.envs.sokoban.solver.optimal import solve
from tstar_envs.envs.sokoban.state import State
from tstar_envs.envs.sokoban.task import Room, Task

if TYPE_CHECKING:
    from tstar_envs.envs.sokoban.practice import generate_level

__all__ = ["Room", "State", "Task", "generate_level", "parse_level", "print_level", "solve"]


def __getattr__(name: str) -> Any:
    """Loads the generator when it is first asked for: who plays needs none."""
    if name == "generate_level":
        from tstar_envs.envs.sokoban.practice import generate_level

        return generate_level
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
