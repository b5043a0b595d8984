"""What an evaluation cost: tokens, latency, money, also for each task solved. Episodes that ended in an error cost too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tstar_envs.bench.prices import PriceTable
from tstar_envs.bench.usage import Usage, percentile, total
from tstar_envs.record import Episode
from tstar_envs.utils import counted


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


def usage_notes(usage: Usage, max_tokens: int | None) -> list[str]:
    """Sentences on answers and messages that were cut, for a reader of the figures.

    Args:
        usage: of the requests.
        max_tokens: the bound on an answer, None where it is not known.
    """
    notes = []
    if usage.cut:
        bound = (
            "the bound on their length (--max-tokens)" if max_tokens is None else f"--max-tokens {max_tokens}"
        )
        notes.append(
            f"{usage.cut:,} of {counted(usage.calls, 'reply', 'replies')} were cut at {bound}: a model that reasons before it answers "
            "needs more"
        )
    if usage.miscounted:
        notes.append(
            f"of {usage.miscounted:,} of {counted(usage.calls, 'request')} the endpoint counted fewer tokens than their messages can have: "
            "it cut them without a word, the rules first, or counts only what it had not computed before. Give the model more context "
            "(Ollama: OLLAMA_CONTEXT_LENGTH; llama-server: --ctx-size), or ask for less with --context-tokens"
        )
    return notes
