"""Agents paired on the tasks that both have: which differences are decided, on every set of tasks that at least two have played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tstar_envs.bench.paired import Comparison, compare
from tstar_envs.bench.report.boards import Board, BoardEntry, comparable
from tstar_envs.bench.report.text import short_id
from tstar_envs.utils import counted

METRICS = ("success", "score")


@dataclass(frozen=True)
class Paired:
    """One table of differences.

    Attributes:
        title: environment, and the board where there are several.
        tasks: what was compared on, in words.
        metric: ``success`` or ``score``.
        warnings: what speaks against reading it as it stands.
        rows: one for each pair of agents; p is corrected over all of them.
    """

    title: str
    tasks: str
    metric: str
    warnings: list[str]
    rows: list[Comparison]


def paired(boards: Sequence[Board]) -> tuple[list[Paired], list[str]]:
    """Compare within every board, and across the boards of an environment on the tasks that all of their agents have.

    Returns:
        The tables, and what could not be compared.
    """
    tables: list[Paired] = []
    message: list[str] = []
    for env in dict.fromkeys(board.env for board in boards):
        those = [board for board in boards if board.env == env]
        for board in those:
            tables += _tables(board.title, board.players, board.described)
        for together in _comparable(those) if len(those) > 1 else []:
            players = [player for board in together for player in board.players]
            titles = ", ".join(board.title for board in together)
            shared = _shared(players)
            if len(together) == 1:
                message.append(
                    f"{titles} cannot be compared with the other sets of {short_id(env)}: other rules, data or contents."
                )
            elif not shared:
                message.append(f"{titles} have no task in common: nothing to compare.")
            else:
                tables += _tables(
                    f"{short_id(env)}, all sets",
                    players,
                    f"the {counted(len(shared), 'task')} that all of {titles} have",
                )
    return tables, message


def _comparable(boards: Sequence[Board]) -> list[list[Board]]:
    groups: list[list[Board]] = []
    for board in boards:
        group = next(
            (
                g
                for g in groups
                if all(comparable(a, b) for other in g for a in other.players for b in board.players)
            ),
            None,
        )
        if group is None:
            groups.append([board])
        else:
            group.append(board)
    return groups


def _shared(players: Sequence[BoardEntry]) -> list[str]:
    tasks = [set(player.evaluation.recorded.tasks) for player in players if player.evaluation.recorded.tasks]
    return sorted(set.intersection(*tasks)) if tasks else []


def _tables(title: str, players: Sequence[BoardEntry], caption: str) -> list[Paired]:
    players = [player for player in players if player.evaluation.recorded.tasks]
    shared = _shared(players)
    if len(players) < 2 or not shared:
        return []
    warnings = []
    if len({player.options for player in players}) > 1:
        warnings.append(
            "Played under different options: "
            + "; ".join(f"{player.name}: {player.options}" for player in players)
            + "."
        )
    if any(player.evaluation.recorded.without_result for player in players):
        warnings.append(f"On the {counted(len(shared), 'task')} that all have a result of.")
    success, score = (
        {
            player.name: {
                task: [getattr(outcome, metric) for outcome in player.evaluation.recorded.tasks[task]]
                for task in shared
            }
            for player in players
        }
        for metric in METRICS
    )
    tables = [Paired(title, caption, "success", warnings, compare(success))]
    if score != success:  # where every task is solved or not, the reward says no more
        tables.append(Paired(title, caption, "score", warnings, compare(score)))
    return tables
