"""The base algorithms, one short file each behind one contract (``base``), and T-STAR, which stands on them (``tstar``)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tstar_envs import UnknownOption

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
    """The class of an algorithm by its name on the command line, or as ``module:Class``.

    Raises:
        UnknownOption: no such algorithm, or what the module holds under that name is none.
    """
    from tstar_train.algorithms.base import Algorithm

    own = name not in ALGORITHMS
    module, colon, cls = (name if own else f"tstar_train.algorithms.{ALGORITHMS[name][0]}").partition(":")
    if not colon:
        valid = ", ".join(ALGORITHMS)
        raise UnknownOption(
            f"--algo must be one of {valid}, or module:Class for one of your own; got {name!r}"
        )
    try:
        found = getattr(import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise UnknownOption(
            f"--algo {name}: {error}; start where {module} can be imported, or set PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UnknownOption(f"--algo {name}: {cls} is no subclass of tstar_train.algorithms.base.Algorithm")
    return found


def options_set_by(name: str) -> Mapping[str, Any]:
    """The options that an algorithm sets, by their names on the command line; they rank above a preset's.

    Raises:
        UnknownOption: no such algorithm.
    """
    return ALGORITHMS[name][1] if name in ALGORITHMS else algorithm_class(name).sets
