"""Grading an environment: the expert reaches the maximum, blind play stays below it, tasks are pinned, episodes can be replayed."""

from tstar_envs.validation.grade import CHECKS, Grade, grade, openenv_report

__all__ = ["CHECKS", "Grade", "grade", "openenv_report"]
