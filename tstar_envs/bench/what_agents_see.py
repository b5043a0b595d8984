"""What an agent is shown of the environment it plays: what it is told, and nothing that knows the solution.

An evaluation hands this to ``agent.bind``. An agent that is meant to look inside (the oracle is) says so with ``privileged = True``;
then it gets the environment itself, and the evaluation says so.
"""

from __future__ import annotations

from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError


class NotShown(TStarError, AttributeError):
    """An agent asked for something of the environment that would tell it more than its observations do."""


class EnvironmentView:
    """The part of an environment that agents may know before they play.

    Args:
        env: the environment.

    Attributes:
        env_id: Gymnasium id.
        horizon: steps until truncation; None where each task has its own (``horizon="optimal*2"``), which ``info["horizon"]`` tells.
        prompt_style: how the environment wants replies by default.
    """

    __slots__ = ("_demonstrations", "_prompt", "env_id", "horizon", "prompt_style")

    def __init__(self, env: TextEnv[Any, Any]) -> None:
        self.env_id = env.spec.id if env.spec is not None else type(env).__name__
        self.horizon = None if env.horizon_varies else env.horizon
        self.prompt_style = env.prompt_style
        self._prompt = {style: env.prompt(style) for style in env.prompt_styles}
        self._demonstrations = env.demonstrations

    @property
    def unwrapped(self) -> EnvironmentView:
        """Itself, so that code written for a Gymnasium environment works."""
        return self

    def prompt(self, style: str | None = None) -> str:
        """The rules and the grammar of actions; see ``TextEnv.prompt``."""
        wanted = style or self.prompt_style
        if wanted not in self._prompt:
            raise NotShown(f"there is no prompt style {wanted!r}; valid: {', '.join(map(repr, self._prompt))}")
        return self._prompt[wanted]

    def demonstrations(self, n: int, style: str | None = None) -> list[str]:
        """Episodes of the expert on train tasks, for few-shot prompts; see ``TextEnv.demonstrations``."""
        return self._demonstrations(n, style)

    def __getattr__(self, name: str) -> Any:
        raise NotShown(
            f"an agent is not shown {name!r} of its environment: in an evaluation it may know observation, info, prompt(style) and "
            "demonstrations(n, style). One that is meant to look inside, as the oracle is, has the attribute privileged = True"
        )


def bind_agent(agent: Any, env: TextEnv[Any, Any]) -> bool:
    """Show an agent its environment, if it wants to be shown.

    Returns:
        Whether the agent is privileged: it got the environment itself, expert included.
    """
    privileged = getattr(agent, "privileged", False) is True
    if bind := getattr(agent, "bind", None):
        bind(env if privileged else EnvironmentView(env))
    return privileged
