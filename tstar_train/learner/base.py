"""Learner protocol, and the base class of the torch and DeepSpeed learners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from tstar_envs import BadData
from tstar_train.distributed import Communicator
from tstar_train.finite import require_finite
from tstar_train.learner.batch import MicroBatch, Outputs, forward
from tstar_train.learner.optimizers import OptimizerOptions
from tstar_train.learner.prefixes import Sharing, sharing_of
from tstar_train.learner.reference import Reference
from tstar_train.learner.state import LearnerState
from tstar_train.policy.critic import Critic
from tstar_train.policy.lora import has_adapters, merged_weights
from tstar_train.progress import progress


def tied(module: nn.Module, name: str) -> bool:
    """Check whether a tensor is tied to another, like an output matrix shared with the embedding."""
    return name == "lm_head.weight" and bool(
        getattr(getattr(module, "config", None), "tie_word_embeddings", False)
    )


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's weights, without tied ones."""
    return {k: v.detach() for k, v in module.state_dict().items() if not tied(module, k)}


def read_tensors(path: Path, expected: Collection[str], mapped: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a file.

    Args:
        path: a safetensors file.
        expected: tensor names that the file must have, and no others.
        mapped: True to map the file, of which only what is used is then read; values are not checked.

    Raises:
        BadData: its tensor names differ.
        NotFinite: a tensor has NaN or infinite values.
    """
    with safe_open(path, framework="pt") as file:
        if set(file.keys()) != set(expected):
            raise BadData(
                f"{path} belongs to another model: {sorted(set(expected) ^ set(file.keys()))[:3]} differ"
            )
        loaded = {}
        for name in file.keys():  # noqa: SIM118  # no mapping
            loaded[name] = file.get_tensor(name)
            if not mapped:
                require_finite(loaded[name], f"{path}, {name}")
            progress.advance()
    return loaded


@torch.no_grad()
def load_module(module: nn.Module, path: Path, only: Collection[str] | None = None) -> None:
    """Load a module's weights from a file, in place.

    Args:
        module: the module to load into.
        path: a safetensors file.
        only: names of the weights to load; None loads all.

    Raises:
        BadData, NotFinite: see ``read_tensors``.
    """
    state = {
        k: v for k, v in module.state_dict().items() if not tied(module, k) and (only is None or k in only)
    }
    for name, tensor in read_tensors(path, state).items():
        state[name].copy_(tensor)


class Norms(NamedTuple):
    """Norms of a step's gradient, summed over all ranks.

    Attributes:
        whole: norm of the sum of all parts.
        parts: norm of each part, by name; empty for a large model, where they are not worth copies of the gradient.
    """

    whole: float
    parts: dict[str, float]


def summed_part(what: str) -> str:
    """Describe the sum of a part over all ranks, for messages."""
    return f"the gradient of the {what} loss of all processes together"


class Learner(Protocol):
    """Trains the policy's weights on one rank; all ranks take the same optimizer steps.

    One optimizer step: for each part of the loss call ``backward`` any number of times, then ``end_part`` and ``add_part``. Call ``apply``
    after the last part.
    """

    @property
    def steps(self) -> int:
        """Number of optimizer steps begun; unchanged means unchanged weights."""

    @property
    def sharing(self) -> Sharing | None:
        """Costs by which rows share prefixes; None if the learner computes each row whole."""

    def forward(self, micro: MicroBatch) -> Outputs:
        """Compute outputs with a gradient, with the current weights."""

    def frozen(self, micro: MicroBatch) -> Outputs:
        """Compute outputs without a gradient, with the current weights."""

    @property
    def has_reference(self) -> bool:
        """True if the learner keeps a reference policy."""

    def reference(self, micro: MicroBatch) -> Tensor:
        """Log-probabilities of the wanted tokens under the reference policy, in nats, without a gradient."""

    def backward(self, loss: Tensor) -> None:
        """Accumulate a loss's gradient; ranks may call it different numbers of times."""

    def abandon(self) -> None:
        """Tell ranks that wait in ``backward`` that this rank has failed; all ranks then raise."""

    def discard(self) -> None:
        """Drop the step's gradient."""

    def end_part(self, what: str) -> None:
        """Finish one part of the loss on this rank.

        Args:
            what: name of the part for error messages, such as "base".

        Raises:
            NotFinite: this rank's gradient has NaN or infinite values.
        """

    def add_part(self, what: str) -> None:
        """Add the part to the step's gradient; all ranks call it, once none of them has failed."""

    def apply(self, factor: float) -> Norms:
        """Sum the step's gradient over the ranks, clip it by its norm and take the step, unless it is zero everywhere.

        Args:
            factor: multiplier of the learning rates.

        Returns:
            The gradient's norms before clipping.

        Raises:
            NotFinite: a norm is NaN or infinite; the step is not taken.
        """

    def end_iteration(self) -> None:
        """Update the reference policy's moving average."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the policy's weights by name, for the sampling engine."""

    @property
    def saves_alone(self) -> bool:
        """True if rank 0 has the whole ``state`` without ``gather``, even after other ranks failed."""

    def gather(self) -> None:
        """Gather sharded state on rank 0 for ``state``; all ranks call it, between iterations."""

    def state(self) -> LearnerState:
        """Return the learner's full state for a checkpoint; only rank 0 calls it.

        Raises:
            ValueError: ``gather`` was not called since the last step.
        """

    def load(self, folder: Path) -> None:
        """Read what ``state().write(folder)`` wrote.

        Raises:
            BadData: a file is damaged, or of another model.
        """


class PolicyLearner(ABC):
    """Base class of learners: forward passes, reference policy and checkpoints.

    All learners write the same checkpoint format.

    Args:
        model: the policy's model; its weights are changed in place.
        reference: moving average of the policy, None if nothing uses it.
        world: communicator between the ranks.
        learning_rate: peak learning rate.
        max_norm: maximum gradient norm; larger gradients are scaled down to it.
        alpha: decay of the reference's moving average per iteration.
        critic: critic of PPO, None without one.
        critic_rate: learning rate of a critic with its own layers; its gradient is clipped separately.
        recompute: True for gradient checkpointing.
        optimizer: options of the optimizer.
    """

    # True if a rank needs only a part of the optimizer's state.
    _reads_part = False

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
        optimizer: OptimizerOptions | None = None,
    ) -> None:
        self._options = OptimizerOptions() if optimizer is None else optimizer
        self.model = model
        self.average = reference
        self.critic = critic
        self._world = world
        self._max_norm = max_norm
        self._alpha = alpha
        self._sharing = None if recompute else sharing_of(model.config)
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
    def saves_alone(self) -> bool:
        """See ``Learner``."""
        return self.average is None or not self.average.sharded

    @property
    def sharing(self) -> Sharing | None:
        """See ``Learner``: gradient checkpointing keeps no keys and values to share."""
        return self._sharing

    def forward(self, micro: MicroBatch) -> Outputs:
        """See ``Learner``."""
        if not self._recompute:
            return forward(self.model, micro, self.critic)
        self.model.train()  # gradient checkpointing needs training mode; every dropout is 0
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
            ValueError: the learner has no reference.
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
        """See ``Learner``; adapters are merged into the base weights."""
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
        """See ``Learner``; only a sharded moving average is not on every rank."""
        if self.average is not None:
            self.average.gather()

    def state(self) -> LearnerState:
        """See ``Learner``; trained weights are in full precision, so a resumed run repeats bit for bit."""
        return LearnerState(self._parts(), self._optimizer_state(), self._gathered_files())

    def load(self, folder: Path) -> None:
        """See ``Learner``."""
        if self._adapted:
            load_module(self.model, folder / "adapters.safetensors", only=self._adapters())
        else:
            load_module(self.model, folder / "policy.safetensors")
        if self.critic is not None:
            load_module(self.critic, folder / "critic.safetensors")
        names, path = self._master_names(), folder / "masters.safetensors"
        self._restore_master_weights(read_tensors(path, names, mapped=self._reads_part) if names else {})
        if self.average is not None:
            self.average.restore(read_tensors(folder / "reference.safetensors", self._reference_names()))
        self._restore_optimizer(
            torch.load(
                folder / "optimizer.pt", weights_only=True, map_location="cpu", mmap=self._reads_part or None
            )
        )

    def _parts(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield (file name, tensors) of each file of ``state``; ``policy`` loads as a model."""
        yield "policy", dict(self.weights())
        if self._adapted:
            yield "adapters", {name: self.model.state_dict()[name] for name in self._adapters()}
        if masters := self._master_weights_state():
            yield "masters", masters
        if self.average is not None:
            state = self.average.state()
            yield "reference", {name: state[name] for name in self._reference_names()}
        if self.critic is not None:
            yield "critic", module_state(self.critic)

    def _gathered_files(self) -> list[str]:
        """Name the files of ``state`` that ``gather`` made: the next step drops their tensors, and changes none."""
        return ["reference"] if self.average is not None and self.average.sharded else []

    def _adapters(self) -> list[str]:
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    def _reference_names(self) -> list[str]:
        names = [] if self.average is None else self.average.names()
        return [name for name in names if not tied(self.model, name)]

    @abstractmethod
    def _set_up(self, groups: list[list[torch.nn.Parameter]], rates: list[float]) -> None:
        """Make the optimizer, at the end of the constructor.

        Args:
            groups: trained parameters; the gradients of a group are clipped together.
            rates: learning rate of each group.
        """

    @abstractmethod
    def _master_names(self) -> Sequence[str]:
        """Names of the float32 master weights, numbered in order; empty if no trained parameter is in bfloat16 or float16."""

    @abstractmethod
    def _master_weights_state(self) -> dict[str, Tensor]:
        """Return the master weights by name."""

    @abstractmethod
    def _restore_master_weights(self, state: dict[str, Tensor]) -> None:
        """Restore the result of ``_master_weights_state``; the model's own weights are loaded before."""

    @abstractmethod
    def _optimizer_state(self) -> dict[str, Any]:
        """Return the optimizer's state as torch's ``state_dict``: by number of the trained parameter, policy first, then critic."""

    @abstractmethod
    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        """Restore the result of ``_optimizer_state``."""


def trained_groups(model: PreTrainedModel, critic: Critic | None) -> list[list[torch.nn.Parameter]]:
    """Group parameters whose gradients are clipped together; a critic with its own layers is a separate group."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if critic is None:
        return [trained]
    return (
        [trained, list(critic.parameters())]
        if critic.trunk is not None
        else [trained + list(critic.parameters())]
    )
