"""The upper bound: the environment's own expert."""

from __future__ import annotations

from typing import Any

from tstar_envs.bench.agents.protocol import Info
from tstar_envs.core import TextEnv


class OracleAgent:
    """Replies with ``env.oracle()``; in a lost state with nothing, which the environment takes as an invalid action."""

    def __init__(self) -> None:
        self._env: TextEnv[Any, Any] | None = None

    def bind(self, env: TextEnv[Any, Any]) -> None:
        """The oracle looks into the environment it plays."""
        self._env = env

    def reset(self, observation: str, info: Info) -> None:
        """The oracle remembers nothing."""

    def act(self, observation: str, info: Info) -> str:
        """The expert's reply."""
        if self._env is None:
            raise RuntimeError("the oracle plays only an environment that it was bound to: call bind(env) first")
        return self._env.oracle() or ""
