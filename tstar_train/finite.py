"""Checks for NaN and infinity: they stop a run before the weights change, and report the batch.

Every comparison with NaN is false: a clip by ``norm > limit`` passes it on, and one step later all weights are NaN, success is 0
and no error was ever raised. So what an update rests on is checked where it comes from.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tstar_envs import TStarError

_LIKELY = "a likely cause is a learning rate that is too high for this model (--optim.learning-rate), or a model that is damaged"


# Whose square is a number: the optimizer squares gradients in single precision.
_LARGEST = math.sqrt(torch.finfo(torch.float32).max)


class NotFinite(TStarError, ArithmeticError):
    """A loss, a log-probability or a gradient is NaN or infinite, or a loss has exploded; the weights are those before it.

    Attributes:
        batch: the rows that it was computed from, as plain data; empty where there are none.
    """

    def __init__(self, message: str, batch: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.batch = batch or {}


def require_finite(values: Tensor, what: str, batch: dict[str, Any] | None = None) -> None:
    """Refuse NaN and infinity.

    Args:
        values: any shape.
        what: what they are, for the message.
        batch: what they were computed from.

    Raises:
        NotFinite: at least one is no finite number.
    """
    good = torch.isfinite(values)
    if not bool(good.all()):
        raise NotFinite(
            f"{what}: {int((~good).sum())} of {good.numel()} values are NaN or infinite; {_LIKELY}", batch
        )


def require_bounded(loss: Tensor, what: str, most: float) -> None:
    """Refuse a loss that has exploded.

    Args:
        loss: of a micro-batch.
        what: which, for the message.
        most: of its size (``optim.max_loss``).

    Raises:
        NotFinite: it is larger, or no finite number.
    """
    require_finite(loss, what)
    if abs(float(loss)) > most:
        raise NotFinite(
            f"{what} is {float(loss):.4g} and has exploded (--optim.max-loss {most:g}); {_LIKELY}"
        )


def checked_norm(gradient: Tensor, what: str, batch: dict[str, Any] | None = None) -> float:
    """Return a gradient's norm, checked to be finite.

    Its squares are added up in double precision: in single precision the sum over a million entries is some 1e-4 too small.

    Raises:
        NotFinite: an entry, or the norm itself (finite entries may be too large to be squared), is no finite number.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if not norm <= _LARGEST:
        require_finite(gradient, what, batch)
        raise NotFinite(
            f"{what}: its norm overflows, its largest entry is {float(gradient.abs().max()):.3g}; {_LIKELY}",
            batch,
        )
    return norm
