"""How far a build is: a bar in a terminal, a line now and then in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes the phase, how much of it is done, and out of how much."""
    if not console.is_terminal:
        yield _Lines(console).report
        return
    amount = TextColumn("{task.fields[amount]}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        amount,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total, amount="")
            bars.update(
                tasks[phase], completed=done, total=total, amount=f"{done:,} of {total:,} {_unit(phase)}"
            )

        yield report


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = time.monotonic()

    def report(self, phase: str, done: int, total: int) -> None:
        if time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._console.print(
                f"{phase}: {done:,} of {total:,} {_unit(phase)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _unit(phase: str) -> str:
    return {"reading": "bytes", "writing": ""}.get(phase, "passages")
