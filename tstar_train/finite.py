"""Checks for NaN and infinity: they stop a run before the weights change, and report the batch.

Every comparison with NaN is false: clipping by ``norm > limit`` lets NaN pass, and one step later all weights are NaN, without any error.
So every input of an update is checked at its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tstar_envs import TStarError

_LIKELY = "a likely cause is a learning rate that is too high for this model (--optim.learning-rate), or a model that is damaged"


# Largest number with a finite square: the optimizer squares gradients in float32.
_LARGEST = math.sqrt(torch.finfo(torch.float32).max)


class NotFinite(TStarError, ArithmeticError):
    """A loss, a log-probability or a gradient is NaN or infinite, or a loss has exploded; the weights are unchanged.

    Attributes:
        batch: rows of the failed computation, as plain data; may be empty.
    """

    def __init__(self, message: str, batch: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.batch = batch or {}


def require_finite(values: Tensor, what: str, batch: dict[str, Any] | None = None) -> None:
    """Refuse NaN and infinity.

    Args:
        values: tensor of any shape.
        what: description of the values for the message.
        batch: rows that they were computed from.

    Raises:
        NotFinite: at least one value is NaN or infinite.
    """
    good = torch.isfinite(values)
    if not bool(good.all()):
        raise NotFinite(
            f"{what}: {int((~good).sum())} of {good.numel()} values are NaN or infinite; {_LIKELY}", batch
        )


def require_bounded(loss: Tensor, what: str, most: float) -> None:
    """Refuse a loss that has exploded.

    Args:
        loss: loss of a micro-batch.
        what: name of the loss for the message.
        most: maximum absolute loss (``optim.max_loss``).

    Raises:
        NotFinite: the loss is larger, NaN or infinite.
    """
    require_finite(loss, what)
    if abs(float(loss)) > most:
        raise NotFinite(
            f"{what} is {float(loss):.4g} and has exploded (--optim.max-loss {most:g}); {_LIKELY}"
        )


def checked_norm(gradient: Tensor, what: str, batch: dict[str, Any] | None = None) -> float:
    """Return a gradient's norm, checked to be finite.

    Squares are summed in float64: in float32 the sum over a million entries is some 1e-4 too small.

    Raises:
        NotFinite: an entry is NaN or infinite, or the norm overflows (finite entries may be too large to square).
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if not norm <= _LARGEST:
        require_finite(gradient, what, batch)
        raise NotFinite(
            f"{what}: its norm overflows, its largest entry is {float(gradient.abs().max()):.3g}; {_LIKELY}",
            batch,
        )
    return norm


@contextmanager
def rounding_subnormals() -> Iterator[None]:
    """Compute with zero in place of numbers below 1.2e-38, on the CPU, in this thread.

    Peaked attention gives such gradients: 2 to 4 % of those in the layers of the built-in policies, whose largest are near 1e-6. A CPU
    computes with them so slowly that an update takes twice as long.
    """
    before = bool((torch.full((1,), 1e-39) * 0.5 == 0).item())
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
