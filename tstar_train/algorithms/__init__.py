"""The base algorithms, one short file each behind one contract (``base``), and T-STAR, which stands on them (``tstar``)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tstar_train.algorithms.base import Algorithm

# Name on the command line -> where it is, and which options it sets where neither the user nor anything later does: they rank above
# a preset's. Imported when asked for: the formulas of this package are used where no rollout is known.
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo:GRPO", {}),
    "dapo": (
        "dapo:DAPO",
        {"optim.clip_low": 0.2, "optim.clip_high": 0.28, "optim.aggregation": "token-mean"},
    ),
    "dapo-paper": (
        "dapo:DAPOPaper",
        {"optim.clip_low": 0.2, "optim.clip_high": 0.2, "optim.aggregation": "token-mean"},
    ),
    "gigpo": ("gigpo:GiGPO", {}),
    "ppo": ("ppo:PPO", {"tstar": False}),
}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of an algorithm by its name on the command line."""
    module, _, cls = ALGORITHMS[name][0].partition(":")
    found: type[Algorithm] = getattr(import_module(f"tstar_train.algorithms.{module}"), cls)
    return found
