"""The geometry of an SVG diagram of series of numbers: scales, ticks and path strings.

Everything is in the units of the drawing's own view box; the template adds colours, and the page's script adds the
reading under the pointer from the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tstar_train.report.axis import HUGE, log_ticks, tick_texts, ticks, whole_ticks

Values = list[float | None]
WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 50, 8, 10, 24


@dataclass(frozen=True)
class Series:
    """One line or one layer of bars: a legend and a value per point, None where there is none."""

    label: str
    values: Values
    average: Values


@dataclass(frozen=True)
class Drawn:
    """What the template needs of a series."""

    label: str
    path: str
    average: str


@dataclass(frozen=True)
class Plot:
    """A finished drawing. `ticks_x` and `ticks_y` are (position, text); `points` are positions of the iterations."""

    series: list[Drawn]
    ticks_x: list[tuple[float, str]]
    ticks_y: list[tuple[float, str]]
    points: list[float]
    rule: tuple[float, str] | None
    box: tuple[int, int, int, int] = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
    size: tuple[int, int] = (WIDTH, HEIGHT)


def plot(
    iterations: Sequence[int],
    series: Sequence[Series],
    kind: Literal["line", "log", "stack"],
    rule: tuple[float, str] | None,
    form: str,
    *,
    from_zero: bool = True,
) -> Plot | None:
    """Lay a diagram out.

    Args:
        iterations: of the points, ascending.
        series: at least one; values parallel to `iterations`.
        kind: as `Curve.kind`.
        rule: a value worth a dashed line, with its name.
        form: `share`, `number` or `seconds`, for the texts at the axis.
        from_zero: whether the axis includes zero (it always does for bars).

    Returns:
        None if there is no number to show (on a logarithmic axis: no positive one).
    """
    layers = [_usable(s, kind) for s in series]
    known = [v for s in layers for v in s.values if v is not None]
    if not known:
        return None
    if kind == "stack":
        known = [math.fsum(max(0.0, s.values[k] or 0.0) for s in layers) for k in range(len(iterations))] + [
            0.0
        ]
    if rule is not None:
        known.append(rule[0])
    low, high = min(known), max(known)
    if from_zero or kind == "stack":
        marks = log_ticks(low, high) if kind == "log" else ticks(min(0.0, low), max(0.0, high))
    else:
        marks = ticks(low, high)
    scale = _Scale(marks[0], marks[-1], kind == "log")
    first, last = iterations[0], iterations[-1]
    # Half a step of room on either side, so that bars and single points stay inside.
    step = (WIDTH - LEFT - RIGHT) / (last - first + 1)
    points = [round(LEFT + (n - first + 0.5) * step, 1) for n in iterations]
    if kind == "stack":
        drawn = _bars(layers, points, step, scale)
    else:
        drawn = [
            Drawn(s.label, _line(points, s.values, scale), _line(points, s.average, scale)) for s in layers
        ]
    return Plot(
        series=drawn,
        ticks_x=[(round(LEFT + (n - first + 0.5) * step, 1), str(n)) for n in whole_ticks(first, last)],
        ticks_y=list(zip(map(scale, marks), tick_texts(marks, form, kind == "log"), strict=True)),
        points=points,
        rule=(scale(rule[0]), rule[1]) if rule else None,
    )


def moving_average(values: Values, window: int) -> Values:
    """Mean of the last `window` points (as many as there are, at the start); gaps are left out."""
    averages: Values = []
    for k in range(len(values)):
        known = [v for v in values[max(0, k + 1 - window) : k + 1] if v is not None]
        averages.append(math.fsum(known) / len(known) if known else None)
    return averages


def window_for(count: int) -> int:
    """How many iterations a moving average spans: a sixth of them, between 3 and 20; 0 where there are too few."""
    return max(3, min(20, count // 6)) if count >= 6 else 0


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log10(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return round(HEIGHT - BOTTOM - (at - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)


def _usable(series: Series, kind: str) -> Series:
    """Without what no axis can hold: numbers near the ends of the floats, and on a logarithmic one all that are not positive."""
    least = 1 / HUGE if kind == "log" else -HUGE

    def usable(values: Values) -> Values:
        return [v if v is not None and least < v < HUGE else None for v in values]

    return Series(series.label, usable(series.values), [] if kind == "log" else usable(series.average))


def _line(points: Sequence[float], values: Values, scale: _Scale) -> str:
    parts, pen_down = [], False
    for x, value in zip(points, values, strict=False):
        if value is not None:
            # A lone point is a line of no length, which round ends show as a dot.
            parts.append(f"L{x} {scale(value)}" if pen_down else f"M{x} {scale(value)}h0")
        pen_down = value is not None
    return "".join(parts)


def _bars(layers: Sequence[Series], points: Sequence[float], step: float, scale: _Scale) -> list[Drawn]:
    width = round(min(40.0, max(0.5, step * (0.8 if step > 4 else 1.0))), 2)
    floor = [0.0] * len(points)
    drawn = []
    for layer in layers:
        path: list[str] = []
        for k, (x, value) in enumerate(zip(points, layer.values, strict=True)):
            if value is not None and value > 0:
                bottom, top = scale(floor[k]), scale(floor[k] + value)
                path.append(f"M{x - width / 2:.1f} {bottom}V{top}h{width}V{bottom}z")
                floor[k] += value
        drawn.append(Drawn(layer.label, "".join(path), ""))
    return drawn
