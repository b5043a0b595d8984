"""What an agent is to the runner, and how plainer objects are made into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Info = dict[str, Any]


class Agent(Protocol):
    """Plays episodes one after the other.

    An agent may declare ``env_options`` (a dict): options that its environment should have unless the user names others,
    and ``bind(env)``, which is called once before the first episode with what agents may know of the environment: ``env.prompt(style)``,
    ``env.demonstrations(n, style)``, ``env.horizon`` (``what_agents_see``). With ``privileged = True`` it is called with the environment
    itself, expert and all, as the oracle is; the evaluation says so.
    """

    def reset(self, observation: str, info: Info) -> None:
        """A new episode: ``info`` also holds ``agent_seed`` (seed your sampling with it) and ``sample``."""

    def act(self, observation: str, info: Info) -> str:
        """The reply to an observation."""


class FunctionAgent:
    """A function, or an object without ``reset``, as an agent."""

    def __init__(self, act: Callable[[str, Info], str]) -> None:
        self._act = act

    def reset(self, observation: str, info: Info) -> None:
        """A function remembers nothing."""

    def act(self, observation: str, info: Info) -> str:
        """Call the function."""
        return self._act(observation, info)
