"""The line that moves while episodes are played: success so far, tokens a second, and the time and money that are left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tstar_envs.bench.prices import Price, money
from tstar_envs.bench.usage import total
from tstar_envs.cli.console import make_console, say
from tstar_envs.record import Episode
from tstar_envs.utils import counted

SECONDS_BETWEEN_LINES = 30.0  # where there is no terminal


class Live:
    """Shows progress: a line that moves on a terminal; elsewhere one line now and then, on standard error.

    Args:
        wanted: episodes in all.
        finished: those that were there before.
        price: of the model, None if it has none.
        currency: of the price.
    """

    def __init__(self, wanted: int, finished: Sequence[Episode], price: Price | None, currency: str) -> None:
        console = make_console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._wanted, self._price, self._currency = wanted, price, currency
        self._good, self._successes = len(finished), sum(episode.success for episode in finished)
        self._played, self._errors, self._tokens, self._cost = 0, 0, 0, 0.0
        self._cut, self._miscounted = 0, 0
        self._costed = price is not None
        self._began = self._told = time.monotonic()
        self._console = console
        self._bar = self._progress.add_task("playing", total=wanted, completed=self._good)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def add(self, episode: Episode) -> None:
        """One more episode has ended."""
        self._played += 1
        self._good += episode.ended != "error"
        self._errors += episode.ended == "error"
        self._successes += episode.success
        usage = total(episode.calls)
        self._tokens += usage.output_tokens
        self._cut, self._miscounted = self._cut + usage.cut, self._miscounted + usage.miscounted
        cost = self._price.of(episode.calls) if self._price is not None else None
        self._costed, self._cost = self._costed and cost is not None, self._cost + (cost or 0.0)
        self._progress.update(self._bar, advance=1, description=self.text())
        now = time.monotonic()
        if not self._console.is_terminal and now - self._told >= SECONDS_BETWEEN_LINES:
            self._told = now
            say(
                self._console,
                f"{self._good + self._errors} of {counted(self._wanted, 'episode')}, {self.text()}",
            )

    def text(self) -> str:
        """What the line says beside the bar."""
        said = [f"success {self._successes / self._good:.1%}" if self._good else "playing"]
        if self._errors:
            said.append(f"{self._errors} errors")
        if self._cut:
            said.append(f"{counted(self._cut, 'reply', 'replies')} cut")
        if self._miscounted:
            said.append(f"the messages of {counted(self._miscounted, 'request')} cut by the endpoint")
        seconds = time.monotonic() - self._began
        if self._tokens and seconds > 0:
            said.append(f"{self._tokens / seconds:.0f} tokens/s")
        if self._costed and self._cost:
            left = self._cost / self._played * max(0, self._wanted - self._good - self._errors)
            said.append(f"{money(self._cost, self._currency)}, {money(left, self._currency)} left")
        return ", ".join(said)
