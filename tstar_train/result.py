"""What a run gained: its summary, and the result as it is printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tstar_envs import find_entry
from tstar_envs.utils import counted
from tstar_train.checkpoint import Progress
from tstar_train.config import Config
from tstar_train.evaluate import Measurement, paired_difference
from tstar_train.report.headline import FEW_TASKS


def header(config: Config, held_out: Sequence[str]) -> dict[str, Any]:
    """What ``evaluation.json`` says of the measurements."""
    metric = find_entry(config.env).metric
    return {
        "metric": metric,
        "split": config.evaluation.split,
        "tasks": len(held_out),
        "samples": config.evaluation.samples,
    }


def summarized(
    config: Config,
    before: Measurement,
    after: Measurement,
    progress: Progress,
    seconds: float,
    chosen: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The contents of ``summary.json``.

    Args:
        config: of the run.
        before: the start on the held-out tasks.
        after: the result on them.
        progress: how far the run is.
        seconds: since it was first started.
        chosen: which weights the result is, by ``Validation.report``; None: the last ones.
    """
    difference, low, high = paired_difference(before, after)
    metric = find_entry(config.env).metric
    solved = {
        "success_before": before.success,
        "success_after": after.success,
        "greedy_success_before": before.greedy_success,
        "greedy_success_after": after.greedy_success,
    }
    return {
        "env": find_entry(config.env).id,
        "algo": config.algo,
        "tstar": config.tstar,
        "seed": config.seed,
        "metric": metric,
        "before": before.mean,
        "after": after.mean,
        "difference": difference,
        "ci_low": low,
        "ci_high": high,
        "greedy_before": before.greedy,
        "greedy_after": after.greedy,
        **(solved if metric == "score" else {}),
        **(
            {"chosen_iteration": chosen["iteration"], "validation_mean": chosen["mean"]}
            if chosen is not None
            else {}
        ),
        "episodes": progress.episodes,
        "iterations": progress.iteration,
        "seconds": seconds,
        "model": config.model,
        "split": config.evaluation.split,
        "tasks": len(before.per_task),
        "samples": config.evaluation.samples,
    }


def print_result(
    console: Console,
    before: Measurement,
    after: Measurement,
    summary: dict[str, Any],
    report: Path,
    chosen: dict[str, Any] | None = None,
) -> None:
    """Print a table by kind of task, the difference with its interval, and what has to be known of it; arguments as of ``summarized``."""
    table = Table(title=f"{summary['env']}: {summary['metric']} on held-out tasks, temperature 1 (greedy)")
    for column in ("kind", "tasks", "before", "after"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    theirs = after.by_kind()
    for kind, row in before.by_kind().items():
        table.add_row(
            kind,
            str(row["tasks"]),
            _percent(row["mean"], row["greedy"]),
            _percent(theirs[kind]["mean"], theirs[kind]["greedy"]),
        )
    table.add_row(
        "all",
        str(len(before.per_task)),
        _percent(before.mean, before.greedy),
        _percent(after.mean, after.greedy),
        style="bold",
    )
    console.print(table)
    if lost := before.failed + after.failed:
        console.print(
            f"{counted(lost, 'episode')} failed for want of infrastructure, counted in no figure",
            style="yellow",
            highlight=False,
        )
    console.print(
        f"{summary['metric']} {summary['before']:.1%} -> {summary['after']:.1%}, difference {summary['difference']:+.1%} "
        f"(95 % interval {summary['ci_low']:+.1%} to {summary['ci_high']:+.1%}, paired by task), "
        f"{counted(summary['iterations'], 'iteration')}, {summary['seconds'] / 60:.1f} min",
        highlight=False,
    )
    if chosen is not None:
        console.print(_chosen(chosen, summary["iterations"]), highlight=False)
    if long := before.overlong + after.overlong:
        console.print(
            f"{counted(long, 'episode')} outgrew the context and ended there, unsolved",
            style="yellow",
            highlight=False,
        )
    if len(before.per_task) < FEW_TASKS:
        console.print(
            f"of {counted(len(before.per_task), 'task')} the interval itself is rough: --evaluation.tasks takes more",
            highlight=False,
        )
    if summary["metric"] == "score":
        first, second = (
            _percent(before.success, before.greedy_success),
            _percent(after.success, after.greedy_success),
        )
        console.print(f"success (a score of 1) {first} -> {second}", highlight=False)
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


def _chosen(chosen: dict[str, Any], iterations: int) -> str:
    """Which weights were measured, and why, in a sentence."""
    of = f"{counted(chosen['tasks'], 'task')} of the split {chosen['split']}"
    by = f"by validation ({chosen['mean']:.1%} on {of}, the best of {chosen['candidates']} validations)"
    if not chosen["iteration"]:
        return f"chosen {by}: the start; no later weights did better there, so nothing was gained and the difference is 0"
    return f"chosen {by}: the weights of iteration {chosen['iteration']} of {iterations}; only they were measured after training"


def _percent(mean: float | None, greedy: float | None) -> str:
    return ("-" if mean is None else f"{mean:.1%}") + (f" ({greedy:.1%})" if greedy is not None else "")
