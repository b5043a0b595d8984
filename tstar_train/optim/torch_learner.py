"""The learner of plain torch: AdamW on every rank over the same weights, gradients summed over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tstar_envs import BadData
from tstar_train.finite import checked_norm, require_finite
from tstar_train.optim.batch import Micro
from tstar_train.optim.forward import Outputs, forward
from tstar_train.policy.critic import Critic
from tstar_train.world import World


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
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        world: World,
        *,
        learning_rate: float,
        max_norm: float = 1.0,
        alpha: float = 0.95,
        critic: Critic | None = None,
        critic_rate: float = 0.0,
    ) -> None:
        self.model = model
        self.average = reference
        self.critic = critic
        self._world = world
        self._max_norm = max_norm
        self._alpha = alpha
        trained = [p for p in model.parameters() if p.requires_grad]
        theirs = list(critic.parameters()) if critic is not None else []
        apart = critic is not None and critic.trunk is not None
        self._groups = [trained, theirs] if apart else [trained + theirs]
        self._rates = [learning_rate, critic_rate][: len(self._groups)]
        groups = [{"params": group, "lr": rate} for group, rate in zip(self._groups, self._rates, strict=True)]
        self.optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
        self._part: Tensor | None = None
        self._gradient: Tensor | None = None
        self._steps = 0

    @property
    def steps(self) -> int:
        """See ``Learner``."""
        return self._steps

    def forward(self, micro: Micro) -> Outputs:
        """See ``Learner``."""
        return forward(self.model, micro, self.critic)

    @torch.no_grad()
    def frozen(self, micro: Micro) -> Outputs:
        """See ``Learner``."""
        return forward(self.model, micro, self.critic)

    @property
    def has_reference(self) -> bool:
        """See ``Learner``."""
        return self.average is not None

    @torch.no_grad()
    def reference(self, micro: Micro) -> Tensor:
        """See ``Learner``.

        Raises:
            ValueError: there is none.
        """
        if self.average is None:
            raise ValueError("this learner keeps no reference")
        logprobs = forward(self.average, micro).logprobs
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
        """See ``Learner``."""
        parameters = [p for group in self._groups for p in group]
        self._part = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        self.optimizer.zero_grad(set_to_none=True)
        checked_norm(self._part, f"the gradient of the {what} loss")

    def reduce(self, what: str) -> float:
        """See ``Learner``."""
        if self._part is None:
            raise ValueError("no part of the gradient was ended")
        part, self._part = self._world.sum(self._part), None
        norm = checked_norm(part, f"the gradient of the {what} loss of all processes together")
        self._gradient = part if self._gradient is None else self._gradient + part
        return norm

    def apply(self, factor: float) -> float:
        """See ``Learner``."""
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
        if any(norms):  # else no group had different rewards: a step would only move along the optimizer's old momentum
            for options, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                options["lr"] = rate * factor
            self._steps += 1
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norms[0]

    @torch.no_grad()
    def end_iteration(self) -> None:
        """See ``Learner``: theta_ref <- alpha * theta_ref + (1 - alpha) * theta."""
        if self.average is not None:
            for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(theirs, 1 - self._alpha)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Learner``."""
        return ((name, tensor.detach()) for name, tensor in self.model.state_dict().items() if not _tied(self.model, name))

    def save(self, folder: Path) -> None:
        """See ``Learner``; in full precision, so that a resumed run repeats bit for bit."""
        for name, module in self._modules():
            save_file(_state(module), folder / f"{name}.safetensors", metadata={"format": "pt"})
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        """See ``Learner``."""
        for name, module in self._modules():
            _restore(module, folder / f"{name}.safetensors")
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))

    def _modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        yield "policy", self.model
        if self.average is not None:
            yield "reference", self.average
        if self.critic is not None:
            yield "critic", self.critic


def _state(module: torch.nn.Module) -> dict[str, Tensor]:
    """The state without tied copies."""
    return {k: v.detach().clone().contiguous() for k, v in module.state_dict().items() if not _tied(module, k)}


def _tied(module: torch.nn.Module, name: str) -> bool:
    return name == "lm_head.weight" and bool(getattr(getattr(module, "config", None), "tie_word_embeddings", False))


@torch.no_grad()
def _restore(module: torch.nn.Module, path: Path) -> None:
    state = module.state_dict()
    loaded = load_file(path)
    expected = {k for k in state if not _tied(module, k)}
    if set(loaded) != expected:
        raise BadData(f"{path} belongs to another model: {sorted(expected ^ set(loaded))[:3]} differ")
    for name, tensor in loaded.items():
        require_finite(tensor, f"{path}, {name}")
        state[name].copy_(tensor)
