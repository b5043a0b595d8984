"""Direct prompting: the model answers with an action and nothing else, without reasoning in words and without examples."""

from __future__ import annotations

from tstar_envs.bench.agents.chat import ChatAgent
from tstar_envs.react import parse_reply, render_reply

_ACTION_ONLY = "Write no thought. Answer in each turn with the action line alone:\nAction: the action"


class Direct(ChatAgent):
    """The baseline that shows what a model knows to do at once."""

    method = "direct"
    takes_tools = False

    def rules(self) -> str:
        """The environment's rules, without the thought."""
        return f"{super().rules()}\n\n{_ACTION_ONLY}"

    def in_form(self, reply: str) -> str:
        """The action line alone."""
        return render_reply("", parse_reply(reply).action)
