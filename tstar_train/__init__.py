"""Trainer of agents with T-STAR: ``python -m tstar_train --env hotpotqa``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tstar_train.run import train
    from tstar_train.warmstart import build_weights

__version__ = "0.1.0"
__all__ = ["build_weights", "train"]


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first asked for: that takes seconds."""
    if name == "train":
        from tstar_train.run import train

        return train
    if name == "build_weights":
        from tstar_train.warmstart import build_weights

        return build_weights
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
