"""One self-contained page about evaluations: who played what, how well, how surely, at what cost, and what that looked like."""

from tstar_envs.bench.report.page import EPISODES, write_report

__all__ = ["EPISODES", "write_report"]
