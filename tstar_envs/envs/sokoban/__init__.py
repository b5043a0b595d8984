"""Sokoban: push every box onto a target. ``solve`` is an optimal solver for XSB text, ``generate_level`` makes fresh levels."""

from tstar_envs.envs.sokoban.draw import generate_level
from tstar_envs.envs.sokoban.levels import Level, Room, State, parse_level, print_level
from tstar_envs.envs.sokoban.solver import solve

__all__ = ["Level", "Room", "State", "generate_level", "parse_level", "print_level", "solve"]
