"""What agents asked of models and what that cost, over everything they played and on each board."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tstar_envs.bench.accounts import Accounts
from tstar_envs.bench.report.boards import Board
from tstar_envs.bench.usage import Usage


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


def together(parts: Sequence[Accounts]) -> Accounts:
    """The sum of several; money is known only where it is for every part that sent requests."""
    usages = [part.usage for part in parts]
    costs = [part.cost for part in parts if part.usage.calls]
    known = [cost for cost in costs if cost is not None]
    return Accounts(
        usage=Usage(
            calls=sum(usage.calls for usage in usages),
            uncounted=sum(usage.uncounted for usage in usages),
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            retries=sum(usage.retries for usage in usages),
            seconds=_merged(usage.seconds for usage in usages),
            cut=sum(usage.cut for usage in usages),
            miscounted=sum(usage.miscounted for usage in usages),
        ),
        successes=sum(part.successes for part in parts),
        reply_seconds=_merged(part.reply_seconds for part in parts),
        cost=sum(known) if known and len(known) == len(costs) else None,
        currency=parts[0].currency,
        as_of=parts[0].as_of,
    )


def _merged(parts: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sorted(value for part in parts for value in part))
