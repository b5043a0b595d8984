"""One line of a doctor's report."""

from __future__ import annotations

from dataclasses import dataclass

OK, MISSING, BROKEN = "ok", "missing", "broken"


@dataclass(frozen=True)
class Finding:
    """What was found out about one thing.

    Attributes:
        what: the thing.
        status: ``ok``; ``missing``, which is a choice and no fault; or ``broken``: something that is promised does not work.
        detail: versions, a path, or the reason.
        mend: what to run to change that, "" where there is nothing to do.
        seconds: how long it took to find out, where that is of interest.
    """

    what: str
    status: str
    detail: str = ""
    mend: str = ""
    seconds: float | None = None
