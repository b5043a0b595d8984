"""Agent protocol, an agent's view of the environment, model usage, and causes of failure."""

from __future__ import annotations

import inspect
import json
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np

from tstar_envs.core import TextEnv
from tstar_envs.errors import EnvironmentFailed, TStarError, UnknownOption
from tstar_envs.foreign import called, dismiss, prompt_of, shown
from tstar_envs.record import FAILURES, Episode
from tstar_envs.redaction import keep_named_secret
from tstar_envs.registry import find_entry
from tstar_envs.utils import is_whole

MODEL, UNPARSED, ENDPOINT, ENVIRONMENT, AGENT = FAILURES
# Names of the kinds in tables, in order. The first two are results of the agent; the others are excluded from all rates.
KINDS = {
    MODEL: "the agent did not solve the task",
    UNPARSED: "the replies did not parse",
    ENDPOINT: "the endpoint failed",
    ENVIRONMENT: "the environment failed",
    AGENT: "the agent's code failed",
}
SCORED = (MODEL, UNPARSED)
UNREADABLE_SHARE = 0.5  # of an episode's replies; from this share on the cause is the format of the replies


class AgentError(TStarError):
    """Error raised by an agent, or a return value that is not a string."""


class EndpointError(TStarError):
    """Failure of a model's endpoint after all retries."""


def failure(episode: Episode, error: Exception | None = None) -> str:
    """Classify a failed episode as one of ``KINDS``; "" if it solved its task.

    An unsolved episode is ``unparsed`` if at least half of its replies had no readable action, else ``model``.

    Args:
        error: error that ended it, if available; otherwise its record is read.
    """
    if episode.ended == "error":
        name = type(error).__name__ if error is not None else episode.error.partition(":")[0]
        if name == EndpointError.__name__:
            return ENDPOINT
        return (
            AGENT if name in (AgentError.__name__, "NoExpert", "NotShown", "ContextTooLong") else ENVIRONMENT
        )
    if episode.success:
        return ""
    unreadable = sum(not step.action for step in episode.steps)
    return UNPARSED if episode.steps and unreadable >= UNREADABLE_SHARE * len(episode.steps) else MODEL


def failure_of(episode: Episode) -> str:
    """Read the kind of failure from a record; older records are classified by their steps."""
    return episode.failure or failure(episode)


ACT = "act"  # purpose of a request for a step's reply; answers for other purposes keep their text
MOST_TOKENS = 10**9  # largest plausible token count of one request
# Finish reasons of endpoints for an answer truncated at its token limit.
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})


@dataclass(slots=True)
class Call:
    """One answered request to a model.

    Attributes:
        purpose: ``act`` (the step's reply), ``reflect`` or ``refine``.
        seconds: time from the first try to the answer, with backoff.
        input_tokens: tokens of the request, counted by the endpoint; None if it does not report them.
        output_tokens: tokens of the answer, including hidden reasoning; None if not reported.
        cached_tokens: input tokens that the endpoint read from its cache.
        tries: requests sent for this answer; above 1 after retries.
        finish: finish reason of the endpoint (``stop``, ``length``, ``tool_calls``).
        dropped: turns dropped from the messages to fit the context.
        text: text of the answer, if it is not the reply of a step.
        miscounted: True if the endpoint counted fewer input tokens than the messages can have: it truncated them silently, or counts
            only a part.
        step: number of the step, from 0; set by the runner.
        attempt: number of the attempt at the task, from 0; set by the runner.
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
        """Convert to an entry of an episode's ``calls``, without fields that have their default value."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: value for name, value in found.items() if name not in _DEFAULTS or value != _DEFAULTS[name]
        }


# Values that an entry leaves out.
_DEFAULTS = {f.name: f.default for f in fields(Call) if f.default is not MISSING and f.name != "step"}


class Seconds(array):  # type: ignore[type-arg]
    """Durations in seconds, of eight bytes each; equal to every sequence of the same numbers."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence | array) and tuple(self) == tuple(other)

    @classmethod
    def joined(cls, parts: Iterable[Sequence[float]]) -> Seconds:
        """Join durations, sorted."""
        parts = [part for part in parts if part]
        whole = np.empty(sum(map(len, parts)))
        end = 0
        for part in parts:
            whole[end : (end := end + len(part))] = part
        whole.sort()
        found = cls("d")
        found.frombytes(whole.data.cast("B") if len(whole) else b"")
        return found


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals over a number of requests.

    Attributes:
        calls: answered requests.
        uncounted: requests without token counts from the endpoint; excluded from the token sums.
        input_tokens: total input tokens.
        output_tokens: total output tokens.
        cached_tokens: total cached input tokens.
        retries: requests that were sent again.
        cut: requests whose answer was truncated at its token limit.
        miscounted: requests for which the endpoint counted fewer tokens than their messages can have.
        seconds: latency of each request, sorted.
    """

    calls: int
    uncounted: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    retries: int
    seconds: Sequence[float]
    cut: int = 0
    miscounted: int = 0

    @classmethod
    def joined(cls, parts: Iterable[Usage]) -> Usage:
        """Sum several totals."""
        parts = list(parts)
        sums = {
            name: sum(getattr(part, name) for part in parts)
            for name in cls.__dataclass_fields__
            if name != "seconds"
        }
        return cls(**sums, seconds=Seconds.joined(part.seconds for part in parts))

    def percentile(self, share: float) -> float | None:
        """Compute a latency percentile (nearest rank) for ``share`` in [0, 1]; None without requests."""
        return percentile(self.seconds, share)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Compute a percentile of sorted values (nearest rank) for ``share`` in [0, 1]; None without values."""
    if not ordered:
        return None
    rank = -int(-share * len(ordered) // 1)  # the ceiling
    return ordered[max(0, min(len(ordered), rank) - 1)]


def plausible_count(value: Any) -> int | None:
    """Validate a token count reported by an endpoint; None if it is implausible."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def tokens_of(call: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Read the input, output and cached tokens of a recorded call; None if unknown."""
    given, answered, cached = (
        call.get("input_tokens"),
        call.get("output_tokens"),
        call.get("cached_tokens", 0),
    )
    if not (type(given) is type(answered) is type(cached) is int):
        given, answered, cached = map(plausible_count, (given, answered, cached))
    if given is None or answered is None or not 0 <= given <= MOST_TOKENS or not 0 <= answered <= MOST_TOKENS:
        return None
    return given, answered, min(given, cached) if cached and 0 <= cached <= MOST_TOKENS else 0


def total(calls: Iterable[Mapping[str, Any]]) -> Usage:
    """Sum the usage over the ``calls`` of episodes."""
    number = counted = given = answered = cached = retries = cut = miscounted = 0
    seconds = []
    for call in calls:
        number += 1
        if (tokens := tokens_of(call)) is not None:
            counted += 1
            given, answered, cached = given + tokens[0], answered + tokens[1], cached + tokens[2]
        retries += call.get("tries", 1) - 1
        cut += str(call.get("finish", "")).lower() in _CUT
        miscounted += call.get("miscounted") is True
        seconds.append(float(call["seconds"]))
    seconds.sort()
    return Usage(
        calls=number,
        uncounted=number - counted,
        input_tokens=given,
        output_tokens=answered,
        cached_tokens=cached,
        retries=retries,
        seconds=Seconds("d", seconds),
        cut=cut,
        miscounted=miscounted,
    )


Info = dict[str, Any]
Reply = str | Awaitable[str]
Method = TypeVar("Method", bound=Callable[..., Any])


class Agent(Protocol):
    """Agent that plays episodes one after the other. Both methods may be coroutines (``async def``).

    Where episodes are played concurrently, methods that are no coroutines are called in threads, unless they are marked by
    ``never_waits``.

    Example:
        >>> import tstar_envs
        >>> class Up:
        ...     def reset(self, observation, info):
        ...         pass
        ...     def act(self, observation, info):
        ...         return "Action: Up"

    Optional attributes of an agent:

    - ``env_options`` (a dict): default options of its environment; the user's options take precedence.
    - ``bind(env)``: called once before the first episode with an ``AgentEnv``, which has ``env.prompt(style)``,
    ``env.demonstrations(n, style)``, ``env.horizon`` and ``env.tools``. With ``privileged = True`` it gets the environment itself,
    including the expert, as the oracle does; the evaluation reports that.
    - ``another() -> Agent``: makes another agent for a second concurrent episode. Not needed by a class or factory.
    - ``again(observation, reward, info) -> bool``: called at the end of an episode; True starts another attempt at the same task. The
    last attempt is the result; all are recorded.
    - ``calls``: a list of ``tstar_envs.agents.base.Call`` that it appends to; the runner moves them to the record.
    - ``concurrency``: default number of concurrent episodes.
    - ``settings`` (a dict): further settings that its records depend on, for the settings file.
    """

    def reset(self, observation: str, info: Info) -> Any:
        """Start an episode. ``info`` also holds ``agent_seed`` (seed your sampling with it), ``sample`` and ``attempt``."""

    def act(self, observation: str, info: Info) -> Reply:
        """Reply to an observation."""


def never_waits(method: Method) -> Method:
    """Mark a method of an agent that returns at once: it needs no thread where episodes are played concurrently."""
    method.never_waits = True  # type: ignore[attr-defined]
    return method


class FunctionAgent:
    """Wrapper that makes an agent of a function, or of an object without ``reset``.

    Attributes:
        function: the wrapped function.
    """

    def __init__(self, act: Callable[[str, Info], Reply]) -> None:
        self.function = act

    @never_waits
    def reset(self, observation: str, info: Info) -> None:
        """Do nothing: a function has no memory."""

    def act(self, observation: str, info: Info) -> Reply:
        """Call the function."""
        return self.function(observation, info)


METHODS = ("bind", "another", "again", "close")
MOST_AT_ONCE = 100_000


def traits(spec: str, agent: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Read and validate the optional attributes of an agent.

    Args:
        spec: specification of the agent, for the message.
        agent: user-defined object.

    Raises:
        AgentError: reading an attribute raised.
        UnknownOption: an attribute is invalid; the message names it and its value.
    """
    missing = object()
    found = {
        name: value
        for name in names
        if (value := called(f"agent {spec!r}", AgentError, getattr, agent, name, missing)) is not missing
    }
    for name, value in found.items():
        must = _MUST.get(name)
        if must is not None and not must[1](value):
            raise UnknownOption(f"agent {spec!r}: {name} must be {must[0]}, found {shown(value)}")
    for name in ("settings", "env_options"):
        keep_named_secret("", found.get(name) or {})
    return found


def another_of(spec: str, first: Agent, another: Callable[[], Any]) -> Agent:
    """Make another agent with an agent's ``another``.

    Raises:
        AgentError: it raised.
        UnknownOption: it did not return an agent.
    """
    made: Any = called(f"agent {spec!r}", AgentError, another)
    for name in ("act", "reset"):
        if not callable(called(f"agent {spec!r}", AgentError, getattr, made, name, None)):
            raise UnknownOption(
                f"agent {spec!r}: another() must make one more agent, with reset and act, made {shown(made)}"
            )
    if made is first:
        raise UnknownOption(
            f"agent {spec!r}: another() must make one more agent, it gave the same one, which plays one episode at a time"
        )
    agent: Agent = made
    return agent


def _is_json(value: Any) -> bool:
    """Check whether a value survives a round trip through the JSON settings file."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _is_options(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


_MUST: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "env_options": ("a dict of JSON values", lambda value: _is_options(value) and _is_json(value)),
    "settings": ("a dict of JSON values", lambda v: v is None or (_is_options(v) and _is_json(v))),
    "concurrency": (
        f"a whole number from 1 to {MOST_AT_ONCE}",
        lambda value: is_whole(value) and 1 <= value <= MOST_AT_ONCE,
    ),
    "calls": ("a list", lambda value: isinstance(value, list)),
    **{name: ("a method", lambda value: value is None or callable(value)) for name in METHODS},
}


class NotShown(TStarError, AttributeError):
    """Access to a part of the environment that would reveal more than the observations do."""


class AgentEnv:
    """Restricted view of an environment for agents: prompt, demonstrations, horizon and tools.

    Attributes:
        env_id: Gymnasium id.
        horizon: steps until truncation; None if each task has its own (``horizon="optimal*2"``), see ``info["horizon"]``.
        prompt_style: default style of replies.
        tools: actions of the environment as typed functions.
    """

    __slots__ = ("_demonstrations", "_prompt", "env_id", "horizon", "prompt_style", "tools")

    def __init__(self, env: TextEnv[Any, Any]) -> None:
        self.env_id = env.spec.id if env.spec is not None else type(env).__name__
        self.horizon = None if env.horizon_varies else env.horizon
        self.prompt_style = env.prompt_style
        self._prompt = {style: prompt_of(env, style) for style in env.prompt_styles}
        self._demonstrations = _demonstrating(env)
        self.tools = env.tools

    @property
    def unwrapped(self) -> AgentEnv:
        """The view itself, so that code for Gymnasium environments works."""
        return self

    def prompt(self, style: str | None = None) -> str:
        """Rules and action grammar; see ``TextEnv.prompt``."""
        wanted = style or self.prompt_style
        if wanted not in self._prompt:
            raise NotShown(
                f"there is no prompt style {wanted!r}; valid: {', '.join(map(repr, self._prompt))}"
            )
        return self._prompt[wanted]

    def demonstrations(self, n: int, style: str | None = None) -> list[str]:
        """Render expert episodes of train tasks, for few-shot prompts; see ``TextEnv.demonstrations``."""
        return self._demonstrations(n, style)

    def __getattr__(self, name: str) -> Any:
        raise NotShown(
            f"an agent is not shown {name!r} of its environment: in an evaluation it may know observation, info, prompt(style) and "
            "demonstrations(n, style). One that is meant to look inside, as the oracle is, has the attribute privileged = True"
        )


def _demonstrating(env: TextEnv[Any, Any]) -> Callable[..., list[str]]:
    """Find the source of demonstrations; ``train_on`` replaces an id without a train split, same options."""
    spec = env.spec
    entry = find_entry(spec.id) if spec is not None and env.tier != "path" else None
    if spec is None or entry is None or not entry.train_on or "train" in entry.splits:
        return env.demonstrations

    def of_the_other(n: int, style: str | None = None) -> list[str]:
        other = find_entry(entry.train_on)
        options = {
            name: value
            for name, value in spec.kwargs.items()
            if name not in entry.kwargs and name not in ("split", "horizon")
        }
        return other.load_class()(**{**other.kwargs, **options}).demonstrations(n, style)

    return of_the_other


def bind_agent(agent: Any, env: TextEnv[Any, Any]) -> bool:
    """Bind an agent to its environment, if it has ``bind``.

    Returns:
        True if the agent is privileged: it got the environment itself, including the expert.

    Raises:
        AgentError: its ``bind`` raised.
        EnvironmentFailed: an attribute or the prompt of the environment raised or is invalid.
    """
    privileged = getattr(agent, "privileged", False) is True
    if bind := getattr(agent, "bind", None):
        shown = env if privileged else called("the environment", EnvironmentFailed, AgentEnv, env)
        bound = called("the agent", AgentError, bind, shown)
        if inspect.isawaitable(bound):
            dismiss(bound)
            raise AgentError(
                "the agent's bind must not be a coroutine (async def): nothing would wait for it"
            )
    return privileged
