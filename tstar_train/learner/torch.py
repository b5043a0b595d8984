"""Learner with torch's optimizers and float32 master weights; every rank has the full optimizer state."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tstar_train.distributed import BUCKET, Communicator
from tstar_train.finite import checked_norm
from tstar_train.learner.base import Norms, PolicyLearner, summed_part
from tstar_train.learner.optimizers import Optimizers, layer_matrices


class MasterWeights:
    """Trained parameters for the optimizer: float32 copies of bfloat16 and float16 parameters, and the others themselves.

    Args:
        parameters: the model's trained parameters.
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
        """Make a hook that adds a parameter's gradient to its master weight's gradient and frees it."""

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
        """Round the master weights into the model."""
        for parameter, master in self._half:
            parameter.copy_(master)

    def state(self) -> dict[str, Tensor]:
        """Return the master weights that are not model parameters, for a checkpoint."""
        return {f"{n:05d}": master.detach() for n, (_, master) in enumerate(self._half)}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the result of ``state``.

        Raises:
            KeyError: the state belongs to another model.
        """
        for n, (_, master) in enumerate(self._half):
            master.copy_(state[f"{n:05d}"])
        self.publish()


# Maximum number of trained weights for which the parts of the gradient are kept apart. For larger models the norms of the parts are not
# worth two more copies of the gradient.
PARTS_BELOW = 50_000_000


def sum_in_buckets(world: Communicator, tensors: Sequence[Tensor]) -> None:
    """Sum tensors over the ranks, in place; few large sums take less time than one for each tensor.

    Args:
        world: communicator between the ranks.
        tensors: contiguous, of one dtype and device, the same shapes on every rank.
    """
    pieces = [piece for tensor in tensors for piece in tensor.view(-1).split(BUCKET)]
    while pieces:
        count, entries = 0, 0
        while count < len(pieces) and (not count or entries + pieces[count].numel() <= BUCKET):
            entries += pieces[count].numel()
            count += 1
        bucket, pieces = pieces[:count], pieces[count:]
        if count == 1:
            world.all_reduce(bucket[0])
            continue
        summed = world.all_reduce(torch.cat(bucket)).split([piece.numel() for piece in bucket])
        for piece, values in zip(bucket, summed, strict=True):
            piece.copy_(values)


class TorchLearner(PolicyLearner):
    """See ``Learner``; for the arguments see ``PolicyLearner``.

    Attributes:
        parts: this rank's gradient of each part of the step, flat, by name; empty for a large model, whose parts are summed at once.
    """

    def _set_up(self, groups: list[list[torch.nn.Parameter]], rates: list[float]) -> None:
        self._master_weights = MasterWeights([p for group in groups for p in group])
        kept = iter(self._master_weights.parameters)
        self._groups = [[next(kept) for _ in group] for group in groups]
        modules = [
            self.model,
            *([] if self.critic is None or self.critic.trunk is None else [self.critic.trunk]),
        ]
        inner = {id(p) for module in modules for p in layer_matrices(module)}
        trained = [p for group in groups for p in group]
        masters = zip(trained, self._master_weights.parameters, strict=True)
        self.optimizer = Optimizers(
            self._groups, rates, self._options, {id(master) for p, master in masters if id(p) in inner}
        )
        self._whole = sum(p.numel() for p in self._master_weights.parameters) > PARTS_BELOW
        self.parts: dict[str, Tensor] = {}

    @property
    def gradient(self) -> Tensor | None:
        """Own gradient of the step so far, the parts together; None without parts and for a large model."""
        return functools.reduce(torch.add, self.parts.values()) if self.parts else None

    def backward(self, loss: Tensor) -> None:
        """See ``Learner``."""
        loss.backward()

    def abandon(self) -> None:
        """See ``Learner``: no rank waits in a backward pass."""
        return

    def discard(self) -> None:
        """See ``Learner``."""
        self.parts = {}
        self.optimizer.zero_grad()

    def end_part(self, what: str) -> None:
        """See ``Learner``."""
        parameters = self._master_weights.parameters
        if self._whole:
            for parameter in parameters:
                if parameter.grad is not None:
                    checked_norm(parameter.grad, f"the gradient of the {what} loss")
            return
        part = torch.cat(
            [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters]
        )
        self.optimizer.zero_grad()
        checked_norm(part, f"the gradient of the {what} loss")
        self.parts[what] = part

    def add_part(self, what: str) -> None:
        """See ``Learner``: ``end_part`` has done it."""
        return

    def apply(self, factor: float) -> Norms:
        """See ``Learner``."""
        parts: dict[str, float] = {}
        if self._whole:
            norms = self._clipped_whole()
        else:
            gradient, parts = self._summed_parts()
            norms = self._clipped(gradient)
        # If all norms are 0, no group had different rewards: a step would only follow the optimizer's old momentum.
        if any(norms):
            self._steps += 1
            self.optimizer.step(factor)
            self._master_weights.publish()
        self.optimizer.zero_grad()
        return Norms(norms[0], parts)

    def _summed_parts(self) -> tuple[Tensor, dict[str, float]]:
        """Sum the parts over the ranks, all of them together; return the step's gradient and the norm of each part."""
        if not self.parts:
            raise ValueError("no part of the gradient was ended")
        parts, self.parts = self.parts, {}
        if self._world.size > 1:
            sum_in_buckets(self._world, list(parts.values()))
        norms = {what: checked_norm(part, summed_part(what)) for what, part in parts.items()}
        return functools.reduce(torch.add, parts.values()), norms

    def _clipped(self, gradient: Tensor) -> list[float]:
        """Clip the step's gradient and hand it to the parameters; return each group's norm before clipping."""
        norms = []
        for group, part in zip(
            self._groups,
            gradient.split([sum(p.numel() for p in group) for group in self._groups]),
            strict=True,
        ):
            norm = checked_norm(part, "the gradient of all processes and losses together")
            clipped = part * (self._max_norm / norm) if norm > self._max_norm else part
            for parameter, values in zip(group, clipped.split([p.numel() for p in group]), strict=True):
                parameter.grad = values.view_as(parameter)
            norms.append(norm)
        return norms

    def _clipped_whole(self) -> list[float]:
        """Sum and clip as for a small model, without a copy of the gradient."""
        norms = []
        for group in self._groups:
            gradients = []
            for parameter in group:
                if parameter.grad is None:  # all ranks must all-reduce the same tensors
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
            if self._world.size > 1:
                sum_in_buckets(self._world, gradients)
            parts = [
                checked_norm(p.grad, "the gradient of all processes and losses together")
                for p in group
                if p.grad is not None
            ]
            norm = checked_norm(
                torch.tensor(parts, dtype=torch.float64), "the gradient of all processes and losses together"
            )
            if norm > self._max_norm:
                for parameter in group:
                    if parameter.grad is not None:
                        parameter.grad.mul_(self._max_norm / norm)
            norms.append(norm)
        return norms

    def _master_names(self) -> Sequence[str]:
        return list(self._master_weights.state())

    def _master_weights_state(self) -> dict[str, Tensor]:
        return self._master_weights.state()

    def _restore_master_weights(self, state: dict[str, Tensor]) -> None:
        self._master_weights.restore(state)

    def _optimizer_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
