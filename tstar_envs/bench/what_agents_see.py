"""What an agent is shown of the environment it plays: its rules and tools, and nothing that knows the solution.

An evaluation hands this to ``agent.bind``. An agent that is meant to look inside (the oracle is) says so with ``privileged = True``;
then it gets the environment itself, and the evaluation says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tstar_envs.bench.failures import AgentError
from tstar_envs.core import TextEnv
from tstar_envs.errors import EnvironmentFailed, TStarError
from tstar_envs.foreign import called, dismiss, prompt_of
from tstar_envs.registry import find_entry


class NotShown(TStarError, AttributeError):
    """An agent asked for something of the environment that would reveal more than its observations do."""


class EnvironmentView:
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
    def unwrapped(self) -> EnvironmentView:
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
        shown = env if privileged else called("the environment", EnvironmentFailed, EnvironmentView, env)
        bound = called("the agent", AgentError, bind, shown)
        if inspect.isawaitable(bound):
            dismiss(bound)
            raise AgentError(
                "the agent's bind must not be a coroutine (async def): nothing would wait for it"
            )
    return privileged
