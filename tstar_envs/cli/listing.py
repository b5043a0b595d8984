"""``list``: print the table of environments."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tstar_envs.cli.console import say
from tstar_envs.errors import TStarError
from tstar_envs.registry import EnvEntry, list_envs

COLUMNS = ("id", "family", "splits", "horizon", "rules", "tier", "extra", "what it is")
SHORT = ("id", "horizon", "extra", "what it is")
WIDE = 140  # terminal columns that the full table needs


@dataclass(frozen=True)
class ListCommand:
    """List every environment with splits and sizes, horizon, rules version, data tier and required pip extra."""


def run(command: ListCommand, console: Console) -> int:
    """Print the table; a narrow terminal shows only the most important columns."""
    columns = COLUMNS if console.width >= WIDE else SHORT
    table = Table(title="environments of tstar_envs")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column == "horizon" else "left",
            no_wrap=column == "id",
            overflow="fold",
        )
    for entry in list_envs():
        tier, splits = _survey(entry)
        cells = dict(
            zip(
                COLUMNS,
                (
                    entry.id,
                    entry.family,
                    splits,
                    str(entry.horizon),
                    entry.rules_version,
                    tier,
                    entry.extra,
                    entry.summary,
                ),
                strict=True,
            )
        )
        table.add_row(*[cells[column] for column in columns])
    console.print(table)
    if columns is COLUMNS:
        say(
            console,
            "horizon: steps until an episode is cut off; rules: their version; tier: the data found; extra: of pip",
            "dim",
        )
    else:
        say(
            console,
            f"{', '.join(c for c in COLUMNS if c not in SHORT)}: in a terminal of {WIDE} columns",
            "dim",
        )
    console.print(
        "[dim]play one: python -m tstar_envs play ID    evaluate: python -m tstar_envs eval --env ID --agent random[/dim]"
    )
    return 0


def _survey(entry: EnvEntry) -> tuple[str, str]:
    """Format the tier and the splits; missing data is shown, not raised."""
    try:
        tier, sizes = entry.load_class().survey(**entry.kwargs)
    except TStarError as error:
        return f"{type(error).__name__}: {error}", ", ".join(entry.splits)
    return tier, ", ".join(f"{split} {size:,}" for split, size in sizes.items())
