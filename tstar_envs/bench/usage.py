"""What agents ask of models, one record per request, and what it came to: tokens, seconds, tries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

ACT = "act"  # a request whose answer is a step's reply; what is asked for another purpose keeps its text


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
        seconds: of each request, sorted.
    """

    calls: int
    uncounted: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    retries: int
    seconds: tuple[float, ...]

    def percentile(self, share: float) -> float | None:
        """The latency that ``share`` (0 to 1) of the requests do not exceed (nearest rank), None without any."""
        return percentile(self.seconds, share)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that a share of sorted values does not exceed (nearest rank), None where there is none."""
    if not ordered:
        return None
    rank = -int(-share * len(ordered) // 1)  # the ceiling
    return ordered[max(0, min(len(ordered), rank) - 1)]


def total(calls: Iterable[Mapping[str, Any]]) -> Usage:
    """The sums of what episodes hold as ``calls``."""
    calls = list(calls)
    counted = [c for c in calls if c.get("input_tokens") is not None and c.get("output_tokens") is not None]
    return Usage(
        calls=len(calls),
        uncounted=len(calls) - len(counted),
        input_tokens=sum(c["input_tokens"] for c in counted),
        output_tokens=sum(c["output_tokens"] for c in counted),
        cached_tokens=sum(c.get("cached_tokens", 0) for c in counted),
        retries=sum(c.get("tries", 1) - 1 for c in calls),
        seconds=tuple(sorted(float(c["seconds"]) for c in calls)),
    )
