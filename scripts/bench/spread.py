"""How measurements of a bench are shown: their median, and the least and the most of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def spread(values: Sequence[float], digits: int = 2, middle: float | None = None) -> str:
    """``2.41 (2.35 to 2.52)``: the median and the range of some measurements.

    Args:
        values: one of each round, at least one.
        digits: after the point.
        middle: shown instead of the median.
    """
    shown = median(values) if middle is None else middle
    return f"{shown:,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
