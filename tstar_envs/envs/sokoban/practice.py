"""Practice tasks, re-exported from ``generate`` under their first published path."""

from tstar_envs.envs.sokoban.generate import generate_level, practice_set

__all__ = ["generate_level", "practice_set"]
