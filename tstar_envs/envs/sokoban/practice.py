"""Practice tasks, by the path under which they were first published; they are made in ``generate``."""

from tstar_envs.envs.sokoban.generate import generate_level, practice_set

__all__ = ["generate_level", "practice_set"]
