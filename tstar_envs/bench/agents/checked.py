"""What an agent of one's own says of itself, checked once where it enters: its optional attributes and methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tstar_envs.bench.agents.protocol import Agent
from tstar_envs.bench.failures import AgentError
from tstar_envs.errors import UnknownOption
from tstar_envs.foreign import called, shown
from tstar_envs.redaction import keep_named_secret
from tstar_envs.utils import is_whole

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
