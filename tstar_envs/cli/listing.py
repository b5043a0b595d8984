"""``list``: the table of environments."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tstar_envs.errors import TStarError
from tstar_envs.registry import EnvEntry, list_envs


@dataclass(frozen=True)
class ListCommand:
    """Show every environment: splits and sizes, horizon, rules version, the data tier found, the pip extra it needs."""


def run(command: ListCommand, console: Console) -> int:
    """Print the table."""
    table = Table(title="environments of tstar_envs")
    for column in ("id", "family", "splits", "horizon", "rules", "tier", "extra", "what it is"):
        table.add_column(column, justify="right" if column == "horizon" else "left", overflow="fold")
    for entry in list_envs():
        tier, splits = _survey(entry)
        table.add_row(entry.id, entry.family, splits, str(entry.horizon), entry.rules_version, tier, entry.extra, entry.summary)
    console.print(table)
    console.print("[dim]play one: python -m tstar_envs play ID    evaluate: python -m tstar_envs eval --env ID --agent random[/dim]")
    return 0


def _survey(entry: EnvEntry) -> tuple[str, str]:
    """Tier and splits as text; missing data is part of the picture, not an error of this command."""
    try:
        tier, sizes = entry.load_class().survey(**entry.kwargs)
    except TStarError as error:
        return f"{type(error).__name__}: {error}", ", ".join(entry.splits)
    return tier, ", ".join(f"{split} {size:,}" for split, size in sizes.items())
