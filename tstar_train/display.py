"""How far a run is, on the screen while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tstar_envs import find_entry
from tstar_train.config import Config


class Display:
    """Live progress in a terminal; a line every few iterations elsewhere.

    Args:
        console: where to.
        config: of the run.
    """

    def __init__(self, console: Console, config: Config) -> None:
        self._console = console
        self._total = config.iterations
        self._metric = find_entry(config.env).metric
        self._window: list[dict[str, Any]] = []
        columns = (
            TextColumn("[bold]{task.completed}/{task.total}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._progress = Progress(*columns, console=console, transient=False, disable=not console.is_terminal)
        self._row = self._progress.add_task("", total=self._total, figures="")
        self._started = False

    def update(self, number: int, metrics: dict[str, Any], seconds_per_iteration: float) -> None:
        """Show iteration ``number`` (from 1)."""
        if not self._started:
            self._progress.start()
            self._started = True
        self._window = [*self._window[-9:], metrics]

        def mean(name: str) -> float:
            values = [m[name] for m in self._window if m.get(name) is not None]
            return sum(values) / len(values) if values else 0.0

        # Of one iteration a figure says little: its tasks are few, and others than those of the one before.
        several = f"means of {len(self._window)}: " if len(self._window) > 1 else ""
        figures = f"{several}success {mean('success'):.1%}"
        if self._metric != "success":
            figures += f"  {self._metric} {mean('reward'):.1%}"
        if "grafts" in metrics:
            figures += (
                f"  tree {mean('tree_nodes_before'):.0f}->{mean('tree_nodes_after'):.0f} nodes, "
                f"{mean('tree_divergent_nodes'):.1f} divergent  grafts {mean('grafts'):.0f}"
            )
        self._progress.update(self._row, completed=number, figures=figures)
        if not self._console.is_terminal and (number == 1 or number % 10 == 0 or number == self._total):
            left = (self._total - number) * seconds_per_iteration
            share = f"{number / self._total:.0%}"
            line = f"iteration {number}/{self._total} ({share})  {figures}  {left / 60:.1f} min left"
            self._console.print(line, highlight=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show that something else than an iteration goes on, for the time of a ``with`` block."""
        if not self._started:
            with self._console.status(what):
                yield
            return
        before = self._progress.tasks[0].fields["figures"]
        self._progress.update(self._row, figures=what)
        try:
            yield
        finally:
            self._progress.update(self._row, figures=before)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        if self._started:
            self._progress.stop()
