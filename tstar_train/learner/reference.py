"""Reference policy: a moving average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.learner.batch import MicroBatch, forward


class Reference(Protocol):
    """Reference policy theta_ref: an exponential moving average of the policy, updated after every iteration."""

    def logprobs(self, micro: MicroBatch) -> Tensor:
        """Log-probabilities of the wanted tokens of a micro-batch, in nats, without a gradient."""

    def follow(self, alpha: float) -> None:
        """Update the average: theta_ref <- alpha * theta_ref + (1 - alpha) * theta."""

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the result of ``state``."""


class CopiedReference:
    """Reference policy as a copy of the whole model.

    For a bfloat16 or float16 model the average itself is kept in float32 on the CPU: a step of a twentieth towards a policy that moved by
    1e-5 would be rounded away.

    Args:
        model: the policy's model.
        start: initial reference model, used in place; None copies the policy.
    """

    def __init__(self, model: PreTrainedModel, start: PreTrainedModel | None = None) -> None:
        self._policy = model
        self.model = (copy.deepcopy(model) if start is None else start).requires_grad_(False).eval()
        half = model.dtype.itemsize < 4
        self._precise = [p.detach().float().cpu().clone() for p in self.model.parameters()] if half else None

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch) -> Tensor:
        """See ``Reference``."""
        return forward(self.model, micro).logprobs

    @torch.no_grad()
    def follow(self, alpha: float) -> None:
        """See ``Reference``."""
        mine = self._precise or list(self.model.parameters())
        for kept, theirs in zip(mine, self._policy.parameters(), strict=True):
            kept.lerp_(theirs.to(kept), 1 - alpha)
        self._round()

    def state(self) -> dict[str, Tensor]:
        """See ``Reference``."""
        named = dict(self.model.named_parameters())
        return {**named} if self._precise is None else dict(zip(named, self._precise, strict=True))

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """See ``Reference``."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self._round()

    def _round(self) -> None:
        if self._precise is not None:
            for parameter, kept in zip(self.model.parameters(), self._precise, strict=True):
                parameter.copy_(kept)


class AdapterReference:
    """Reference policy of a model with adapters: only the adapters are averaged, and no second model is kept.

    The averaged adapters replace the model's own during each reference pass.

    Args:
        model: model whose only trained parameters are its adapters.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._average = {name: p.detach().clone() for name, p in self._trained.items()}

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        own = {name: p.data for name, p in self._trained.items()}
        try:
            for name, p in self._trained.items():
                p.data = self._average[name]
            yield
        finally:
            for name, p in self._trained.items():
                p.data = own[name]

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch) -> Tensor:
        """See ``Reference``."""
        with self._in_place():
            return forward(self._model, micro).logprobs

    @torch.no_grad()
    def follow(self, alpha: float) -> None:
        """See ``Reference``."""
        for name, p in self._trained.items():
            self._average[name].lerp_(p, 1 - alpha)

    def state(self) -> dict[str, Tensor]:
        """See ``Reference``."""
        return self._average

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """See ``Reference``."""
        for name, tensor in self._average.items():
            tensor.copy_(state[name])
