"""Consoles, tables and progress, for terminals and pipes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tstar_envs.agents.base import AGENT, ENDPOINT, ENVIRONMENT, KINDS, MODEL, SCORED, UNPARSED, total
from tstar_envs.core import TextEnv
from tstar_envs.evaluation.cost import Amount, CostSummary, Estimate, Price, PriceTable, money
from tstar_envs.evaluation.stats import Summary
from tstar_envs.record import Episode
from tstar_envs.record_files import Head
from tstar_envs.redaction import printable
from tstar_envs.registry import EnvEntry
from tstar_envs.utils import counted

_PIPE_WIDTH = 200  # a pipe has no width; rich's 80 would cut tables


class _PipedConsole(Console):
    """Console that survives a closed pipe (``| head``), so that the command's exit status is kept."""

    def on_broken_pipe(self) -> None:
        """Ignore the broken pipe; rich would exit with status 1."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)


def make_console(stderr: bool = False) -> Console:
    """Make a console of the terminal's width, or a wide one without a terminal."""
    console = _PipedConsole(stderr=stderr, highlight=False)
    return (
        console if console.is_terminal else _PipedConsole(stderr=stderr, highlight=False, width=_PIPE_WIDTH)
    )


def plain(text: str, style: str = "") -> Text:
    """Wrap foreign text: no markup, control characters or secrets, and nothing that a UTF-8 terminal cannot show."""
    return Text(printable(text), style=style)


def say(console: Console, message: str, style: str = "") -> None:
    """Print one message: one line, wrapped on a terminal between words only, to keep paths whole."""
    if console.is_terminal:
        console.print(plain(message, style), overflow="ignore", crop=False)
    else:
        console.print(plain(message, style), soft_wrap=True)


def make_env(entry: EnvEntry, options: dict[str, Any]) -> TextEnv[Any, Any]:
    """Make the environment of an entry; see ``EnvEntry.make``."""
    return entry.make(**options)


SECONDS_BETWEEN_LINES = 30.0  # without a terminal


class Live:
    """Progress display: a live line on a terminal, else an occasional line on standard error.

    Args:
        finished: episodes finished before, or their heads.
        price: price of the model, None if unknown.
    """

    def __init__(
        self, wanted: int, finished: Sequence[Episode | Head], price: Price | None, currency: str
    ) -> None:
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
        """Count a finished episode."""
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
        """Text beside the progress bar."""
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


def figures_table(summary: Summary, wanted: int, costs: CostSummary, panel: str) -> Table:
    """Build the table of an evaluation's results and costs.

    Args:
        panel: name and hash of the evaluation set, "" if none.
    """
    table = Table(show_header=False)
    for name, value in [*_results(summary, wanted, panel), *_costs(costs)]:
        table.add_row(plain(name), plain(value))
    return table


@dataclass(frozen=True)
class Row:
    """Results of one environment in a suite.

    Attributes:
        env: environment id.
        wanted: total number of episodes.
        summary: summary of the finished episodes.
        costs: tokens, time and cost.
    """

    env: str
    wanted: int
    summary: Summary
    costs: CostSummary


def suite_table(rows: Sequence[Row], title: str) -> Table:
    """Build the table of a suite: a row per environment, an average, and any model costs."""
    costs = [row.costs for row in rows if row.costs.cost is not None]
    asked = any(row.costs.usage.calls for row in rows)
    headings = [
        "environment",
        "success",
        "95 % interval",
        "score",
        "steps",
        "episodes",
        "errors",
        "why not solved",
    ]
    headings += [*(["tokens in", "tokens out", "s/reply"] if asked else []), *(["cost"] if costs else [])]
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("environment", "why not solved") else "right")
    for row in rows:
        table.add_row(*map(plain, _suite_cells(row, asked, bool(costs))))
    played = [row for row in rows if row.summary.success is not None]
    if len(played) > 1:
        table.add_section()
        table.add_row(*map(plain, _average_cells(rows, played, asked, bool(costs))))
    if costs:
        table.caption = f"cost in all: {money(sum(c.cost or 0.0 for c in costs), costs[0].currency)} (prices of {costs[0].as_of})"
    return table


def _suite_cells(row: Row, asked: bool, priced: bool) -> list[str]:
    summary, costs = row.summary, row.costs
    left = f" of {row.wanted}" if summary.episodes + summary.errors < row.wanted else ""
    cells = [row.env, "", "", "", "", f"{summary.episodes}{left}", str(summary.errors), _reasons(summary)]
    if summary.success is not None and summary.wilson is not None:
        message = interval(summary.clustered or summary.wilson)
        cells[1:5] = f"{summary.success:.1%}", message, f"{summary.score:.3f}", f"{summary.steps:.2f}"
    if asked:
        middle = costs.reply_percentile(0.5)
        tokens = (costs.usage.input_tokens, costs.usage.output_tokens) if costs.usage.calls else ()
        cells += [f"{count:,}" for count in tokens] or ["", ""]
        cells.append("" if middle is None else f"{middle:.2f}")
    if priced:
        cells.append("" if costs.cost is None else money(costs.cost, costs.currency))
    return cells


def _average_cells(rows: Sequence[Row], played: Sequence[Row], asked: bool, priced: bool) -> list[str]:
    """Build the last row: unweighted means over the environments, and sums of counts."""
    summaries = [row.summary for row in played]

    def mean(values: Iterable[float | None]) -> float:
        return sum(value or 0.0 for value in values) / len(played)

    cells = [f"average of {len(played)}", f"{mean(s.success for s in summaries):.1%}", ""]
    cells += [f"{mean(s.score for s in summaries):.3f}", f"{mean(s.steps for s in summaries):.2f}"]
    cells += [
        str(sum(row.summary.episodes for row in rows)),
        str(sum(row.summary.errors for row in rows)),
        "",
    ]
    if asked:
        usages = [row.costs.usage for row in rows]
        cells += [f"{sum(u.input_tokens for u in usages):,}", f"{sum(u.output_tokens for u in usages):,}", ""]
    if priced:
        known = [row.costs for row in rows if row.costs.cost is not None]
        cells.append(money(sum(a.cost or 0.0 for a in known), known[0].currency))
    return cells


def _reasons(summary: Summary) -> str:
    """List the causes of failure of an environment's episodes, most frequent first."""
    found = sorted(
        ((kind, count) for kind, count in summary.failures.items() if count), key=lambda item: -item[1]
    )
    return ", ".join(f"{_SHORT[kind]} {count}" for kind, count in found)


_SHORT = {
    MODEL: "model",
    UNPARSED: "not parsed",
    ENDPOINT: "endpoint",
    ENVIRONMENT: "environment",
    AGENT: "agent's code",
}


def _results(summary: Summary, wanted: int, panel: str) -> Iterator[tuple[str, str]]:
    played = summary.episodes + summary.errors
    if panel:
        yield "tasks", panel
    yield (
        "episodes",
        f"{summary.episodes} ({counted(summary.tasks, 'task')})"
        + (f", {wanted - played} not played yet" if played < wanted else ""),
    )
    yield "errors (excluded)", str(summary.errors)
    if summary.success is not None and summary.wilson is not None:
        yield "success", f"{summary.success:.1%}"
        yield (
            "95 % interval (Wilson" + (", per episode)" if summary.clustered else ")"),
            interval(summary.wilson),
        )
        if summary.clustered:
            yield "95 % interval (by task)", interval(summary.clustered)
        for rates in summary.passes:
            yield f"pass@{rates.k} (one of {rates.k} succeeds)", _rate(rates.pass_at, rates.pass_at_interval)
            yield f"pass^{rates.k} (all of {rates.k} succeed)", _rate(rates.pass_hat, rates.pass_hat_interval)
        yield "mean score", f"{summary.score:.3f}"
        yield "mean steps", f"{summary.steps:.2f}"
        yield "invalid actions", f"{summary.invalid:.1%} of steps"
        if summary.unreadable:
            yield "no action could be read", f"{summary.unreadable:.1%} of steps"
        yield "out of steps", f"{summary.truncated:.1%} of episodes"
        if summary.progress_unknown:
            yield "progress unknown", counted(summary.progress_unknown, "episode")
        for name, value in summary.extra.items():
            yield f"mean {name}", f"{value:.3f}"
    for kind, count in summary.failures.items():
        yield KINDS[kind], counted(count, "episode") + ("" if kind in SCORED else " (excluded from rates)")


def _costs(costs: CostSummary) -> Iterator[tuple[str, str]]:
    usage = costs.usage
    middle, late = costs.reply_percentile(0.5), costs.reply_percentile(0.95)
    if usage.calls and middle is not None and late is not None:
        yield "seconds per reply", f"{middle:.2f} (median), {late:.2f} (95 %)"
    if not usage.calls:
        return
    again = f", {usage.retries:,} retries" if usage.retries else ""
    yield "requests", f"{usage.calls:,}{again}"
    if usage.calls > usage.uncounted:
        cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
        uncounted = f"; {usage.uncounted:,} requests without a count" if usage.uncounted else ""
        yield "tokens", f"{usage.input_tokens:,} in{cached}, {usage.output_tokens:,} out{uncounted}"
    else:
        yield "tokens", "the endpoint does not count them"
    if costs.cost is not None:
        each = costs.cost_per_success
        yield (
            "cost",
            money(costs.cost, costs.currency) + (f" (prices of {costs.as_of})" if costs.as_of else ""),
        )
        yield "cost per solved task", "none was solved" if each is None else money(each, costs.currency)


def _rate(value: float, bounds: tuple[float, float]) -> str:
    return f"{value:.1%} ({interval(bounds)})"


def interval(bounds: tuple[float, float]) -> str:
    """Format a 95 % interval of a rate."""
    return f"{bounds[0]:.1%} to {bounds[1]:.1%}"


def estimate_table(found: Mapping[str, Estimate], price: Price | None, prices: PriceTable) -> Table:
    """Build the table of a dry run: a row per environment if there are several, then the total."""
    table = Table()
    for column in ("", "requests", "tokens in", "tokens out", *(["cost"] if price is not None else [])):
        table.add_column(column, justify="left" if not column else "right")
    for env, one in found.items() if len(found) > 1 else ():
        table.add_row(*_estimate_cells(f"{env}, at most", one.most, price, prices))
    if len(found) > 1:
        table.add_section()
    for name, amounts in (
        ("if it plays like the expert", [one.expert for one in found.values()]),
        ("at most", [one.most for one in found.values()]),
    ):
        table.add_row(*_estimate_cells(name, Amount.total(amounts), price, prices))
    table.caption = (
        "no price is known for this model (--prices FILE)"
        if price is None
        else f"prices of {prices.as_of}, without caching"
    )
    return table


def _estimate_cells(name: str, amount: Amount, price: Price | None, prices: PriceTable) -> list[str]:
    counts = [f"{value:,.0f}" for value in (amount.requests, amount.input_tokens, amount.output_tokens)]
    return [name, *counts, *([money(amount.cost(price), prices.currency)] if price is not None else [])]
