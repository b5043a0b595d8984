"""Agents: the protocol, what an agent sees, usage of models, and reasons for failures."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tstar_envs.core import TextEnv
from tstar_envs.errors import EnvironmentFailed, TStarError, UnknownOption
from tstar_envs.foreign import called, dismiss, prompt_of, shown
from tstar_envs.record import FAILURES, Episode
from tstar_envs.redaction import keep_named_secret
from tstar_envs.registry import find_entry
from tstar_envs.utils import is_whole

MODEL, UNPARSED, ENDPOINT, ENVIRONMENT, AGENT = FAILURES
# How tables name each kind, in their order; the first two are results of the agent, the others are in no rate.
KINDS = {
    MODEL: "the model failed",
    UNPARSED: "the replies did not parse",
    ENDPOINT: "the endpoint failed",
    ENVIRONMENT: "the environment failed",
    AGENT: "the agent's code failed",
}
SCORED = (MODEL, UNPARSED)
UNREADABLE_SHARE = 0.5  # of an episode's replies; from there on the form of the replies is what failed


class AgentError(TStarError):
    """An agent raised, or returned something that is not a string."""


class EndpointError(TStarError):
    """The endpoint of a model gave no answer that could be used, after all tries."""


def failure(episode: Episode, error: Exception | None = None) -> str:
    """Which of ``KINDS`` an episode is, "" where it solved its task.

    An episode that was played and not solved is ``unparsed`` where at least half of its replies held no action that could be read, else
    ``model``.

    Args:
        episode: it has ended.
        error: what ended it, if it ended in an error and the error is at hand; else its record is read.
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
    """Which of ``KINDS`` an episode is, as its record says, or as its steps show where the record is older than this field."""
    return episode.failure or failure(episode)


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


Info = dict[str, Any]
Reply = str | Awaitable[str]


class Agent(Protocol):
    """Plays episodes one after the other. Both methods may be coroutines (``async def``).

    An agent may further have:

    - ``env_options`` (a dict): options that its environment should have unless the user names others.
    - ``bind(env)``, called once before the first episode with what agents may know of the environment: ``env.prompt(style)``,
      ``env.demonstrations(n, style)``, ``env.horizon``, ``env.tools`` (``what_agents_see``). With ``privileged = True`` it is called
      with the environment itself, expert and all, as the oracle is; the evaluation says so.
    - ``another() -> Agent``, another one that plays a second episode at the same time. A class or factory needs none.
    - ``again(observation, reward, info) -> bool``, asked at the end of an episode: whether to play the same task once more, as a further
      attempt. The last attempt is the result; all are recorded.
    - ``calls``, a list of ``tstar_envs.agents.base.Call`` that it appends to; the runner takes them into the record.
    - ``concurrency``: episodes to play at once unless the user says how many.
    - ``settings`` (a dict): what else its records depend on, for the file of settings.
    """

    def reset(self, observation: str, info: Info) -> Any:
        """A new episode: ``info`` also holds ``agent_seed`` (seed your sampling with it), ``sample`` and ``attempt``."""

    def act(self, observation: str, info: Info) -> Reply:
        """The reply to an observation."""


class FunctionAgent:
    """A function, or an object without ``reset``, as an agent."""

    def __init__(self, act: Callable[[str, Info], Reply]) -> None:
        self._act = act

    def reset(self, observation: str, info: Info) -> None:
        """A function remembers nothing."""

    def act(self, observation: str, info: Info) -> Reply:
        """Call the function."""
        return self._act(observation, info)


METHODS = ("bind", "another", "again", "close")
MOST_AT_ONCE = 100_000


def traits(spec: str, agent: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The optional attributes that an agent has, each known to be what ``Agent`` says.

    Args:
        spec: how the agent was named, for the message.
        agent: anybody's object.
        names: all that there may be.

    Raises:
        AgentError: reading one raised something.
        UnknownOption: one is something else; it is named, with its value.
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
    """What an agent's ``another`` makes.

    Raises:
        AgentError: it raised something.
        UnknownOption: it made no agent.
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
    """Whether a value can be written to the file of settings and read again as it was."""
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
    """An agent asked for something of the environment that would reveal more than its observations do."""


class AgentEnv:
    """The part of an environment that agents may know before they play.

    Args:
        env: the environment.

    Attributes:
        env_id: Gymnasium id.
        horizon: steps until truncation; None where each task has its own (``horizon="optimal*2"``), which ``info["horizon"]`` holds.
        prompt_style: how the environment wants replies by default.
        tools: its actions as typed functions.
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
        """Itself, so that code written for a Gymnasium environment works."""
        return self

    def prompt(self, style: str | None = None) -> str:
        """The rules and the grammar of actions; see ``TextEnv.prompt``."""
        wanted = style or self.prompt_style
        if wanted not in self._prompt:
            raise NotShown(
                f"there is no prompt style {wanted!r}; valid: {', '.join(map(repr, self._prompt))}"
            )
        return self._prompt[wanted]

    def demonstrations(self, n: int, style: str | None = None) -> list[str]:
        """Episodes of the expert on train tasks, for few-shot prompts; see ``TextEnv.demonstrations``."""
        return self._demonstrations(n, style)

    def __getattr__(self, name: str) -> Any:
        raise NotShown(
            f"an agent is not shown {name!r} of its environment: in an evaluation it may know observation, info, prompt(style) and "
            "demonstrations(n, style). One that is meant to look inside, as the oracle is, has the attribute privileged = True"
        )


def _demonstrating(env: TextEnv[Any, Any]) -> Callable[..., list[str]]:
    """Where demonstrations come from: for an id without a train split, the id whose training carries over to it, with the same options."""
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
    """Show an agent its environment, if it wants to be shown.

    Returns:
        Whether the agent is privileged: it got the environment itself, expert included.

    Raises:
        AgentError: its ``bind`` raised something.
        EnvironmentFailed: what the environment says of itself raised something, or is no text.
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
