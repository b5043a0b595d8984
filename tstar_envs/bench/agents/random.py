"""The lower bound: an agent that plays at random, the same for the same seed, task and sample.

Where the environment lists admissible actions it draws one of them. Where the set is open (search environments) it
searches for one to three words it has read in this episode, and from the second turn on it answers, one time in four,
with a capitalised phrase it has read.
"""

from __future__ import annotations

import re

from tstar_envs.bench.agents.protocol import Info
from tstar_envs.utils import StableRandom

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
