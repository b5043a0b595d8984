"""What agents ask of models, one record per request, and what it came to: tokens, seconds, tries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

ACT = "act"  # a request whose answer is a step's reply; what is asked for another purpose keeps its text
MOST_TOKENS = 10**9  # that an endpoint may report of one request and be believed
# How endpoints say that an answer was cut at the bound on its length.
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})


@dataclass(slots=True)
class Call:
    """One request to a model that was answered.

    Attributes:
        purpose: ``act`` (the step's reply), or what else it was for: ``reflect``, ``refine``.
        seconds: from the first try to the answer, waiting between tries included.
        input_tokens: of the request as the endpoint counts them, None where it does not report them.
        output_tokens: of the answer, likewise; reasoning that is not shown is among them.
        cached_tokens: of the input, those that the endpoint had computed before.
        tries: requests sent for this answer; above 1 where some failed.
        finish: why the answer ended, in the endpoint's words (``stop``, ``length``, ``tool_calls``).
        dropped: turns that were left out of the messages so that they fit.
        text: the answer, where it is no reply of a step.
        miscounted: the endpoint counted fewer input tokens than the messages can have: it cut them without a word, or counts a part.
        step: number of the step it was asked for, from 0; set by the runner, as is
        attempt: the number of the attempt at the task, from 0.
    """

    purpose: str
    seconds: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    tries: int = 1
    finish: str = ""
    dropped: int = 0
    text: str = ""
    miscounted: bool = False
    step: int = 0
    attempt: int = 0

    def record(self) -> dict[str, Any]:
        """The entry of an episode's ``calls``; fields with their default value are left out."""
        plain = Call(self.purpose, self.seconds)
        kept = ("purpose", "seconds", "step")
        return {
            name: value
            for name, value in asdict(self).items()
            if name in kept or value != getattr(plain, name)
        }


@dataclass(frozen=True)
class Usage:
    """What a number of requests came to.

    Attributes:
        calls: requests that were answered.
        uncounted: those of them whose tokens the endpoint did not report; they are in no sum of tokens.
        input_tokens: sum.
        output_tokens: sum.
        cached_tokens: of the input.
        retries: requests that were sent again.
        cut: requests whose answer was cut at the bound on its length.
        miscounted: requests of whose messages the endpoint counted fewer tokens than they can have.
        seconds: of each request, sorted.
    """

    calls: int
    uncounted: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    retries: int
    seconds: tuple[float, ...]
    cut: int = 0
    miscounted: int = 0

    def percentile(self, share: float) -> float | None:
        """The latency that ``share`` (0 to 1) of the requests do not exceed (nearest rank), None without any."""
        return percentile(self.seconds, share)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that a share of sorted values does not exceed (nearest rank), None where there is none."""
    if not ordered:
        return None
    rank = -int(-share * len(ordered) // 1)  # the ceiling
    return ordered[max(0, min(len(ordered), rank) - 1)]


def plausible_count(value: Any) -> int | None:
    """A number of tokens that an endpoint may mean, None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def tokens_of(call: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Tokens in, out and cached of a recorded call, None where they are not known."""
    given, answered = plausible_count(call.get("input_tokens")), plausible_count(call.get("output_tokens"))
    if given is None or answered is None:
        return None
    return given, answered, min(given, plausible_count(call.get("cached_tokens")) or 0)


def total(calls: Iterable[Mapping[str, Any]]) -> Usage:
    """The sums of what episodes hold as ``calls``."""
    calls = list(calls)
    counted = [tokens for call in calls if (tokens := tokens_of(call)) is not None]
    return Usage(
        calls=len(calls),
        uncounted=len(calls) - len(counted),
        input_tokens=sum(tokens[0] for tokens in counted),
        output_tokens=sum(tokens[1] for tokens in counted),
        cached_tokens=sum(tokens[2] for tokens in counted),
        retries=sum(c.get("tries", 1) - 1 for c in calls),
        seconds=tuple(sorted(float(c["seconds"]) for c in calls)),
        cut=sum(str(c.get("finish", "")).lower() in _CUT for c in calls),
        miscounted=sum(c.get("miscounted") is True for c in calls),
    )
