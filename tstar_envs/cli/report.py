"""``report``: write one self-contained HTML page about evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from tstar_envs.cli.console import say
from tstar_envs.errors import UnknownOption
from tstar_envs.evaluation.cost import read_prices
from tstar_envs.evaluation.report import EPISODES, write_report

_PAGES = (".html", ".htm")


@dataclass(frozen=True)
class ReportCommand:
    """Write one HTML page about evaluations: leaderboard, the paper's tables, two agents side by side, failures, comparisons, cost.

    The page needs no network and no other file. Evaluations on different tasks, rules or options are shown in separate tables.
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Files written by eval --out, or folders of them."""
    out: Path
    """File to write the page to, for example page.html."""
    episodes: int = EPISODES
    """Maximum number of episodes per file that the page shows step by step; those on which agents differ come first."""
    prices: Path | None = None
    """TOML file with prices per million tokens, in the form of tstar_envs/evaluation/prices.toml, which is the default."""
    title: str = ""
    """Heading of the page."""


def run(command: ReportCommand, console: Console) -> int:
    """Read the files and write the page.

    Returns:
        0.

    Raises:
        UnknownOption: no file, a page that is not .html, or a negative number of episodes.
        TStarError: see ``write_report``.
    """
    if command.out.suffix.lower() not in _PAGES:
        raise UnknownOption(f"--out {command.out}: the page is HTML, so its name must end in .html")
    if command.episodes < 0:
        raise UnknownOption(f"--episodes must be 0 or more, got {command.episodes}")
    written = write_report(
        command.files,
        command.out,
        read_prices(command.prices),
        episodes=command.episodes,
        title=command.title,
    )
    for path in written.empty:
        say(console, f"{path} holds no episode yet: left out", "yellow")
    if written.passed_over:
        say(
            console,
            f"{written.passed_over} other .jsonl files in the folders have no settings beside them: left out",
            "yellow",
        )
    say(console, f"{written.path}: {written.files} evaluations, {written.size / 1e6:.1f} MB")
    return 0
