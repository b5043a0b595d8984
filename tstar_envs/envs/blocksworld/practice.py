"""Practice tasks, by the path under which they were first published; they are made in ``generate``."""

from tstar_envs.envs.blocksworld.generate import practice_set

__all__ = ["practice_set"]
