"""Built-in agents: random, the expert, and a person at the terminal."""

from __future__ import annotations

import re
import sys
from typing import Any

from tstar_envs.agents.base import AgentEnv, AgentError, Info
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError
from tstar_envs.redaction import printable
from tstar_envs.utils import StableRandom, check_option

ANSWER_CHANCE = 0.25
_WORD = re.compile(r"\w[\w'-]*")
_PHRASE = re.compile(r"[A-Z]\w+(?: [A-Z]\w+)*")


class RandomAgent:
    """See the module."""

    def __init__(self) -> None:
        self._rng = StableRandom(0)
        self._read: list[str] = []

    def reset(self, observation: str, info: Info) -> None:
        """Start the stream of this episode."""
        self._rng = StableRandom(int(info.get("agent_seed", 0)))
        self._read = [info["instruction"]]

    def act(self, observation: str, info: Info) -> str:
        """A random action."""
        admissible: list[str] | None = info["admissible_actions"]
        if admissible:
            return self._rng.choice(admissible)
        self._read.append(observation)
        text = " ".join(self._read)
        if info["step"] > 0 and self._rng.chance(ANSWER_CHANCE):
            return f"finish[{self._rng.choice(_PHRASE.findall(text) or ['yes'])}]"
        words = _WORD.findall(text) or ["anything"]
        return f"search[{' '.join(self._rng.choice(words) for _ in range(1 + self._rng.below(3)))}]"


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


class HumanAgent:
    """Shows what an agent is shown, and reads one line a turn."""

    concurrency = 1

    def bind(self, env: AgentEnv) -> None:
        """Show the rules once."""
        sys.stderr.write(f"{printable(env.prompt())}\n")

    def reset(self, observation: str, info: Info) -> None:
        """Say that a task begins."""
        sys.stderr.write(f"\n{'=' * 20} {info['task_id']}, at most {info['horizon']} turns {'=' * 20}\n")

    def act(self, observation: str, info: Info) -> str:
        """Read a reply.

        Raises:
            AgentError: the input has ended.
        """
        sys.stderr.write(f"\n{printable(observation)}\n[turn {info['step'] + 1} of {info['horizon']}] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise AgentError("the person left: the input has ended")
        return line.rstrip("\n")
