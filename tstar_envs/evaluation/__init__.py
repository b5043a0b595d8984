"""Evaluation: runner, episode log, statistics, cost, replay and report."""

from __future__ import annotations
