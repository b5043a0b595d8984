"""Report: one self-contained page about evaluations."""

from __future__ import annotations

from tstar_envs.evaluation.report.page import EPISODES, write_report

__all__ = ["EPISODES", "write_report"]
