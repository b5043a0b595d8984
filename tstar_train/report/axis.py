"""Axes: round ticks, and numbers as they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE, MINUS = "\u2013", "\u2212"  # a dash for a figure that was not measured, and the true minus sign
HUGE = 1e100  # no axis goes further, nor closer to zero than its inverse


def text(value: float | None, form: str) -> str:
    """A value as it is read: per cent for shares, else as many digits as say something."""
    if value is None:
        return NONE
    if form == "share":
        return f"{100 * value:.1f} %".replace("-", MINUS)
    if form == "seconds":
        return f"{value:.3g} s"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2e}".replace("-", MINUS)
    return f"{value:.4g}".replace("-", MINUS)


def tick_texts(ticks: Sequence[float], form: str, log: bool) -> list[str]:
    """Labels of the ticks, with as many digits as it takes to distinguish neighbours."""
    if log:
        return [f"{v:g}".replace("-", MINUS) for v in ticks]
    values = [100 * v for v in ticks] if form == "share" else list(ticks)
    unit = {"share": " %", "seconds": " s"}.get(form, "")
    step, largest = values[1] - values[0], max(abs(v) for v in values)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    if 1e-3 <= largest < 1e6 and places <= 7:
        texts = [f"{v:.{places}f}" for v in values]
    else:  # the digits between the largest value and the step
        texts = [f"{v:.{max(1, math.floor(math.log10(largest / step) + 1e-9) + 1)}g}" for v in values]
    return [t.replace("-", MINUS) + unit for t in texts]


def ticks(low: float, high: float) -> list[float]:
    """Two to six multiples of a round number; the first is at most `low`, the last at least `high`."""
    # Below a billionth of the values, floats run out of digits.
    span = max(high - low or abs(high) or 1.0, 1e-9 * max(abs(low), abs(high)), 1 / HUGE)
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(m for m in (1, 2, 5, 10) if span / 4 <= m * step)
    start, stop = math.floor(low / step + 1e-9), math.ceil(low / step + span / step - 1e-9)
    return [round(k * step, 12) if step > 1e-9 else k * step for k in range(start, max(stop, start + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around two positive numbers."""
    start, stop = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stop = max(stop, start + 1)
    every = max(1, math.ceil((stop - start) / 5))
    return [10.0**k for k in range(start, stop + every, every)]


def whole_ticks(first: int, last: int) -> list[int]:
    """The first iteration and round ones after it."""
    step = max(1, int(ticks(0, max(1, last - first))[1]))
    return sorted(
        {first, *(n for n in range(first - first % step, last + 1, step) if n - first >= 0.6 * step)}
    )
