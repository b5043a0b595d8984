"""Environments made from ``--option key=value``."""

from __future__ import annotations

from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.registry import EnvEntry, parse_options

__all__ = ["make_env", "parse_options"]


def make_env(entry: EnvEntry, options: dict[str, Any]) -> TextEnv[Any, Any]:
    """The environment of an entry; see ``EnvEntry.make``."""
    return entry.make(**options)
