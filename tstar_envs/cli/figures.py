"""The table that ``eval`` prints: what an agent achieved, why it failed where it did, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from tstar_envs.bench.accounts import Accounts
from tstar_envs.bench.estimate import Estimate
from tstar_envs.bench.failures import KINDS, SCORED
from tstar_envs.bench.prices import Price, PriceTable, money
from tstar_envs.bench.stats import Summary
from tstar_envs.cli.console import plain
from tstar_envs.wording import counted


def figures_table(summary: Summary, wanted: int, accounts: Accounts, panel: str) -> Table:
    """The figures of an evaluation.

    Args:
        summary: of what was played.
        wanted: episodes that were to be played.
        accounts: what they cost.
        panel: name and hash of the panel of tasks, "" if of none.
    """
    table = Table(show_header=False)
    for name, value in [*_results(summary, wanted, panel), *_costs(accounts)]:
        table.add_row(plain(name), plain(value))
    return table


@dataclass(frozen=True)
class Row:
    """An environment's part of a suite.

    Attributes:
        env: its id.
        wanted: episodes that were to be played.
        summary: of what was played.
        accounts: what it cost.
    """

    env: str
    wanted: int
    summary: Summary
    accounts: Accounts


def suite_table(rows: Sequence[Row], title: str) -> Table:
    """The figures of a suite, a row for each environment."""
    costs = [row.accounts for row in rows if row.accounts.cost is not None]
    table = Table(title=title, title_justify="left")
    for column in (
        "environment",
        "success",
        "95 % interval",
        "score",
        "steps",
        "episodes",
        "errors",
        *(["cost"] if costs else []),
    ):
        table.add_column(column, justify="left" if column == "environment" else "right")
    for row in rows:
        summary, cost = row.summary, row.accounts.cost
        left = f" of {row.wanted}" if summary.episodes + summary.errors < row.wanted else ""
        cells = [row.env, "", "", "", "", f"{summary.episodes}{left}", str(summary.errors)]
        if summary.success is not None and summary.wilson is not None:
            message = interval(summary.clustered or summary.wilson)
            cells[1:5] = f"{summary.success:.1%}", message, f"{summary.score:.3f}", f"{summary.steps:.2f}"
        table.add_row(
            *map(
                plain,
                [*cells, *(["" if cost is None else money(cost, row.accounts.currency)] if costs else [])],
            )
        )
    if costs:
        table.caption = f"cost in all: {money(sum(c.cost or 0.0 for c in costs), costs[0].currency)} (prices of {costs[0].as_of})"
    return table


def _results(summary: Summary, wanted: int, panel: str) -> Iterator[tuple[str, str]]:
    played = summary.episodes + summary.errors
    if panel:
        yield "tasks", panel
    yield (
        "episodes",
        f"{summary.episodes} ({counted(summary.tasks, 'task')})"
        + (f", {wanted - played} not played yet" if played < wanted else ""),
    )
    yield "errors (in no rate)", str(summary.errors)
    if summary.success is not None and summary.wilson is not None:
        yield "success", f"{summary.success:.1%}"
        yield (
            "95 % interval (Wilson" + (", per episode)" if summary.clustered else ")"),
            interval(summary.wilson),
        )
        if summary.clustered:
            yield "95 % interval (by task)", interval(summary.clustered)
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
        yield KINDS[kind], counted(count, "episode") + ("" if kind in SCORED else " (in no rate)")


def _costs(accounts: Accounts) -> Iterator[tuple[str, str]]:
    usage = accounts.usage
    middle, late = accounts.reply_percentile(0.5), accounts.reply_percentile(0.95)
    if usage.calls and middle is not None and late is not None:
        yield "seconds a reply", f"{middle:.2f} (half of them at most), {late:.2f} (95 %)"
    if not usage.calls:
        return
    again = f", {usage.retries:,} sent again" if usage.retries else ""
    yield "requests", f"{usage.calls:,}{again}"
    if usage.calls > usage.uncounted:
        cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
        uncounted = f"; {usage.uncounted:,} requests without a count" if usage.uncounted else ""
        yield "tokens", f"{usage.input_tokens:,} in{cached}, {usage.output_tokens:,} out{uncounted}"
    else:
        yield "tokens", "the endpoint does not count them"
    if accounts.cost is not None:
        each = accounts.cost_per_success
        yield (
            "cost",
            money(accounts.cost, accounts.currency)
            + (f" (prices of {accounts.as_of})" if accounts.as_of else ""),
        )
        yield "cost of a solved task", "none was solved" if each is None else money(each, accounts.currency)


def interval(bounds: tuple[float, float]) -> str:
    """A 95 % interval of a rate."""
    return f"{bounds[0]:.1%} to {bounds[1]:.1%}"


def estimate_table(found: Estimate, price: Price | None, prices: PriceTable) -> Table:
    """What a dry run found."""
    table = Table()
    for column in ("", "requests", "tokens in", "tokens out", *(["cost"] if price is not None else [])):
        table.add_column(column, justify="left" if not column else "right")
    for name, amount in (("if it plays as the expert does", found.expert), ("at most", found.most)):
        counts = [f"{value:,.0f}" for value in (amount.requests, amount.input_tokens, amount.output_tokens)]
        table.add_row(
            name, *counts, *([money(amount.cost(price), prices.currency)] if price is not None else [])
        )
    table.caption = (
        "no price is known for this model (--prices FILE)"
        if price is None
        else f"prices of {prices.as_of}, nothing cached"
    )
    return table
