"""Progress of a run: live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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

SECONDS_BETWEEN_LINES = 30.0  # where there is no terminal


class Ticker:
    """Progress within something long: on a terminal always what is newest, elsewhere a line every 30 s.

    Args:
        say: prints a line.
        show: changes what the terminal shows; None where there is no terminal.
    """

    def __init__(self, say: Callable[[str], None], show: Callable[[str], None] | None = None) -> None:
        self._say, self._show = say, show
        self._told = time.monotonic()

    def __call__(self, text: str) -> None:
        """Report progress."""
        now = time.monotonic()
        if self._show is not None:
            self._show(text)
        elif now - self._told >= SECONDS_BETWEEN_LINES:
            self._told = now
            self._say(text)


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
        self._told = time.monotonic()

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
        now = time.monotonic()
        due = (
            number == 1
            or number % 10 == 0
            or number == self._total
            or now - self._told >= SECONDS_BETWEEN_LINES
        )
        if not self._console.is_terminal and due:
            self._told = now
            left = (self._total - number) * seconds_per_iteration
            share = f"{number / self._total:.0%}"
            line = f"iteration {number}/{self._total} ({share})  {figures}  {left / 60:.1f} min left"
            self._console.print(line, highlight=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[Ticker]:
        """Show that something else than an iteration goes on, and how far it is, for the time of a ``with`` block."""
        if not self._started:
            with waiting(self._console, what) as ticker:
                yield ticker
            return
        before = self._progress.tasks[0].fields["figures"]
        self._progress.update(self._row, figures=what)
        try:
            yield _ticker(self._console, what, lambda text: self._progress.update(self._row, figures=text))
        finally:
            self._progress.update(self._row, figures=before)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        if self._started:
            self._progress.stop()


@contextmanager
def waiting(console: Console, what: str) -> Iterator[Ticker]:
    """Show that something long goes on, and how far it is, for the time of a ``with`` block."""
    with console.status(what) as status:
        yield _ticker(console, what, status.update)


def _ticker(console: Console, what: str, show: Callable[[str], None]) -> Ticker:
    """A ticker whose texts follow the name of what goes on."""
    return Ticker(
        lambda text: console.print(f"{what}: {text}", highlight=False, markup=False),
        (lambda text: show(f"{what}: {text}")) if console.is_terminal else None,
    )
