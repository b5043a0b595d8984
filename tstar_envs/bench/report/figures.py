"""The leaderboard: who did how well on what, a row for each set of tasks, and all figures of each agent below."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tstar_envs.bench.report.boards import Board, BoardEntry
from tstar_envs.bench.report.text import clean
from tstar_envs.bench.stats import Summary


@dataclass(frozen=True)
class Leaderboard:
    """Success, by agent and board.

    Attributes:
        agents: names, the best first by ``means``.
        rows: of each board, the figures of each agent, None where it has not played it.
        means: of each agent over the boards that all have played; empty where there are fewer than two of these.
        common: how many those are.
    """

    agents: list[str]
    rows: list[tuple[Board, list[Summary | None]]]
    means: list[float]
    common: int


@dataclass(frozen=True)
class FigureRow:
    """An agent's figures on a board; ``bounds`` is the 95 % interval of its success."""

    player: BoardEntry
    summary: Summary
    bounds: tuple[float, float] | None

    @property
    def solved(self) -> int:
        """Episodes that solved their task."""
        return self.player.evaluation.accounts.successes

    @property
    def truncated(self) -> int:
        """Episodes that ran out of steps."""
        return round((self.summary.truncated or 0.0) * self.summary.episodes)

    @property
    def settings(self) -> list[tuple[str, str]]:
        """What the file was made with, by name, and where it is."""
        evaluation = self.player.evaluation
        return [("file", clean(str(evaluation.path), 300)), *_flat(evaluation.settings)]


def leaderboard(boards: Sequence[Board]) -> Leaderboard:
    """Lay out who did how well; agents are ordered by their mean over what all have played, else as they were given."""
    names = list(dict.fromkeys(player.name for board in boards for player in board.players))
    found = [{player.name: player.evaluation.summary for player in board.players} for board in boards]
    common = [
        board for board in found if all(name in board and board[name].success is not None for name in names)
    ]
    means = (
        {name: sum(board[name].success or 0.0 for board in common) / len(common) for name in names}
        if common
        else {}
    )
    names.sort(key=lambda name: -means.get(name, 0.0))
    return Leaderboard(
        agents=names,
        rows=[
            (board, [by_name.get(name) for name in names])
            for board, by_name in zip(boards, found, strict=True)
        ],
        means=[means[name] for name in names] if len(common) > 1 else [],
        common=len(common),
    )


def figure_groups(boards: Sequence[Board]) -> list[tuple[Board, list[FigureRow]]]:
    """The rows of each board, one per agent, the best first; agents without a result come last."""
    groups = []
    for board in boards:
        rows = []
        for player in board.players:
            summary = player.evaluation.summary
            rows.append(FigureRow(player, summary, bounds_of(summary)))
        rows.sort(key=lambda row: -1.0 if row.summary.success is None else row.summary.success, reverse=True)
        groups.append((board, rows))
    return groups


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        full = f"{prefix}{clean(name, 100)}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{full}.")
        else:
            yield full, clean(value if isinstance(value, str) else json.dumps(value), 300)


def bounds_of(summary: Summary) -> tuple[float, float] | None:
    """The 95 % interval of a success rate: by task where tasks were played several times, else Wilson's."""
    return summary.clustered or summary.wilson
