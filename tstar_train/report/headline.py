"""The result of a run in numbers: accuracy on held-out tasks before and after, as a whole and per kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tstar_train.report.read import Record, Run, checked, number

FEW_TASKS = 100  # with fewer the interval itself is rough: resampling sees only the outcomes that occurred


@dataclass(frozen=True)
class Measured:
    """One evaluation, in fractions of 1; None where a figure was not measured."""

    mean: float | None
    low: float | None
    high: float | None
    greedy: float | None
    success: float | None = None


@dataclass(frozen=True)
class Kind:
    """A row of the table per kind."""

    name: str
    tasks: int | None
    before: float | None
    after: float | None
    greedy_before: float | None
    greedy_after: float | None

    @property
    def change(self) -> float | None:
        """The value after training minus the value before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Chosen:
    """Which weights validation chose: those of an iteration (0 is the start), by a figure that was the best of so many."""

    iteration: int | None
    mean: float | None
    candidates: int | None
    tasks: int | None
    split: str


@dataclass(frozen=True)
class Headline:
    """What the top of the report says. `low` and `high` bound the difference at 95 %; `chosen` is None without validation."""

    metric: str
    split: str
    tasks: int | None
    samples: int | None
    before: Measured | None
    after: Measured | None
    difference: float | None
    low: float | None
    high: float | None
    kinds: list[Kind]
    chosen: Chosen | None = None

    @property
    def verdict(self) -> str:
        """What the interval says, in words."""
        if self.low is None or self.high is None:
            return ""
        rough = (
            f"; of {self.tasks} tasks the interval itself is rough"
            if self.tasks is not None and self.tasks < FEW_TASKS
            else ""
        )
        if self.low > 0:
            return f"a gain: the interval is clear of zero{rough}"
        if self.high < 0:
            return f"a loss: the interval is clear of zero{rough}"
        return f"not decided: the interval includes zero{rough}"


def headline(run: Run) -> Headline | None:
    """Read from `evaluation.json`, or from `summary.json` where that is all there is; None without both.

    Raises:
        BadData: a field of the wrong kind.
    """
    if run.evaluation is not None:
        evaluation = run.evaluation
        return checked(f"{run.folder / 'evaluation.json'}, line 1", lambda: _from_evaluation(evaluation))
    if run.summary is not None:
        return _from_summary(run.summary)
    return None


def _from_evaluation(record: Record) -> Headline:
    before, after = _part(record, "before"), _part(record, "after")
    kinds_before, kinds_after = _part(before or {}, "by_kind") or {}, _part(after or {}, "by_kind") or {}
    return Headline(
        metric=str(record.get("metric", "score")),
        split=str(record.get("split", "")),
        tasks=_whole(record.get("tasks")),
        samples=_whole(record.get("samples")),
        before=_measured(before),
        after=_measured(after),
        difference=number(record.get("difference")),
        low=number(record.get("ci_low")),
        high=number(record.get("ci_high")),
        kinds=[
            _kind(name, kinds_before, kinds_after) for name in dict.fromkeys([*kinds_before, *kinds_after])
        ],
        chosen=_chosen(_part(record, "chosen")),
    )


def _from_summary(record: Record) -> Headline:
    def measured(name: str) -> Measured:
        return Measured(
            number(record.get(name)),
            None,
            None,
            number(record.get(f"greedy_{name}")),
            number(record.get(f"success_{name}")),
        )

    return Headline(
        metric=str(record.get("metric", "score")),
        split="",
        tasks=None,
        samples=None,
        before=measured("before"),
        after=measured("after"),
        difference=number(record.get("difference")),
        low=number(record.get("ci_low")),
        high=number(record.get("ci_high")),
        kinds=[],
    )


def _part(record: Mapping[str, Any], name: str) -> Record | None:
    part = record.get(name)
    if part is not None and not isinstance(part, dict):
        raise TypeError(f"{name!r} is {type(part).__name__}, not an object")
    return part


def _measured(part: Record | None) -> Measured | None:
    if part is None:
        return None
    return Measured(*(number(part.get(name)) for name in ("mean", "ci_low", "ci_high", "greedy", "success")))


def _chosen(part: Record | None) -> Chosen | None:
    if part is None:
        return None
    iteration, candidates, tasks = (_whole(part.get(name)) for name in ("iteration", "candidates", "tasks"))
    return Chosen(iteration, number(part.get("mean")), candidates, tasks, str(part.get("split", "")))


def _kind(name: str, before: Record, after: Record) -> Kind:
    first, second = _part(before, name) or {}, _part(after, name) or {}
    return Kind(
        name=name,
        tasks=_whole(first.get("tasks", second.get("tasks"))),
        before=number(first.get("mean")),
        after=number(second.get("mean")),
        greedy_before=number(first.get("greedy")),
        greedy_after=number(second.get("greedy")),
    )


def _whole(value: object) -> int | None:
    known = number(value)
    return None if known is None else int(known)
