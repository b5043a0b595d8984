"""The paper's tables as the page shows them: an agent's rows from its files, and the paper's own below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tstar_envs.bench.report.boards import Board
from tstar_envs.bench.report.paper import TABLES, PaperTable, Part, row
from tstar_envs.bench.report.published import PublishedRow
from tstar_envs.utils import counted


@dataclass(frozen=True)
class Cell:
    """A figure in an agent's row, and what must be said beside it."""

    part: Part
    note: str


@dataclass(frozen=True)
class PaperView:
    """A table with this page's own rows and the paper's, these by the model that they stand under."""

    table: PaperTable
    rows: list[tuple[str, list[Cell | None]]]
    published: list[tuple[str, list[PublishedRow]]]


def paper_views(boards: Sequence[Board]) -> list[PaperView]:
    """The tables of which at least one figure is known."""
    names = list(dict.fromkeys(player.name for board in boards for player in board.players))
    played = {
        name: {b.env: p.evaluation for b in boards for p in b.players if p.name == name} for name in names
    }
    whole = {(player.name, board.env) for board in boards for player in board.players if board.whole}
    views = []
    for table in TABLES:
        rows = []
        for name in names:
            parts = row(table, {env: evaluation.parts for env, evaluation in played[name].items()})
            envs = [next((env for env in column.envs if env in played[name]), "") for column in table.columns]
            cells = [
                None
                if part is None
                else Cell(part, "" if not env or (name, env) in whole else counted(part.episodes, "episode"))
                for part, env in zip(parts, envs, strict=True)
            ]
            if any(cells):
                rows.append((name, cells))
        if rows:
            views.append(
                PaperView(
                    table,
                    rows,
                    [(group, list(those)) for group, those in groupby(table.published, lambda r: r.group)],
                )
            )
    return views
