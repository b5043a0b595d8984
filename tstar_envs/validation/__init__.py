"""Validation of an environment by a set of checks: expert, blind play, pinned tasks, replay."""

from tstar_envs.validation.grade import CHECKS, Grade, grade, openenv_report

__all__ = ["CHECKS", "Grade", "grade", "openenv_report"]
