"""Reference policy: a moving average of the weights."""

from __future__ import annotations

import bisect
import copy
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tstar_train.distributed import BUCKET, Communicator, SingleProcess
from tstar_train.learner.batch import MicroBatch, forward


class Reference(Protocol):
    """Reference policy theta_ref: an exponential moving average of the policy, updated after every iteration."""

    def logprobs(self, micro: MicroBatch) -> Tensor:
        """Log-probabilities of the wanted tokens of a micro-batch, in nats, without a gradient."""

    def follow(self, alpha: float) -> None:
        """Update the average: theta_ref <- alpha * theta_ref + (1 - alpha) * theta."""

    @property
    def sharded(self) -> bool:
        """True if each rank has a part of the average only."""

    def gather(self) -> None:
        """Gather a sharded average on rank 0 for ``state``; all ranks call it."""

    def names(self) -> list[str]:
        """Names of the tensors of ``state``."""

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint.

        Raises:
            ValueError: it is sharded, and ``gather`` was not called since the last ``follow``.
        """

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the result of ``state``."""


# Training a whole half-precision model takes so many bytes a weight: the model, master weights, AdamW's moments, the gradient, the
# reference and its average. Activations and keys need the rest of the memory.
_BYTES_A_WEIGHT = 2 + 4 + 8 + 4 + 2 + 4
_SHARE_OF_WEIGHTS = 0.75


def device_bytes(device: torch.device | str) -> int:
    """Return the device's memory in bytes."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def average_on_device(parameters: int, processes: int, memory: int) -> bool:
    """Check whether the float32 average of a half-precision model stays on the model's device.

    Args:
        parameters: number of the model's weights.
        processes: number of processes, which share the average.
        memory: the device's, in bytes.

    Returns:
        True for several processes, and for one whose device has room for it beside all else that training takes.
    """
    return processes > 1 or _BYTES_A_WEIGHT * parameters <= _SHARE_OF_WEIGHTS * memory


class CopiedReference:
    """Reference policy as a copy of the whole model.

    For a bfloat16 or float16 model the average itself is kept in float32: a step of a twentieth towards a policy that moved by 1e-5 would
    be rounded away. It is on the model's device, and each of several processes has a part of it; one process keeps it in main memory if
    its device is too small (``average_on_device``).

    Args:
        model: the policy's model.
        start: initial reference model, used in place; None copies the policy.
        world: communicator between the ranks; None for one process.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        start: PreTrainedModel | None = None,
        world: Communicator | None = None,
    ) -> None:
        self._policy = model
        self.model = (copy.deepcopy(model) if start is None else start).requires_grad_(False).eval()
        self._world = SingleProcess() if world is None else world
        self._shards: Shards | None = None
        self._whole: dict[str, Tensor] = {}
        if model.dtype.itemsize < 4:
            parameters = list(self.model.parameters())
            count = sum(p.numel() for p in parameters)
            stays = average_on_device(count, self._world.size, device_bytes(model.device))
            self._shards = Shards(parameters, self._world, model.device if stays else torch.device("cpu"))

    @property
    def sharded(self) -> bool:
        """True if each rank has a part of the average only."""
        return self._shards is not None and self._world.size > 1

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch) -> Tensor:
        """See ``Reference``."""
        return forward(self.model, micro).logprobs

    @torch.no_grad()
    def follow(self, alpha: float) -> None:
        """See ``Reference``; all ranks call it."""
        self._whole = {}
        if self._shards is None:
            for kept, theirs in zip(self.model.parameters(), self._policy.parameters(), strict=True):
                kept.lerp_(theirs.to(kept), 1 - alpha)
            return
        self._shards.follow(list(self._policy.parameters()), 1 - alpha)
        self._shards.publish()

    def gather(self) -> None:
        """See ``Reference``."""
        if self._shards is not None:
            names = [name for name, _ in self.model.named_parameters()]
            self._whole = dict(zip(names, self._shards.gather(), strict=False))  # none on the other ranks

    def state(self) -> dict[str, Tensor]:
        """See ``Reference``."""
        if self._shards is None:
            return dict(self.model.named_parameters())
        if not self._whole and not self.sharded:
            self.gather()
        if not self._whole:
            raise ValueError(
                "the ranks' parts of the moving average were not gathered since the last iteration"
            )
        return self._whole

    def names(self) -> list[str]:
        """See ``Reference``."""
        return [name for name, _ in self.model.named_parameters()]

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """See ``Reference``."""
        self._whole = {}
        for name, parameter in self.model.named_parameters():
            parameter.copy_(state[name])
        if self._shards is not None:
            self._shards.fill([state[name] for name, _ in self.model.named_parameters()])


class Shards:
    """Float32 copies of a model's parameters, of which each rank has a contiguous part.

    Args:
        parameters: the model's; ``publish`` rounds the copies into them.
        world: communicator between the ranks.
        device: of this rank's part.
    """

    def __init__(self, parameters: Sequence[Tensor], world: Communicator, device: torch.device) -> None:
        self._parameters, self._world = parameters, world
        self._starts = [0, *itertools.accumulate(p.numel() for p in parameters)]
        self._size = -(-self._starts[-1] // world.size)  # of a part, the last one may be smaller
        self._part = torch.empty(self._length(world.rank), device=device)
        self.fill(parameters)

    def _length(self, rank: int) -> int:
        return max(0, min(self._size, self._starts[-1] - rank * self._size))

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield (parameter, its elements, elements from ``first``) of a range of all elements."""
        number = max(0, bisect.bisect_right(self._starts, first) - 1)
        while number < len(self._parameters) and self._starts[number] < last:
            start, end = max(first, self._starts[number]), min(last, self._starts[number + 1])
            if start < end:
                own = slice(start - self._starts[number], end - self._starts[number])
                yield number, own, slice(start - first, end - first)
            number += 1

    @property
    def _own(self) -> tuple[int, int]:
        first = self._world.rank * self._size
        return first, first + len(self._part)

    @torch.no_grad()
    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy this rank's part of one tensor per parameter; no more of them is read."""
        for number, theirs, mine in self._pieces(*self._own):
            self._part[mine].copy_(tensors[number].detach().reshape(-1)[theirs])

    @torch.no_grad()
    def follow(self, tensors: Sequence[Tensor], share: float) -> None:
        """Move this rank's part by a share of the way to one tensor per parameter."""
        for number, theirs, mine in self._pieces(*self._own):
            self._part[mine].lerp_(tensors[number].detach().reshape(-1)[theirs].to(self._part), share)

    @torch.no_grad()
    def publish(self) -> None:
        """Round all ranks' parts into the parameters; all ranks call it."""
        ranks = range(self._world.size)
        dtype = max((p.dtype for p in self._parameters), key=lambda dtype: dtype.itemsize)
        device = self._parameters[0].device
        # Even, since two half-precision numbers are summed as one of 32 bits; no larger than the model.
        step = max(2, min(BUCKET // self._world.size, self._size + 1) // 2 * 2)
        for at in range(0, self._size, step):
            # Every rank's elements from ``at`` on, side by side; those of other ranks are zero bits, so that the sum is exact.
            bucket = torch.zeros(len(ranks), step, dtype=dtype, device=device)
            mine = self._part[at : at + step]
            bucket[self._world.rank, : len(mine)].copy_(mine)
            if self._world.size > 1:
                self._world.all_reduce(bucket.view(torch.int32))
            for rank in ranks:
                first = rank * self._size + at
                last = min(first + step, rank * self._size + self._length(rank))
                for number, theirs, own in self._pieces(first, last):
                    self._parameters[number].view(-1)[theirs].copy_(bucket[rank, own])

    def gather(self) -> list[Tensor]:
        """Gather one float32 tensor per parameter on the first rank, on the CPU; none on the others. All ranks call it."""
        if self._world.size == 1:
            return self._split(self._part)
        whole = torch.empty(self._starts[-1]) if self._world.rank == 0 else None
        for at in range(0, self._size, BUCKET):
            parts = self._world.gather(self._part[at : at + BUCKET].cpu())
            for rank, part in enumerate(parts):
                first = rank * self._size + at
                if whole is not None:
                    whole[first : first + len(part)] = part
        return [] if whole is None else self._split(whole)

    def _split(self, whole: Tensor) -> list[Tensor]:
        """Return views of all elements, one for each parameter."""
        return [
            whole[start : start + p.numel()].view(p.shape)
            for start, p in zip(self._starts, self._parameters, strict=False)
        ]


class AdapterReference:
    """Reference policy of a model with adapters: only the adapters are averaged, and no second model is kept.

    The averaged adapters replace the model's own during each reference pass.

    Args:
        model: model whose only trained parameters are its adapters.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.sharded = False
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

    def gather(self) -> None:
        """See ``Reference``: every rank has all adapters."""

    def names(self) -> list[str]:
        """See ``Reference``."""
        return list(self._average)

    def state(self) -> dict[str, Tensor]:
        """See ``Reference``."""
        return self._average

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """See ``Reference``."""
        for name, tensor in self._average.items():
            tensor.copy_(state[name])
