"""Built-in agents: random, the expert (oracle), and a human at the terminal."""

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
    """Agent that draws a random action in each step."""

    def __init__(self) -> None:
        self._rng = StableRandom(0)
        self._read: list[str] = []

    def reset(self, observation: str, info: Info) -> None:
        """Seed the random generator for this episode."""
        self._rng = StableRandom(int(info.get("agent_seed", 0)))
        self._read = [info["instruction"]]

    def act(self, observation: str, info: Info) -> str:
        """Draw a random action."""
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
    """Unwinnable task: it says nothing about an expert, so the episode is an error, not a failure."""


class OracleAgent:
    """Agent that replies with ``env.oracle(kind=kind)``; see ``TextEnv.oracle``."""

    privileged = True

    def __init__(self, kind: str = "expert") -> None:
        self._kind = kind
        self._env: TextEnv[Any, Any] | None = None

    def bind(self, env: TextEnv[Any, Any]) -> None:
        """Keep the environment, whose state the oracle reads.

        Raises:
            UnknownOption: the family has no oracle of this kind.
        """
        check_option("the oracle's kind", self._kind, env.oracle_kinds)
        self._env = env

    def reset(self, observation: str, info: Info) -> None:
        """Do nothing: the oracle has no memory."""

    def act(self, observation: str, info: Info) -> str:
        """Reply with the expert's step.

        Raises:
            NoExpert: the task cannot be won from here. All shipped tasks can be won; a task of a user's file may be unsolvable.
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
    """Agent that shows the observations to a human and reads one line per turn."""

    concurrency = 1

    def bind(self, env: AgentEnv) -> None:
        """Print the rules once."""
        sys.stderr.write(f"{printable(env.prompt())}\n")

    def reset(self, observation: str, info: Info) -> None:
        """Announce a new task."""
        sys.stderr.write(f"\n{'=' * 20} {info['task_id']}, at most {info['horizon']} turns {'=' * 20}\n")

    def act(self, observation: str, info: Info) -> str:
        """Read a reply from the terminal.

        Raises:
            AgentError: end of input.
        """
        sys.stderr.write(f"\n{printable(observation)}\n[turn {info['step'] + 1} of {info['horizon']}] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise AgentError("the person left: the input has ended")
        return line.rstrip("\n")
