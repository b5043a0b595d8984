"""What agents asked of models and what that cost, over everything they played and on each board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tstar_envs.bench.accounts import Accounts, together
from tstar_envs.bench.report.boards import Board


@dataclass(frozen=True)
class CostRow:
    """The cost of an agent's episodes; ``where`` is a board's title, "" for all of them together."""

    agent: str
    where: str
    accounts: Accounts

    @property
    def tokens_known(self) -> bool:
        """Whether an endpoint reported the tokens of at least one request."""
        return self.accounts.usage.calls > self.accounts.usage.uncounted


def cost_rows(boards: Sequence[Board]) -> tuple[list[CostRow], list[CostRow]]:
    """The sums of each agent, and its parts on each board (of agents that ask a model, where they played on several boards)."""
    sums, rows = [], []
    for name in dict.fromkeys(player.name for board in boards for player in board.players):
        mine = [
            (board, player.evaluation.accounts)
            for board in boards
            for player in board.players
            if player.name == name
        ]
        sums.append(CostRow(name, "", together([accounts for _, accounts in mine])))
        if len(mine) > 1:
            rows += [CostRow(name, board.title, accounts) for board, accounts in mine if accounts.usage.calls]
    return sums, rows
