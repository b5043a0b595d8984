"""ReAct (Yao et al. 2023, arXiv:2210.03629): a thought before each action, learned from three solved episodes in the prompt."""

from __future__ import annotations

from tstar_envs.bench.agents.chat import ChatAgent
from tstar_envs.bench.what_agents_see import EnvironmentView

SHOTS = 3


class ReAct(ChatAgent):
    """Three demonstrations, played by the environment's expert on tasks of the train split."""

    method = "react"
    takes_tools = False
    _examples = ""

    def bind(self, env: EnvironmentView) -> None:
        """Take the rules and the demonstrations."""
        super().bind(env)
        if not self._examples:
            shown = env.demonstrations(SHOTS, "react")
            self._examples = "\n\n".join(
                f"Example {number}:\n{text}" for number, text in enumerate(shown, start=1)
            )

    def rules(self) -> str:
        """The environment's rules and the solved episodes."""
        return (
            f"{self._view().prompt('react')}\n\n{self._examples}\n\nNow it is your turn, with another task."
        )
