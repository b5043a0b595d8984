"""Learners: the protocol, and what the torch and DeepSpeed learners share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from tstar_envs import BadData
from tstar_train.distributed import Communicator
from tstar_train.finite import require_finite
from tstar_train.learner.batch import MicroBatch, Outputs, forward
from tstar_train.learner.reference import Reference
from tstar_train.policy.critic import Critic
from tstar_train.policy.lora import has_adapters, merged_weights


def tied(module: nn.Module, name: str) -> bool:
    """Check whether a tensor is tied to another, like an output matrix shared with the embedding."""
    return name == "lm_head.weight" and bool(
        getattr(getattr(module, "config", None), "tie_word_embeddings", False)
    )


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """Copy a module's weights, without tied ones."""
    return {k: v.detach().clone().contiguous() for k, v in module.state_dict().items() if not tied(module, k)}


def read_tensors(path: Path, expected: Collection[str]) -> dict[str, Tensor]:
    """Read the tensors of a file.

    Args:
        path: a safetensors file.
        expected: names of what it has to hold.

    Raises:
        BadData: it holds others.
        NotFinite: one of them is no number.
    """
    loaded = load_file(path)
    if set(loaded) != set(expected):
        raise BadData(f"{path} belongs to another model: {sorted(set(expected) ^ set(loaded))[:3]} differ")
    for name, tensor in loaded.items():
        require_finite(tensor, f"{path}, {name}")
    return loaded


@torch.no_grad()
def load_module(module: nn.Module, path: Path, only: Collection[str] | None = None) -> None:
    """Bring a module's weights, or only some of them, to what a file holds.

    Raises:
        BadData, NotFinite: see ``read_tensors``.
    """
    state = {
        k: v for k, v in module.state_dict().items() if not tied(module, k) and (only is None or k in only)
    }
    for name, tensor in read_tensors(path, state).items():
        state[name].copy_(tensor)


class Learner(Protocol):
    """Trains the weights of one rank, in step with those of the others.

    An optimizer step is: for each part of the loss any number of ``backward``, then ``end_part`` and ``reduce``; then ``apply``.
    """

    @property
    def steps(self) -> int:
        """Optimizer steps begun: whether the weights are still those of before."""

    @property
    def shares(self) -> bool:
        """True if the learner can compute rows with shared prefixes."""

    def forward(self, micro: MicroBatch) -> Outputs:
        """Compute outputs with a gradient, under the current weights."""

    def frozen(self, micro: MicroBatch) -> Outputs:
        """Without one, under the current weights."""

    @property
    def has_reference(self) -> bool:
        """True if there is a reference policy."""

    def reference(self, micro: MicroBatch) -> Tensor:
        """Log-probabilities of the wanted tokens under the moving average of the policy, without a gradient."""

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradient to what is accumulated; ranks may call it different numbers of times."""

    def abandon(self) -> None:
        """Let the others know, who may wait in ``backward``, that this rank cannot finish its part; all ranks then raise."""

    def discard(self) -> None:
        """Forget the step's gradient."""

    def end_part(self, what: str) -> None:
        """Take what was accumulated as a whole part of this rank's gradient.

        Raises:
            NotFinite: it is no number.
        """

    def reduce(self, what: str) -> float:
        """Sum the part over all ranks and add it to the step's gradient; the norm of the sum.

        Raises:
            NotFinite: it is no number.
        """

    def apply(self, factor: float) -> float:
        """Clip the step's gradient by its norm and take the step, unless it is zero everywhere.

        Args:
            factor: of the learning rates.

        Returns:
            The norm before it was clipped.

        Raises:
            NotFinite: it is no number; the step is not taken.
        """

    def end_iteration(self) -> None:
        """Update the reference policy's moving average."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the policy's weights by name, for the sampling engine."""

    @property
    def saves_alone(self) -> bool:
        """True if the first rank can ``save`` without ``gather``, even after other ranks failed."""

    def gather(self) -> None:
        """Bring to the first rank what it needs to ``save``; all ranks call it, between iterations."""

    def save(self, folder: Path) -> None:
        """Write all that the learner's future depends on; the first rank alone calls it.

        Raises:
            ValueError: ``gather`` was not called since the last step.
        """

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            BadData: a file is damaged, or of another model.
        """


class PolicyLearner(ABC):
    """The part of a ``Learner`` that computes and keeps weights. Checkpoints are the same whichever learner wrote them.

    Args:
        model: the policy's; its weights are changed in place.
        reference: its moving average, None if nothing uses it.
        world: communicator between the ranks.
        learning_rate: of AdamW.
        max_norm: gradients are scaled down to this norm.
        alpha: share of itself that the reference keeps after each iteration.
        critic: of PPO, None without one.
        critic_rate: learning rate of a critic with layers of its own, whose gradient is clipped by itself.
        recompute: whether layers are computed again in the backward pass instead of kept (gradient checkpointing).
    """

    saves_alone = True

    def __init__(
        self,
        model: PreTrainedModel,
        reference: Reference | None,
        world: Communicator,
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
        self._steps = 0
        groups = trained_groups(model, critic)
        self._set_up(groups, [learning_rate, critic_rate][: len(groups)])

    @property
    def steps(self) -> int:
        """See ``Learner``."""
        return self._steps

    @property
    def shares(self) -> bool:
        """See ``Learner``: layers that are computed again keep no keys and values for others."""
        return not self._recompute

    def forward(self, micro: MicroBatch) -> Outputs:
        """See ``Learner``."""
        if not self._recompute:
            return forward(self.model, micro, self.critic)
        self.model.train()  # layers are recomputed in this mode alone; every dropout is 0
        try:
            return forward(self.model, micro, self.critic)
        finally:
            self.model.eval()

    @torch.no_grad()
    def frozen(self, micro: MicroBatch) -> Outputs:
        """See ``Learner``."""
        return forward(self.model, micro, self.critic)

    @property
    def has_reference(self) -> bool:
        """See ``Learner``."""
        return self.average is not None

    def reference(self, micro: MicroBatch) -> Tensor:
        """See ``Learner``.

        Raises:
            ValueError: there is none.
        """
        if self.average is None:
            raise ValueError("this learner keeps no reference")
        logprobs = self.average.logprobs(micro)
        require_finite(logprobs, "the reference's log-probabilities")
        return logprobs

    def end_iteration(self) -> None:
        """See ``Learner``: theta_ref <- alpha * theta_ref + (1 - alpha) * theta."""
        if self.average is not None:
            self.average.follow(self._alpha)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See ``Learner``; adapters are merged into the weights that they change."""
        if self._adapted:
            return (
                (name, tensor) for name, tensor in merged_weights(self.model) if not tied(self.model, name)
            )
        return (
            (name, tensor.detach())
            for name, tensor in self.model.state_dict().items()
            if not tied(self.model, name)
        )

    def gather(self) -> None:
        """See ``Learner``: every rank has everything."""
        return

    def save(self, folder: Path) -> None:
        """See ``Learner``; all that is trained in full precision, so that a resumed run repeats bit for bit."""
        for name, state in self._parts():
            save_file(state, folder / f"{name}.safetensors", metadata={"format": "pt"})
        torch.save(self._optimizer_state(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        """See ``Learner``."""
        if self._adapted:
            load_module(self.model, folder / "adapters.safetensors", only=self._adapters())
        else:
            load_module(self.model, folder / "policy.safetensors")
        if self.critic is not None:
            load_module(self.critic, folder / "critic.safetensors")
        names = self._master_names()
        self._restore_master_weights(read_tensors(folder / "masters.safetensors", names) if names else {})
        if self.average is not None:
            self.average.restore(read_tensors(folder / "reference.safetensors", self._reference_state()))
        self._restore_optimizer(torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu"))

    def _parts(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield the tensors of each file that ``save`` writes; ``policy`` loads as a model."""
        yield "policy", {name: tensor.detach().clone().contiguous() for name, tensor in self.weights()}
        if self._adapted:
            yield (
                "adapters",
                {name: self.model.state_dict()[name].detach().clone() for name in self._adapters()},
            )
        if masters := self._master_weights_state():
            yield "masters", masters
        if self.average is not None:
            yield (
                "reference",
                {
                    name: tensor.detach().clone().contiguous()
                    for name, tensor in self._reference_state().items()
                },
            )
        if self.critic is not None:
            yield "critic", module_state(self.critic)

    def _adapters(self) -> list[str]:
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def _reference_state(self) -> dict[str, Tensor]:
        if self.average is None:
            return {}
        return {name: tensor for name, tensor in self.average.state().items() if not tied(self.model, name)}

    @abstractmethod
    def _set_up(self, groups: list[list[torch.nn.Parameter]], rates: list[float]) -> None:
        """Make the optimizer, the last thing of the constructor.

        Args:
            groups: what is trained; the gradients of a group are clipped together.
            rates: learning rate of each group.
        """

    @abstractmethod
    def _master_names(self) -> Sequence[str]:
        """Names of the single-precision weights behind those in half precision, counted in order; none where nothing is in half."""

    @abstractmethod
    def _master_weights_state(self) -> dict[str, Tensor]:
        """Return the master weights by name."""

    @abstractmethod
    def _restore_master_weights(self, state: dict[str, Tensor]) -> None:
        """Take over what ``_master_weights_state`` gave; the model's own weights were read before."""

    @abstractmethod
    def _optimizer_state(self) -> dict[str, Any]:
        """State of AdamW, as torch gives it: by number of the trained parameter, those of the policy first."""

    @abstractmethod
    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        """Take over what ``_optimizer_state`` gave."""


def trained_groups(model: PreTrainedModel, critic: Critic | None) -> list[list[torch.nn.Parameter]]:
    """Parameters whose gradients are clipped together; a critic with layers of its own is a group of its own."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if critic is None:
        return [trained]
    return (
        [trained, list(critic.parameters())]
        if critic.trunk is not None
        else [trained + list(critic.parameters())]
    )
