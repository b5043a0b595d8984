"""Base algorithms with one interface (``base``), and T-STAR on top of them (``tstar``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tstar_envs import UnknownOption

if TYPE_CHECKING:
    from tstar_train.algorithms.base import Algorithm

# Name on the command line -> options that it sets where the user does not: they rank above a preset's.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dapo": {"optim.clip_low": 0.2, "optim.clip_high": 0.28, "optim.aggregation": "token-mean"},
    "dapo-paper": {"optim.clip_low": 0.2, "optim.clip_high": 0.2, "optim.aggregation": "token-mean"},
    "gigpo": {},
    "hgpo": {},
    "graphgpo": {},
    "ppo": {"tstar": False},
}


def _built_in(name: str) -> type[Algorithm]:
    """Class of a built-in algorithm, imported on use: one needs torch, which is slow to import."""
    if name == "grpo":
        from tstar_train.algorithms.grpo import GRPO

        return GRPO
    if name == "gigpo":
        from tstar_train.algorithms.gigpo import GiGPO

        return GiGPO
    if name == "hgpo":
        from tstar_train.algorithms.hgpo import HGPO

        return HGPO
    if name == "graphgpo":
        from tstar_train.algorithms.graphgpo import GraphGPO

        return GraphGPO
    if name == "ppo":
        from tstar_train.algorithms.ppo import PPO

        return PPO
    from tstar_train.algorithms.dapo import DAPO, DAPOPaper

    return DAPO if name == "dapo" else DAPOPaper


def algorithm_class(name: str) -> type[Algorithm]:
    """Look up an algorithm's class by its name on the command line, or import ``module:Class``.

    Raises:
        UnknownOption: no such algorithm, or what the module holds under that name is none.
    """
    from tstar_train.algorithms.base import Algorithm
    from tstar_train.config import import_named

    if name in ALGORITHMS:
        return _built_in(name)
    cls = name.rpartition(":")[2]
    if ":" not in name:
        valid = ", ".join(ALGORITHMS)
        raise UnknownOption(
            f"--algo must be one of {valid}, or module:Class for one of your own; got {name!r}"
        )
    found = import_named("--algo", name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UnknownOption(f"--algo {name}: {cls} is no subclass of tstar_train.algorithms.base.Algorithm")
    return found


def options_set_by(name: str) -> Mapping[str, Any]:
    """Look up an algorithm's default options, by their command-line names; they override a preset's.

    Raises:
        UnknownOption: no such algorithm.
    """
    return ALGORITHMS[name] if name in ALGORITHMS else algorithm_class(name).default_options
