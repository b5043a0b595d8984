"""Practice tasks, re-exported from ``generate`` under their first published path."""

from tstar_envs.envs.blocksworld.generate import practice_set

__all__ = ["practice_set"]
