"""The prompting baselines of the T-STAR paper over any chat model: Direct, ReAct, Reflexion, Search-o1."""

from tstar_envs.bench.agents.chat import ChatAgent
from tstar_envs.bench.agents.prompting.direct import Direct
from tstar_envs.bench.agents.prompting.react import ReAct
from tstar_envs.bench.agents.prompting.reflexion import Reflexion
from tstar_envs.bench.agents.prompting.search_o1 import SearchO1

METHODS: dict[str, type[ChatAgent]] = {
    method.method: method for method in (ChatAgent, Direct, ReAct, Reflexion, SearchO1)
}

__all__ = ["METHODS", "Direct", "ReAct", "Reflexion", "SearchO1"]
