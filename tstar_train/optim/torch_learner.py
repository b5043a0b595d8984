"""The learner of plain torch: AdamW on every rank over the same weights, gradients summed over the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.finite import checked_norm, require_finite
from tstar_train.optim.batch import Micro
from tstar_train.optim.files import load_module, module_state, read_tensors, tied
from tstar_train.optim.forward import Outputs, forward
from tstar_train.optim.masters import Masters
from tstar_train.optim.reference import Reference
from tstar_train.policy.critic import Critic
from tstar_train.policy.lora import has_adapters, merged_weights
from tstar_train.world import World

# Above it the parts of the gradient are not kept apart: two further copies of it would cost more than their norms tell.
PARTS_BELOW = 50_000_000


class TorchLearner:
    """See ``Learner``.

    Args:
        model: the policy's; its weights are changed in place.
        reference: its moving average, None if nothing uses it.
        world: the ranks.
        learning_rate: of AdamW.
        max_norm: gradients are scaled down to this norm.
        alpha: share of itself that the reference keeps after each iteration.
        critic: of PPO, None without one.
        critic_rate: learning rate of a critic with layers of its own, whose gradient is clipped by itself.
        recompute: whether layers are computed again in the backward pass instead of kept (gradient checkpointing).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reference: Reference | None,
        world: World,
        *,
        learning_rate: float,
        max_norm: float = 1.0,
        alpha: float = 0.95,
        critic: Critic | None = None,
        critic_rate: float = 0.0,
        recompute: bool = False,
    ) -> None:
        self.model = model
        self.average = reference
        self.critic = critic
        self._world = world
        self._max_norm = max_norm
        self._alpha = alpha
        self._recompute = recompute
        self._adapted = has_adapters(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        theirs = list(critic.parameters()) if critic is not None else []
        apart = critic is not None and critic.trunk is not None
        self._masters = Masters(trained + theirs)
        mine, others = self._masters.parameters[: len(trained)], self._masters.parameters[len(trained) :]
        self._groups = [mine, others] if apart else [mine + others]
        self._rates = [learning_rate, critic_rate][: len(self._groups)]
        groups = [{"params": group, "lr": rate} for group, rate in zip(self._groups, self._rates, strict=True)]
        self.optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
        self._whole = sum(p.numel() for p in self._masters.parameters) > PARTS_BELOW
        self._part: Tensor | None = None
        self._gradient: Tensor | None = None
        self._steps = 0

    @property
    def steps(self) -> int:
        """See ``Learner``."""
        return self._steps

    def forward(self, micro: Micro) -> Outputs:
        """See ``Learner``."""
        if not self._recompute:
            return forward(self.model, micro, self.critic)
        self.model.train()  # layers are recomputed in this mode alone; every dropout is 0
        try:
            return forward(self.model, micro, self.critic)
        finally:
            self.model.eval()

    @torch.no_grad()
    def frozen(self, micro: Micro) -> Outputs:
        """See ``Learner``."""
        return forward(self.model, micro, self.critic)

    @property
    def has_reference(self) -> bool:
        """See ``Learner``."""
        return self.average is not None

    def reference(self, micro: Micro) -> Tensor:
        """See ``Learner``.

        Raises:
            ValueError: there is none.
        """
        if self.average is None:
            raise ValueError("this learner keeps no reference")
        logprobs = self.average.logprobs(micro)
        require_finite(logprobs, "the reference's log-probabilities")
        return logprobs

    def backward(self, loss: Tensor) -> None:
        """See ``Learner``."""
        loss.backward()

    def discard(self) -> None:
        """See ``Learner``."""
        self._part = self._gradient = None
        self.optimizer.zero_grad(set_to_none=True)

    def end_part(self, what: str) -> None:
        """See ``Learner``; of a large model only whether it is finite is looked at here."""
        parameters = self._masters.parameters
        if self._whole:
            for parameter in parameters:
                if parameter.grad is not None:
                    checked_norm(parameter.grad, f"the gradient of the {what} loss")
            return
        self._part = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        self.optimizer.zero_grad(set_to_none=True)
        checked_norm(self._part, f"the gradient of the {what} loss")

    def reduce(self, what: str) -> float:
        """See ``Learner``; the norm of a part of a large model's gradient is not known (NaN)."""
        if self._whole:
            return math.nan
        if self._part is None:
            raise ValueError("no part of the gradient was ended")
        part, self._part = self._world.sum(self._part), None
        norm = checked_norm(part, f"the gradient of the {what} loss of all processes together")
        self._gradient = part if self._gradient is None else self._gradient + part
        return norm

    def apply(self, factor: float) -> float:
        """See ``Learner``."""
        norms = self._clipped_whole() if self._whole else self._clipped_parts()
        if any(norms):  # else no group had different rewards: a step would only move along the optimizer's old momentum
            for options, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                options["lr"] = rate * factor
            self._steps += 1
            self.optimizer.step()
            self._masters.publish()
        self.optimizer.zero_grad(set_to_none=True)
        return norms[0]

    def _clipped_parts(self) -> list[float]:
        """The summed gradient in place, scaled down to the norm; its norm before, for each group."""
        if self._gradient is None:
            raise ValueError("no part of the gradient was summed")
        gradient, self._gradient = self._gradient, None
        norms = []
        for group, part in zip(self._groups, gradient.split([sum(p.numel() for p in group) for group in self._groups]), strict=True):
            norm = checked_norm(part, "the gradient of all processes and losses together")
            clipped = part * (self._max_norm / norm) if norm > self._max_norm else part
            for parameter, values in zip(group, clipped.split([p.numel() for p in group]), strict=True):
                parameter.grad = values.view_as(parameter)
            norms.append(norm)
        return norms

    def _clipped_whole(self) -> list[float]:
        """As ``_clipped_parts``, without a copy of the gradient."""
        norms = []
        for group in self._groups:
            for parameter in group:
                if parameter.grad is None:  # every rank sums the same tensors
                    parameter.grad = torch.zeros_like(parameter)
                self._world.sum(parameter.grad)
            parts = torch.stack([p.grad.norm() for p in group if p.grad is not None])
            norm = checked_norm(parts, "the gradient of all processes and losses together")
            if norm > self._max_norm:
                for parameter in group:
                    if parameter.grad is not None:
                        parameter.grad.mul_(self._max_norm / norm)
            norms.append(norm)
        return norms

    def end_iteration(self) -> None:
        """See ``Learner``: theta_ref <- alpha * theta_ref + (1 - alpha) * theta."""
        if self.average is not None:
            self.average.follow(self._alpha)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Learner``; adapters are merged into the weights that they change."""
        if self._adapted:
            return ((name, tensor) for name, tensor in merged_weights(self.model) if not tied(self.model, name))
        return ((name, tensor.detach()) for name, tensor in self.model.state_dict().items() if not tied(self.model, name))

    def save(self, folder: Path) -> None:
        """See ``Learner``; all that is trained in full precision, so that a resumed run repeats bit for bit."""
        for name, state in self._parts():
            save_file(state, folder / f"{name}.safetensors", metadata={"format": "pt"})
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        """See ``Learner``."""
        if self._adapted:
            load_module(self.model, folder / "adapters.safetensors", only=self._adapters())
        else:
            load_module(self.model, folder / "policy.safetensors")
        if self._masters.rounded:
            self._masters.restore(read_tensors(folder / "masters.safetensors", self._masters.state()))
        if self.average is not None:
            self.average.restore(read_tensors(folder / "reference.safetensors", self._reference_state()))
        if self.critic is not None:
            load_module(self.critic, folder / "critic.safetensors")
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))

    def _parts(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """What ``save`` writes, file by file. ``policy`` loads as a model of its own."""
        yield "policy", {name: tensor.detach().clone().contiguous() for name, tensor in self.weights()}
        if self._adapted:
            yield "adapters", {name: self.model.state_dict()[name].detach().clone() for name in self._adapters()}
        if self._masters.rounded:
            yield "masters", self._masters.state()
        if self.average is not None:
            yield "reference", {name: tensor.detach().clone().contiguous() for name, tensor in self._reference_state().items()}
        if self.critic is not None:
            yield "critic", module_state(self.critic)

    def _adapters(self) -> list[str]:
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def _reference_state(self) -> dict[str, Tensor]:
        if self.average is None:
            return {}
        return {name: tensor for name, tensor in self.average.state().items() if not tied(self.model, name)}
