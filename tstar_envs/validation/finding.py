"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PASS, FAIL, SKIP, ERROR = "pass", "fail", "skip", "error"


@dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    Attributes:
        status: ``pass``, ``fail``; ``skip``, where the environment has nothing that could be checked; ``error``, where the check
            itself could not be made, because the environment raised.
        figures: what was measured.
        evidence: sentences; of a failure what went wrong, with the task.
        mend: what the author of the environment changes, "" where there is nothing to do.
    """

    status: str
    figures: dict[str, Any] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    mend: str = ""


def verdict_of(problems: list[str], figures: dict[str, Any], mend: str) -> Finding:
    """A pass where there is no problem, else a failure that says the first of them."""
    if not problems:
        return Finding(PASS, figures)
    more = [f"and {len(problems) - 3} more"] if len(problems) > 3 else []
    return Finding(FAIL, figures, problems[:3] + more, mend)
