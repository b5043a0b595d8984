"""Sokoban: push every box onto a target.

``solve`` is an optimal solver for XSB text, ``generate_level`` generates levels.
"""

from typing import TYPE_CHECKING, Any

from tstar_envs.envs.sokoban.level import Room, State, Task, parse_level, print_level

if TYPE_CHECKING:
    from tstar_envs.envs.sokoban.generate import generate_level
    from tstar_envs.envs.sokoban.solver import solve

__all__ = ["Room", "State", "Task", "generate_level", "parse_level", "print_level", "solve"]


def __getattr__(name: str) -> Any:
    """Import solver and generator lazily: episodes need neither."""
    if name == "generate_level":
        from tstar_envs.envs.sokoban.generate import generate_level

        return generate_level
    if name == "solve":
        from tstar_envs.envs.sokoban.solver import solve

        return solve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
