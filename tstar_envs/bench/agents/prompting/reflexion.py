"""Reflexion (Shinn et al. 2023, arXiv:2303.11366): after a failed attempt the model says what went wrong, and tries again.

The signal between attempts is whether the task was solved, as in the paper. The last attempt is the result; each one is in the record, and
so is each reflection (``calls`` of purpose ``reflect``).
"""

from __future__ import annotations

from tstar_envs.bench.agents.chat import aloud
from tstar_envs.bench.agents.prompting.react import ReAct
from tstar_envs.bench.agents.protocol import Info

REFLECTIONS = 3  # so many at most, that is four attempts
_ASK = (
    "You did not solve the task in this attempt. Say in a few sentences what went wrong and where, and what you will do "
    "differently in the next attempt, so concretely that it helps without seeing this attempt again. Write no action."
)


class Reflexion(ReAct):
    """ReAct that learns from its own words."""

    method = "reflexion"

    def reset(self, observation: str, info: Info) -> None:
        """Begin an attempt; the first one of a task knows nothing of the task before."""
        if not info.get("attempt"):
            self._reflections: list[str] = []
        super().reset(observation, info)

    def rules(self) -> str:
        """ReAct's, and what was learned from the attempts before."""
        if not self._reflections:
            return super().rules()
        learned = "\n".join(f"Attempt {n}: {text}" for n, text in enumerate(self._reflections, start=1))
        return f"{super().rules()}\n\nYou have tried this task before and did not solve it. What you told yourself:\n{learned}"

    @staticmethod
    def requests(turns: int) -> int:
        """All attempts, and a reflection between each two."""
        return (REFLECTIONS + 1) * turns + REFLECTIONS

    async def again(self, observation: str, reward: float, info: Info) -> bool:
        """Reflect on a failed attempt; whether to try once more."""
        if info["success"] or len(self._reflections) == REFLECTIONS:
            return False
        ended = self._answered(f"{observation}\n\n{_ASK}")
        self.conversation.add(*self._said, *ended)
        self._said = []
        answer = await self.ask("reflect")
        self._reflections.append(" ".join(aloud(answer.text).split()))
        return True
