"""Agents: objects with ``act(observation, info) -> reply``; ``load_agent`` loads one by name."""

from __future__ import annotations

from tstar_envs.agents.base import Agent, FunctionAgent
from tstar_envs.agents.load import BUILT_IN, ModelOptions, load_agent, more_agents, options_of

__all__ = ["BUILT_IN", "Agent", "FunctionAgent", "ModelOptions", "load_agent", "more_agents", "options_of"]
