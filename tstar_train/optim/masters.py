"""Weights in single precision behind a model that computes in half: what the optimizer changes.

A step of 5e-6 is smaller than the distance between two neighbouring half-precision numbers, and so are most of the gradients that
micro-batches add up: both are kept in single precision, and the model's own weights are rounded from them after every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Masters:
    """The trained parameters as the optimizer sees them; those that are not in half precision stand for themselves.

    Args:
        parameters: the model's.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._half: list[tuple[nn.Parameter, nn.Parameter]] = []
        self.parameters: list[nn.Parameter] = []
        for parameter in parameters:
            if parameter.dtype.itemsize >= 4:
                self.parameters.append(parameter)
                continue
            master = nn.Parameter(parameter.detach().float().clone())
            self._half.append((parameter, master))
            self.parameters.append(master)
            parameter.register_post_accumulate_grad_hook(self._taker(master))

    @staticmethod
    def _taker(master: nn.Parameter):  # type: ignore[no-untyped-def]
        """Adds what a backward pass left at a parameter to its master's gradient, and frees it."""

        def take(parameter: Tensor) -> None:
            if parameter.grad is None:
                return
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad += parameter.grad
            parameter.grad = None

        return take

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model."""
        for parameter, master in self._half:
            parameter.copy_(master)

    def state(self) -> dict[str, Tensor]:
        """The masters that are no parameters of the model, for a checkpoint."""
        return {f"{n:05d}": master.detach() for n, (_, master) in enumerate(self._half)}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state`` gave.

        Raises:
            KeyError: it is of another model.
        """
        for n, (_, master) in enumerate(self._half):
            master.copy_(state[f"{n:05d}"])
        self.publish()
