"""What an evaluation cost: tokens, latency, money, also for each task solved. Episodes that ended in an error cost too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tstar_envs.bench.prices import PriceTable
from tstar_envs.bench.usage import Usage, percentile, total
from tstar_envs.record import Episode


@dataclass(frozen=True)
class Accounts:
    """Usage, cost and reply times, summed over episodes.

    Attributes:
        usage: of the requests.
        successes: episodes that solved their task.
        reply_seconds: how long the agent took for each reply, sorted; those of earlier attempts are in it, requests for other purposes
            and the environment are not.
        cost: in ``currency``; None where the table has no price for the model, or an endpoint did not report its tokens.
        currency: of the table.
        as_of: day of its prices.
    """

    usage: Usage
    successes: int
    reply_seconds: tuple[float, ...]
    cost: float | None
    currency: str
    as_of: str

    @property
    def cost_per_success(self) -> float | None:
        """What a solved task cost, failures included; None without a cost or a success."""
        return self.cost / self.successes if self.cost is not None and self.successes else None

    def reply_percentile(self, share: float) -> float | None:
        """Seconds that a share of the replies did not exceed, None without any."""
        return percentile(self.reply_seconds, share)


def account(episodes: Sequence[Episode], prices: PriceTable, model: str | None) -> Accounts:
    """Add up what episodes cost.

    Args:
        episodes: of one agent.
        prices: the table.
        model: that was asked, None for an agent that asks none.
    """
    calls = [call for episode in episodes for call in episode.calls]
    price = prices.of_model(model) if model is not None else None
    # What a record does not hold was not timed: 0 seconds is no measurement.
    earlier = [step.get("seconds") for e in episodes for attempt in e.attempts for step in attempt["steps"]]
    replies = sorted(
        seconds for seconds in [*earlier, *(step.seconds for e in episodes for step in e.steps)] if seconds
    )
    return Accounts(
        usage=total(calls),
        successes=sum(episode.success for episode in episodes),
        reply_seconds=tuple(replies),
        cost=price.of(calls) if price is not None and calls else None,
        currency=prices.currency,
        as_of=prices.as_of,
    )
