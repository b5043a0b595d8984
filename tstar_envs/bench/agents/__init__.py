"""Who plays: agents are objects with ``act(observation, info) -> reply``; ``load_agent`` finds one by name."""

from tstar_envs.bench.agents.load import BUILT_IN, ModelOptions, load_agent, more_agents, options_of
from tstar_envs.bench.agents.protocol import Agent, FunctionAgent

__all__ = ["BUILT_IN", "Agent", "FunctionAgent", "ModelOptions", "load_agent", "more_agents", "options_of"]
