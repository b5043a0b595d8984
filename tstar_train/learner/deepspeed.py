"""DeepSpeed's ZeRO-2."""

from __future__ import annotations

import atexit
import logging
import math
import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tstar_envs import MissingExtra
from tstar_train.distributed import Communicator, RankFailed
from tstar_train.finite import NotFinite
from tstar_train.learner.base import PolicyLearner
from tstar_train.learner.batch import MicroBatch
from tstar_train.learner.torch import PARTS_BELOW

BUCKET = 500_000_000  # gradients that are summed over the ranks together, at most; DeepSpeed's own choice


class Zero:
    """AdamW over parameters of which each rank updates a part.

    Args:
        groups: parameters of one precision each; other ranks give the same ones in the same order.
        world: the ranks, whose process group is used.
        device: of the parameters.
    """

    def __init__(
        self, groups: Sequence[Sequence[nn.Parameter]], world: Communicator, device: torch.device
    ) -> None:
        self._world = world
        self._device = device
        options = [{"params": list(group)} for group in groups]
        # DeepSpeed's own would be compiled first.
        client = torch.optim.AdamW(options, lr=0.0, betas=(0.9, 0.99), weight_decay=0.0)
        # Frozen layers and buffers are left alone.
        holder = nn.ParameterList([p for group in groups for p in group])
        with _environment(device):
            deepspeed = import_deepspeed(device)
            if not dist.is_initialized():  # a group of one, so that none is looked for by MPI
                dist.init_process_group(_backend(device), store=dist.HashStore(), rank=0, world_size=1)
                atexit.register(_leave)
            self._engine = deepspeed.initialize(
                model=holder, optimizer=client, config=_OPTIONS, dist_init_required=False
            )[0]
        self._zero = self._engine.optimizer
        # It would take the gradient's norm in double precision at once, for a clipping that the learner does.
        self._zero.compute_grad_norm = False
        self._engine.set_gradient_accumulation_boundary(False)

    def backward(self, loss: Tensor, last: bool = False) -> None:
        """Add a loss's gradient, summed over the ranks; all ranks call it, over the same layers.

        Args:
            loss: this rank's, a scalar.
            last: whether ``take`` follows.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed takes the mean over the ranks.
        self._engine.backward(loss * self._world.size, scale_wrt_gas=False)

    def take(self) -> list[Tensor]:
        """Take this rank's part of what was accumulated, and forget it: for each group a vector in single precision."""
        taken = []
        for n, part in enumerate(self._zero.single_partition_of_fp32_groups):
            flat, at = torch.zeros_like(part, dtype=torch.float32), 0
            for piece in self._zero.averaged_gradients[n]:
                flat[at : at + piece.numel()] = piece.flatten()
                at += piece.numel()
            taken.append(flat)
        self.forget()
        return taken

    def forget(self) -> None:
        """Forget what was accumulated."""
        self._zero.averaged_gradients, self._zero.all_grad_tensors = {}, {}
        self._zero.zero_grad(set_to_none=True)

    def step(self, gradient: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Let AdamW take a step, and every rank have the weights.

        Args:
            gradient: this rank's part of each group.
            rates: learning rate of each group.
        """
        self._zero.averaged_gradients = {n: [part] for n, part in enumerate(gradient)}
        self._zero.all_grad_tensors = dict.fromkeys(range(len(gradient)))
        for options, rate in zip(self._zero.optimizer.param_groups, rates, strict=True):
            options["lr"] = rate
        with warnings.catch_warnings():  # torch has renamed a call that DeepSpeed makes
            warnings.simplefilter("ignore", FutureWarning)
            self._zero.step()

    def master_weights(self, group: int) -> list[Tensor]:
        """Gather a group's float32 weights on the first rank; all ranks call it."""
        return self._whole(group, self._zero.single_partition_of_fp32_groups[group].detach())

    def restore_master_weights(self, group: int, weights: Sequence[Tensor]) -> None:
        """Take over the weights of a group as ``masters`` gave them; the parameters become these, rounded to their precision."""
        part = self._zero.single_partition_of_fp32_groups[group]
        with torch.no_grad():
            part.copy_(self._mine(group, weights))
            for parameter, weight in zip(self._zero.bit16_groups[group], weights, strict=True):
                parameter.copy_(weight)

    def moments(self, group: int) -> dict[str, Any]:
        """AdamW's state of a group, by name a list with one tensor per parameter or a number of steps; empty before the first step.

        On the first rank; all ranks call it.
        """
        state = self._zero.optimizer.state.get(self._zero.single_partition_of_fp32_groups[group], {})
        return {
            name: value.cpu() if value.dim() == 0 else self._whole(group, value)
            for name, value in state.items()
        }

    def restore_moments(self, group: int, state: dict[str, Any]) -> None:
        """Take over what ``moments`` gave."""
        part = self._zero.single_partition_of_fp32_groups[group]
        self._zero.optimizer.state[part] = {
            name: value.clone() if isinstance(value, Tensor) else self._mine(group, value).to(self._device)
            for name, value in state.items()
        }

    def _whole(self, group: int, part: Tensor) -> list[Tensor]:
        """Parts of all ranks as one tensor per parameter on the first rank, on the CPU; empty on the others."""
        parts = self._world.gather(part.cpu())
        if not parts:
            return []
        flat = torch.cat(parts)
        return [flat[at : at + p.numel()].view(p.shape).clone() for p, at in self._places(group)]

    def _mine(self, group: int, tensors: Sequence[Tensor]) -> Tensor:
        """Select this rank's shard of one tensor per parameter, on the CPU."""
        size = self._zero.single_partition_of_fp32_groups[group].numel()
        flat = torch.zeros(size * self._world.size)
        for (parameter, at), tensor in zip(self._places(group), tensors, strict=True):
            flat[at : at + parameter.numel()] = tensor.flatten()
        return flat[size * self._world.rank : size * (self._world.rank + 1)].clone()

    def _places(self, group: int) -> Iterator[tuple[nn.Parameter, int]]:
        """Each parameter of a group with where it begins in the group's storage."""
        first = self._zero.bit16_groups_flat[group].storage_offset()
        return ((p, p.storage_offset() - first) for p in self._zero.bit16_groups[group])


_OPTIONS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,  # asked for, but used by its data loader alone
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 0.0,  # the learner clips, once it has seen that the norm is a number
    "zero_allow_untested_optimizer": True,
    "communication_data_type": "fp32",
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {
        "stage": 2,
        "reduce_bucket_size": BUCKET,
        "contiguous_gradients": True,
        "overlap_comm": False,
        "round_robin_gradients": False,
    },
}


def import_deepspeed(device: torch.device) -> Any:
    """Import deepspeed, silence its logs and stop it from compiling its shared-memory reduction.

    Raises:
        MissingExtra: it is not installed.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        raise MissingExtra("--learner deepspeed", error.name or "deepspeed", "deepspeed") from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)  # the import sets it anew
    if device.type == "cpu":
        # A compilation that was killed leaves a lock behind, for which every later run would wait in silence. gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    """Set the environment variables that DeepSpeed reads: accelerator and local rank."""
    wanted = {"LOCAL_RANK": str(device.index or 0), "DS_ACCELERATOR": device.type}
    before = {name: os.environ.get(name) for name in wanted}
    # torchrun's number of the process is none of a GPU where processes share one (--device cuda:0).
    kept = {"DS_ACCELERATOR"} if device.type == "cuda" else set(wanted)
    os.environ.update({name: v for name, v in wanted.items() if before[name] is None or name not in kept})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _backend(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


# Entries of a gradient that are squared at a time: in double precision they take 128 MiB.
_SQUARED = 1 << 24


class DeepSpeedLearner(PolicyLearner):
    """See ``Learner``; arguments as of ``PolicyLearner``.

    Attributes:
        gradient: sums of the parts so far, a tensor per group of this rank; None before the first part and after each step. Those of a
            large model stay with DeepSpeed until the step.

    Raises:
        MissingExtra: deepspeed is not installed.
    """

    def _set_up(self, groups: list[list[torch.nn.Parameter]], rates: list[float]) -> None:
        self._parameters = [p for group in groups for p in group]
        # DeepSpeed wants one precision per group: (which are clipped together, parameters) of each.
        split = [
            (n, [p for p in group if p.dtype == d])
            for n, group in enumerate(groups)
            for d in dict.fromkeys(p.dtype for p in group)
        ]
        self._clipped = [n for n, _ in split]
        self._rates = [rates[n] for n in self._clipped]
        self._numbers = [_numbers(group, self._parameters) for _, group in split]
        self._zero = Zero([group for _, group in split], self._world, self.model.device)
        self.gradient: list[Tensor] | None = None
        # As in ``TorchLearner``: the norms of its parts are not worth a further copy of a large gradient.
        self._whole = sum(p.numel() for p in self._parameters) > PARTS_BELOW
        self._summed = False
        self._gathered: tuple[list[Tensor], dict[str, Any]] | None = None
        self._ended = False
        self._broken: list[Tensor] = []
        self._order: list[int] = []
        for number, parameter in enumerate(self._parameters):
            parameter.register_hook(partial(self._seen, number))

    @property
    def saves_alone(self) -> bool:  # type: ignore[override]
        """See ``Learner``."""
        return self._world.size == 1

    def backward(self, loss: Tensor) -> None:
        """See ``Learner``."""
        if self._ended or not self._vote(more=True):  # another rank has failed: all are about to raise
            return
        self._together(loss)

    def abandon(self) -> None:
        """See ``Learner``."""
        if not self._ended:
            self._vote(failed=True)

    def discard(self) -> None:
        """See ``Learner``."""
        self.gradient, self._summed = None, False
        self._begin()
        self._zero.forget()

    def end_part(self, what: str) -> None:
        """See ``Learner``; the rank whose own gradient is no number is the one that raises."""
        while not self._ended and self._vote():
            self._together(self._nothing())
        self._ended = True
        if any(bool(flag) for flag in self._broken):
            raise NotFinite(f"the gradient of the {what} loss has values that are NaN or infinite")

    def reduce(self, what: str) -> float:
        """See ``Learner``; the norm of a part of a large model's gradient is not known (NaN)."""
        self._summed = True
        if self._whole:
            self._begin()
            return math.nan
        part = self._taken()
        norm = self._norm(part, f"the gradient of the {what} loss of all processes together")
        self.gradient = (
            part if self.gradient is None else [a.add_(b) for a, b in zip(self.gradient, part, strict=True)]
        )
        return norm

    def apply(self, factor: float) -> float:
        """See ``Learner``."""
        if not self._summed:
            raise ValueError("no part of the gradient was summed")
        gradient = self._taken() if self.gradient is None else self.gradient
        self.gradient, self._summed = None, False
        norms = []
        for which in dict.fromkeys(self._clipped):
            own = [part for n, part in zip(self._clipped, gradient, strict=True) if n == which]
            norm = self._norm(own, "the gradient of all processes and losses together")
            if norm > self._max_norm:
                for part in own:
                    part.mul_(self._max_norm / norm)
            norms.append(norm)
        if any(norms):  # see ``TorchLearner``
            self._steps += 1
            self._gathered = None
            self._guarded(
                "DeepSpeed's step", lambda: self._zero.step(gradient, [rate * factor for rate in self._rates])
            )
        return norms[0]

    def gather(self) -> None:
        """See ``Learner``."""
        masters: list[Tensor] = [torch.empty(0)] * len(self._parameters)
        state: dict[int, dict[str, Tensor]] = {}
        for n, numbers in enumerate(self._numbers):
            half = self._parameters[numbers[0]].dtype.itemsize < 4
            for number, weights in zip(numbers, self._zero.master_weights(n) if half else [], strict=False):
                masters[number] = weights
            for name, value in self._zero.moments(n).items():
                # Each its own number of steps: torch would count a shared one once for every parameter.
                values = [value.clone() for _ in numbers] if isinstance(value, Tensor) else value
                for number, each in zip(numbers, values, strict=False):  # none on the other ranks
                    state.setdefault(number, {})[name] = each
        options = {
            "betas": (0.9, 0.99),
            "eps": 1e-8,
            "weight_decay": 0.0,
            "amsgrad": False,
            "maximize": False,
        }
        self._gathered = (
            masters,
            {"state": state, "param_groups": [{**options, "params": list(range(len(self._parameters)))}]},
        )

    def _vote(self, more: bool = False, failed: bool = False) -> bool:
        """Agree on another backward pass: some rank needs one, and none has failed.

        Raises:
            RankFailed: the ranks' last passes met their parameters in different orders, so that what they summed is wrong.
        """
        order = zlib.crc32(repr(self._order).encode()) >> 8
        votes = self._world.all_reduce(
            torch.tensor([more, failed, order, order * order], dtype=torch.int64)
        ).tolist()
        if votes[1]:
            self._ended = True
            return False
        if votes[2] ** 2 != self._world.size * votes[3]:
            self._ended = True
            raise RankFailed(
                "the ranks' backward passes differ, which ZeRO cannot sum; use --learner torch for this model"
            )
        return bool(votes[0])

    def _together(self, loss: Tensor, last: bool = False) -> None:
        """Run a backward pass on all ranks."""
        self._order = []
        self._guarded("DeepSpeed's backward pass", lambda: self._zero.backward(loss, last))

    def _guarded(self, what: str, call: Any) -> None:
        """Run DeepSpeed's collective calls; after a failure the other ranks are inside a call, so no more are made."""
        try:
            with self._world.external_collectives(what):
                call()
        except RuntimeError:
            self._ended = True
            raise

    def _taken(self) -> list[Tensor]:
        """Take the gradient summed since the last call: this rank's shard of each group."""
        self._together(self._nothing(), last=True)
        part = self._zero.take()
        self._begin()
        return part

    def _nothing(self) -> Tensor:
        """Make a zero loss through all trained layers in the order of a real one, since ZeRO reduces in that order."""
        ids = torch.zeros(1, 2, dtype=torch.int64, device=self.model.device)
        outputs = self.forward(MicroBatch(ids, torch.tensor([[False, True]], device=self.model.device)))
        total = (
            outputs.logprobs.sum()
            if outputs.values is None
            else outputs.logprobs.sum() + outputs.values.sum()
        )
        return total * 0.0

    def _begin(self) -> None:
        """Start a new part of the loss."""
        self._ended, self._broken, self._order = False, [], []

    def _seen(self, number: int, gradient: Tensor) -> None:
        self._order.append(number)
        self._broken = [(~torch.isfinite(gradient)).any() | (self._broken[0] if self._broken else False)]

    def _norm(self, parts: Sequence[Tensor], what: str) -> float:
        """Compute the norm over all ranks' shards."""
        pieces = [piece for part in parts for piece in part.split(_SQUARED)]
        squares = torch.stack([piece.double().square().sum() for piece in pieces]).sum().cpu()
        norm = (
            math.sqrt(value)
            if (value := self._world.all_reduce(squares.reshape(1)).item()) >= 0
            else math.nan
        )
        if not math.isfinite(norm):
            raise NotFinite(f"{what} has a norm of {norm}")
        return norm

    def _master_names(self) -> Sequence[str]:
        return [f"{n:05d}" for n, _ in enumerate(p for p in self._parameters if p.dtype.itemsize < 4)]

    def _master_weights_state(self) -> dict[str, Tensor]:
        masters, _ = self._whole_state()
        half = [weight for weight, p in zip(masters, self._parameters, strict=True) if p.dtype.itemsize < 4]
        return dict(zip(self._master_names(), half, strict=True))

    def _restore_master_weights(self, state: dict[str, Tensor]) -> None:
        half = iter(state.values())
        weights = [next(half) if p.dtype.itemsize < 4 else p.detach().cpu().clone() for p in self._parameters]
        for n, numbers in enumerate(self._numbers):
            self._zero.restore_master_weights(n, [weights[number] for number in numbers])

    def _optimizer_state(self) -> dict[str, Any]:
        return self._whole_state()[1]

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        for n, numbers in enumerate(self._numbers):
            given = [state["state"].get(number, {}) for number in numbers]
            moments = {
                name: value if value.dim() == 0 else [one[name] for one in given]
                for name, value in given[0].items()
            }
            self._zero.restore_moments(n, moments)
        self._gathered = None

    def _whole_state(self) -> tuple[list[Tensor], dict[str, Any]]:
        if self._gathered is None:
            if not self.saves_alone:
                raise ValueError("the ranks' parts were not gathered since the last step")
            self.gather()
        if self._gathered is None:
            raise ValueError("nothing was gathered")
        return self._gathered


def _numbers(group: Sequence[torch.nn.Parameter], parameters: Sequence[torch.nn.Parameter]) -> list[int]:
    """Return the indices of a group's parameters among all."""
    place = {id(p): n for n, p in enumerate(parameters)}
    return [place[id(p)] for p in group]
