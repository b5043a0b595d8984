"""The expected requests, tokens and cost of evaluating a chat model: a few tasks are played with the expert in the model's place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tstar_envs.bench.agents.answers import Answer
from tstar_envs.bench.agents.chat import ChatAgent
from tstar_envs.bench.failures import AgentError
from tstar_envs.bench.prices import Price
from tstar_envs.bench.results import Key
from tstar_envs.bench.runner import Seat, Setting, play_all
from tstar_envs.bench.usage import ACT, Call
from tstar_envs.core import TextEnv
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry

TASKS_SAMPLED = 5
CHARACTERS_PER_TOKEN = 4.0  # of English text
_OTHER_TEXT = "Something that was learned from it and helps with what comes next. " * 4


@dataclass(frozen=True)
class Amount:
    """Requests and their tokens."""

    requests: float
    input_tokens: float
    output_tokens: float

    def times(self, episodes: int) -> Amount:
        """The estimate scaled to a number of episodes."""
        return Amount(self.requests * episodes, self.input_tokens * episodes, self.output_tokens * episodes)

    @staticmethod
    def total(amounts: Iterable[Amount]) -> Amount:
        """The sum of several."""
        found = list(amounts)
        return Amount(
            sum(a.requests for a in found),
            sum(a.input_tokens for a in found),
            sum(a.output_tokens for a in found),
        )

    def cost(self, price: Price) -> float:
        """What it costs, nothing of it cached."""
        return price.amount(self.input_tokens, self.output_tokens)


@dataclass(frozen=True)
class Estimate:
    """What a number of episodes takes.

    Attributes:
        episodes: how many.
        expert: if each is played as the expert plays it, with replies as short as its own.
        most: if each runs out of turns (and attempts), and every answer is as long as it may be.
    """

    episodes: int
    expert: Amount
    most: Amount


class _Expert:
    """A stand-in for the endpoint that answers with the expert's reply."""

    def __init__(self, env: TextEnv[Any, Any], agent: ChatAgent) -> None:
        self._env, self._agent = env, agent
        self.longest = self.opening = 0.0
        self.model, self.fields = "", dict[str, Any]()

    async def ask(
        self, messages: Sequence[dict[str, Any]], purpose: str, *, max_tokens: int, **fields: Any
    ) -> Answer:
        """Count the messages, and answer."""
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
        """Nothing to close."""


def estimate(env: TextEnv[Any, Any], entry: EnvEntry, agent: ChatAgent, wanted: Sequence[Key]) -> Estimate:
    """Estimate the requests and tokens that episodes will take.

    Args:
        env: where they are played.
        entry: its entry in the table.
        agent: who plays, bound to the environment.
        wanted: the episodes.
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
    played = list(play_all([Seat(env, twin)], Setting(entry, "dry run"), [(task, 0) for task in spread]))
    turns = max((len(episode.steps) for episode in played), default=1) if env.horizon_varies else env.horizon
    options, requests = agent.options, agent.requests(turns)
    # An attempt is a row of requests that grow by a turn each; further ones (reflections) are counted as long as the longest.
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
