"""The upper bound: the environment's own expert."""

from __future__ import annotations

from typing import Any

from tstar_envs.bench.agents.protocol import Info
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError
from tstar_envs.utils import check_option


class NoExpert(TStarError):
    """A task that cannot be won says nothing about an expert: its episode is an error, not a failure."""


class OracleAgent:
    """Replies with ``env.oracle(kind=kind)``; see ``TextEnv.oracle``."""

    privileged = True

    def __init__(self, kind: str = "expert") -> None:
        self._kind = kind
        self._env: TextEnv[Any, Any] | None = None

    def bind(self, env: TextEnv[Any, Any]) -> None:
        """The oracle looks into the environment it plays.

        Raises:
            UnknownOption: the family has no oracle of this kind.
        """
        check_option("the oracle's kind", self._kind, env.oracle_kinds)
        self._env = env

    def reset(self, observation: str, info: Info) -> None:
        """The oracle remembers nothing."""

    def act(self, observation: str, info: Info) -> str:
        """The expert's reply.

        Raises:
            NoExpert: it knows no way to win from here. Shipped tasks can all be won; one of a file by path may be unsolvable.
        """
        if self._env is None:
            raise RuntimeError(
                "the oracle plays only an environment that it was bound to: call bind(env) first"
            )
        reply = self._env.oracle(kind=self._kind)
        if reply is None:
            raise NoExpert(
                f"the expert knows no way to win task {info['task_id']!r} from here: it cannot be won"
            )
        return reply
