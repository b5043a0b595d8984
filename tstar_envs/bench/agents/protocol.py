"""What an agent is to the runner, and how plainer objects are made into one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

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
    - ``calls``, a list of ``tstar_envs.bench.usage.Call`` that it appends to; the runner takes them into the record.
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
