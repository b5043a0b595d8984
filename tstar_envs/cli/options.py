"""From ``--option key=value`` to the environment itself."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tstar_envs.core import TextEnv
from tstar_envs.options import parse_options
from tstar_envs.registry import EnvEntry

__all__ = ["make_env", "parse_options"]


def make_env(entry: EnvEntry, options: dict[str, Any]) -> TextEnv[Any, Any]:
    """The environment itself, without Gymnasium's wrappers but with its spec."""
    env = gym.make(entry.id, disable_env_checker=True, **options).unwrapped
    if not isinstance(env, TextEnv):
        raise TypeError(f"{entry.id} is not a TextEnv but a {type(env).__name__}")
    return env
