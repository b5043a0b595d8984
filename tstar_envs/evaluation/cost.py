"""Cost of an evaluation: prices, tokens, latency and money, and an estimate beforehand."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tstar_envs.agents.answers import Answer
from tstar_envs.agents.base import ACT, AgentError, Call, Seconds, Usage, percentile, tokens_of
from tstar_envs.agents.llm import ChatAgent
from tstar_envs.core import TextEnv
from tstar_envs.data.files import PRICES_BYTES, read_text
from tstar_envs.errors import BadData
from tstar_envs.evaluation.log import Key
from tstar_envs.evaluation.runner import Setting, Worker, play_all
from tstar_envs.evaluation.stats import Figures, figures_of
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry
from tstar_envs.utils import counted

MILLION = 1_000_000
_LONGEST_LINE = 2_000  # characters
MOST = 10**9  # upper bound of a price: a higher one is a typing error, and sums could overflow
_DATED = re.compile(r"[-@:]\d{4}(?:-?\d\d){0,2}$")


@dataclass(frozen=True)
class Price:
    """Prices of a model per million tokens.

    Attributes:
        input: price of input tokens.
        cached_input: price of input tokens that the endpoint read from its cache.
        output: price of output tokens.
    """

    input: float
    cached_input: float
    output: float

    def of(self, calls: Iterable[Mapping[str, Any]]) -> float | None:
        """Compute the cost of requests (an episode's ``calls``); None if a token count is missing."""
        known = []
        for call in calls:
            tokens = tokens_of(call)
            if tokens is None:
                return None
            known.append(tokens)
        return sum(self.amount(*tokens) for tokens in known)

    def amount(self, given: float, answered: float, cached: float = 0) -> float:
        """Compute the cost of input and output tokens; ``cached`` of the input tokens have the lower price."""
        return ((given - cached) * self.input + cached * self.cached_input + answered * self.output) / MILLION


@dataclass(frozen=True)
class PriceTable:
    """Prices by model.

    Attributes:
        currency: currency of all prices.
        as_of: date of the prices.
        models: model name -> price; a dated version (``NAME-2025-04-14``) has the price of the plain name.
    """

    currency: str
    as_of: str
    models: Mapping[str, Price]

    def of_model(self, model: str) -> Price | None:
        """Look up the price of a model; None if unknown."""
        return self.models.get(model) or self.models.get(_DATED.sub("", model))


def read_prices(path: Path | None = None) -> PriceTable:
    """Read a price table in TOML.

    It has ``currency``, ``as_of``, and for each model ``[models."NAME"]`` with ``input``, ``output`` and optionally ``cached_input``
    (default: ``input``), each per million tokens.

    Args:
        path: a TOML file; None reads the shipped table.

    Raises:
        BadData: not a valid price table; the message names the fault.
    """
    shown = str(path) if path is not None else "the shipped table of prices"
    try:
        if path is None:
            text = (
                resources.files("tstar_envs.evaluation").joinpath("prices.toml").read_text(encoding="utf-8")
            )
        else:
            text = read_text(path, PRICES_BYTES)
        longest = max(map(len, text.splitlines()), default=0)
        if longest > _LONGEST_LINE:  # the parser's time is quadratic in the parts of a name
            raise BadData(
                f"{shown}: a line of {longest:,} characters; no table of prices has one above {_LONGEST_LINE:,}"
            )
        table = tomllib.loads(text)
    # Numbers with thousands of digits, and deeply nested brackets, raise other exceptions.
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(f"{shown} is not valid TOML: {str(error) or type(error).__name__}") from None
    models = table.get("models", {})
    if unknown := table.keys() - {"currency", "as_of", "models"}:
        raise BadData(f"{shown}: unknown entry {sorted(unknown)[0]!r}; valid: currency, as_of, models")
    if not isinstance(models, dict):
        raise BadData(f'{shown}: models must be tables [models."NAME"]')
    for name, kinds in (("currency", str), ("as_of", str | datetime.date)):
        if not isinstance(table.get(name, ""), kinds):
            raise BadData(f"{shown}: {name} must be a text, found {_quoted(table[name])}")
    prices = {name: _price(f"{shown}, model {name!r}", entry) for name, entry in models.items()}
    return PriceTable(str(table.get("currency", "USD")), str(table.get("as_of", "")), prices)


def money(amount: float, currency: str) -> str:
    """Format an amount with enough digits to show it."""
    return f"{amount:.2f} {currency}" if amount >= 1 or not amount else f"{amount:.2g} {currency}"


def _price(where: str, entry: Any) -> Price:
    if not isinstance(entry, dict) or not {"input", "output"} <= entry.keys() <= {
        "input",
        "output",
        "cached_input",
    }:
        raise BadData(f"{where}: needs input and output, and may have cached_input; found {_quoted(entry)}")
    given: dict[str, Any] = entry
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
            raise BadData(
                f"{where}: {name} must be a number of 0 or more, found {_quoted(value)}; at most {MOST:,}"
            )
    return Price(
        float(given["input"]), float(given.get("cached_input", given["input"])), float(given["output"])
    )


def _quoted(value: Any) -> str:
    """Format a value for a message; an int may have more digits than Python formats."""
    try:
        return repr(value)[:100]
    except ValueError:
        return f"a {type(value).__name__} with a number of thousands of digits"


@dataclass(frozen=True)
class CostSummary:
    """Usage, cost and reply times, summed over episodes.

    Attributes:
        usage: totals over the requests.
        successes: episodes that solved their task.
        reply_seconds: time of the agent for each reply, sorted. Includes earlier attempts; excludes requests for other purposes and the
            environment.
        cost: in ``currency``; None if the model has no price or a token count is missing.
        currency: currency of the price table.
        as_of: date of its prices.
    """

    usage: Usage
    successes: int
    reply_seconds: Sequence[float]
    cost: float | None
    currency: str
    as_of: str

    @property
    def cost_per_success(self) -> float | None:
        """Cost per solved task, failures included; None without a cost or a success."""
        return self.cost / self.successes if self.cost is not None and self.successes else None

    def reply_percentile(self, share: float) -> float | None:
        """Compute a percentile of the reply time, in seconds; None without replies."""
        return percentile(self.reply_seconds, share)


def summarise_costs(
    episodes: Iterable[Episode | Figures], prices: PriceTable, model: str | None
) -> CostSummary:
    """Sum the cost of episodes.

    Args:
        model: name of the model, None for an agent without one.
    """
    figures = figures_of(episodes)
    usage = Usage.joined(one.usage for one in figures)
    price = prices.of_model(model) if model is not None else None
    known = price is not None and usage.calls and not usage.uncounted
    return CostSummary(
        usage=usage,
        successes=sum(one.success for one in figures),
        reply_seconds=Seconds.joined(one.reply_seconds for one in figures),
        cost=price.amount(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        if price is not None and known
        else None,
        currency=prices.currency,
        as_of=prices.as_of,
    )


def add_costs(parts: Sequence[CostSummary]) -> CostSummary:
    """Sum several summaries; the cost is known only if it is known for every part with requests."""
    costs = [part.cost for part in parts if part.usage.calls]
    known = [cost for cost in costs if cost is not None]
    return CostSummary(
        usage=Usage.joined(part.usage for part in parts),
        successes=sum(part.successes for part in parts),
        reply_seconds=Seconds.joined(part.reply_seconds for part in parts),
        cost=sum(known) if known and len(known) == len(costs) else None,
        currency=parts[0].currency,
        as_of=parts[0].as_of,
    )


def usage_notes(usage: Usage, max_tokens: int | None) -> list[str]:
    """Write notes about truncated answers and messages, for a reader of the results.

    Args:
        max_tokens: token limit of an answer, None if unknown.
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
            "it truncated them silently, the rules first, or counts only uncached tokens. Give the model more context "
            "(Ollama: OLLAMA_CONTEXT_LENGTH; llama-server: --ctx-size), or ask for less with --context-tokens"
        )
    return notes


TASKS_SAMPLED = 5
CHARACTERS_PER_TOKEN = 4.0  # English text
_OTHER_TEXT = "Something that was learned from it and helps with what comes next. " * 4


@dataclass(frozen=True)
class Amount:
    """Number of requests and their tokens."""

    requests: float
    input_tokens: float
    output_tokens: float

    def times(self, episodes: int) -> Amount:
        """Scale the estimate to a number of episodes."""
        return Amount(self.requests * episodes, self.input_tokens * episodes, self.output_tokens * episodes)

    @staticmethod
    def total(amounts: Iterable[Amount]) -> Amount:
        """Sum several amounts."""
        found = list(amounts)
        return Amount(
            sum(a.requests for a in found),
            sum(a.input_tokens for a in found),
            sum(a.output_tokens for a in found),
        )

    def cost(self, price: Price) -> float:
        """Compute the cost without any caching."""
        return price.amount(self.input_tokens, self.output_tokens)


@dataclass(frozen=True)
class Estimate:
    """Estimated requests and tokens of an evaluation.

    Attributes:
        episodes: number of episodes.
        expert: estimate if each is played like the expert, with replies as short as the expert's.
        most: upper bound: each episode uses all turns and attempts, and every answer has the maximum length.
    """

    episodes: int
    expert: Amount
    most: Amount


class _Expert:
    """Fake endpoint that answers with the expert's reply."""

    def __init__(self, env: TextEnv[Any, Any], agent: ChatAgent) -> None:
        self._env, self._agent = env, agent
        self.longest = self.opening = 0.0
        self.model, self.fields = "", dict[str, Any]()

    async def ask(
        self, messages: Sequence[dict[str, Any]], purpose: str, *, max_tokens: int, **fields: Any
    ) -> Answer:
        """Count the messages and answer with the expert's reply."""
        text = _OTHER_TEXT
        if purpose == ACT:
            reply = self._env.oracle()
            if reply is None:
                raise AgentError("the expert knows no way to win from here")
            text = self._agent.in_form(reply)
            self.longest = max(self.longest, _tokens(messages[-1]["content"]))
        given = sum(_tokens(message["content"] or "") for message in messages) + _tokens(
            str(fields.get("tools", ""))
        )
        self.opening = given if len(messages) == 2 and purpose == ACT else self.opening
        return Answer(text, "", (), Call(purpose, 0.0, round(given), round(_tokens(text))))

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def estimate(env: TextEnv[Any, Any], entry: EnvEntry, agent: ChatAgent, wanted: Sequence[Key]) -> Estimate:
    """Estimate the requests and tokens of an evaluation.

    Args:
        agent: agent, bound to the environment.
    """
    tasks = list(dict.fromkeys(task for task, _ in wanted))
    spread = (
        [tasks[index * len(tasks) // TASKS_SAMPLED] for index in range(TASKS_SAMPLED)]
        if len(tasks) > TASKS_SAMPLED
        else tasks
    )
    twin = agent.another()
    expert = _Expert(env, twin)
    twin.endpoint = expert  # type: ignore[assignment]
    played = list(play_all([Worker(env, twin)], Setting(entry, "dry run"), [(task, 0) for task in spread]))
    turns = max((len(episode.steps) for episode in played), default=1) if env.horizon_varies else env.horizon
    options, requests = agent.options, agent.requests(turns)
    # The requests of an attempt grow by one turn each; further requests (reflections) are counted as long as the longest.
    growing = [
        min(options.context_tokens, expert.opening + turn * (expert.longest + options.max_tokens))
        for turn in range(turns)
    ]
    most = sum(growing) * (requests // turns) + growing[-1] * (requests % turns)
    return Estimate(
        episodes=len(wanted),
        expert=_mean(played).times(len(wanted)),
        most=Amount(requests, most, requests * options.max_tokens).times(len(wanted)),
    )


def _mean(played: Sequence[Episode]) -> Amount:
    calls = [call for episode in played for call in episode.calls]
    count = max(1, len(played))
    given, answered = (
        sum(call["input_tokens"] for call in calls),
        sum(call["output_tokens"] for call in calls),
    )
    return Amount(len(calls) / count, given / count, answered / count)


def _tokens(text: str) -> float:
    return len(text) / CHARACTERS_PER_TOKEN
