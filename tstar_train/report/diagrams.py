"""The curves of a run: metrics and timings put into the diagrams of `curves`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tstar_train.report.axis import text
from tstar_train.report.curves import CURVES, Curve
from tstar_train.report.plot import Plot, Series, moving_average, plot, window_for
from tstar_train.report.read import Record, Run, number


@dataclass(frozen=True)
class Diagram:
    """A curve with its drawing; `number` ties the drawing to its values in the page's data."""

    number: int
    curve: Curve
    plot: Plot
    window: int


def diagrams(run: Run) -> tuple[dict[str, list[Diagram]], list[str], list[dict[str, Any]]]:
    """All diagrams that the run has numbers for.

    Returns:
        Diagrams by heading; titles of the curves without numbers; and for each diagram, in order of its number, the
        texts that are shown under the pointer.
    """
    sections: dict[str, list[Diagram]] = {}
    empty: list[str] = []
    readings: list[dict[str, Any]] = []
    for heading, curves in CURVES.items():
        for curve in curves:
            if curve.source == "validation" and not run.validation:
                continue
            if not has_part(run, curve.part):
                empty.append(curve.title)
                continue
            sources = {"metrics": run.metrics, "timings": run.timings, "validation": run.validation}
            records = _by_iteration(sources[curve.source])
            series, window = _series(curve, records)
            drawing = (
                plot(list(records), series, curve.kind, curve.rule, curve.unit, from_zero=curve.from_zero)
                if records
                else None
            )
            if drawing is None:
                empty.append(curve.title)
                continue
            sections.setdefault(heading, []).append(Diagram(len(readings), curve, drawing, window))
            lines = [(s.label, s.values) for s in series] + [
                (f"{s.label}, mean of {window}", s.average) for s in series if s.average
            ]
            readings.append(
                {
                    "iterations": list(records),
                    "points": drawing.points,
                    "lines": [
                        {"label": label, "texts": [text(v, curve.unit) for v in values]}
                        for label, values in lines
                    ],
                }
            )
    return sections, empty, readings


def has_part(run: Run, part: str) -> bool:
    """Whether a run has a part of the method by its configuration; one without a configuration may have any.

    Args:
        run: as it was read.
        part: as of ``Curve``.
    """
    config = run.config
    if not part or not isinstance(config, dict):
        return True
    tree, graft = (value if isinstance(value := config.get(name), dict) else {} for name in ("tree", "graft"))
    if not config.get("tstar", True) or not tree.get("enabled", True):
        return False
    if part == "kl":
        return bool(tree.get("nodes", "depth") == "depth")
    if part in ("grafts", "surgical"):
        return bool(graft.get("enabled", True)) and (part == "grafts" or bool(graft.get("surgical", True)))
    return True


def dropped(run: Run) -> list[tuple[str, int]]:
    """Why written thoughts were dropped, over the whole run, most frequent first."""
    total: dict[str, int] = {}
    for record in run.metrics:
        reasons = record.get("grafts_dropped")
        for reason, count in reasons.items() if isinstance(reasons, dict) else ():
            total[str(reason)] = total.get(str(reason), 0) + int(number(count) or 0)
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))


def _by_iteration(records: list[Record]) -> dict[int, Record]:
    """Ascending; of an iteration that was written twice (a resumed run) the later record counts."""
    last = {record["iteration"]: record for record in records}
    return dict(sorted(last.items()))


def _series(curve: Curve, records: dict[int, Record]) -> tuple[list[Series], int]:
    lines = curve.lines
    if curve.source == "timings":
        names = dict.fromkeys(name for record in records.values() for name in record)
        lines = tuple((name, name) for name in names if name not in ("iteration", "seconds"))
    window = window_for(len(records)) if curve.smooth else 0
    series = []
    for label, name in lines:
        values = [_value(record, name) for record in records.values()]
        if any(v is not None for v in values):
            series.append(Series(label, values, moving_average(values, window) if window else []))
    return series, window


def _value(record: Record, name: str) -> float | None:
    if name != "dropped_total":
        return number(record.get(name))
    reasons = record.get("grafts_dropped")
    return sum(number(count) or 0.0 for count in reasons.values()) if isinstance(reasons, dict) else None
