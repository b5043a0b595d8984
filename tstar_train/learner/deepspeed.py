"""Learner on DeepSpeed's ZeRO: optimizer state is sharded over the ranks, with stage 2 gradients too."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tstar_envs import MissingExtra
from tstar_train.distributed import Communicator, RankFailed
from tstar_train.finite import NotFinite, checked_norm, require_finite
from tstar_train.learner.base import Norms, PolicyLearner, summed_part
from tstar_train.learner.batch import MicroBatch
from tstar_train.learner.optimizers import decayed
from tstar_train.learner.torch import PARTS_BELOW

BUCKET = 500_000_000  # maximum number of gradient entries per all-reduce; DeepSpeed's default


class Zero:
    """AdamW with sharded state: each rank updates its shard of the parameters.

    Args:
        groups: AdamW's parameter groups, one dtype per group; all ranks pass the same ones in the same order.
        world: communicator whose process group is used.
        device: device of the parameters.
        betas: decay of AdamW's moments.
        stage: 2 sums and shards the gradient at each backward pass; 1 accumulates it here and sums it when it is taken.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        world: Communicator,
        device: torch.device,
        betas: tuple[float, float],
        stage: int,
    ) -> None:
        self._world = world
        self._device = device
        self._sums: list[Tensor] = []
        # DeepSpeed's own AdamW would be compiled first.
        client = torch.optim.AdamW([dict(group) for group in groups], lr=0.0, betas=betas, weight_decay=0.0)
        # Only trained parameters: frozen layers and buffers are not handed to DeepSpeed.
        holder = nn.ParameterList([p for group in groups for p in group["params"]])
        with _environment(device):
            deepspeed = import_deepspeed(device)
            if not dist.is_initialized():  # a process group of one, so that DeepSpeed does not try MPI
                dist.init_process_group(_backend(device), store=dist.HashStore(), rank=0, world_size=1)
                atexit.register(_leave)
            self._engine = deepspeed.initialize(
                model=holder, optimizer=client, config=_options(stage), dist_init_required=False
            )[0]
        self._zero = self._engine.optimizer
        # The learner clips; DeepSpeed would compute the norm in float64 over the whole gradient at once.
        self._zero.compute_grad_norm = False
        self._engine.set_gradient_accumulation_boundary(False)
        if stage == 1:
            for n, part in enumerate(self._zero.single_partition_of_fp32_groups):
                self._sums.append(torch.zeros(world.size, part.numel(), device=device))
                for parameter, at in self._places(n):
                    own = self._sums[n].view(-1)[at : at + parameter.numel()].view(parameter.shape)
                    parameter.register_post_accumulate_grad_hook(functools.partial(_move_gradient, own))

    @property
    def sums(self) -> list[Tensor]:
        """Own gradient of this rank so far, one float32 vector per group; none with stage 2."""
        return self._sums

    def backward(self, loss: Tensor, last: bool = False) -> None:
        """Accumulate a loss's gradient, summed over the ranks; all ranks call it, over the same layers.

        Args:
            loss: this rank's loss, a scalar.
            last: True if ``take`` follows.
        """
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over the ranks.
        self._engine.backward(loss * self._world.size, scale_wrt_gas=False)

    def take(self) -> list[Tensor]:
        """Return this rank's shard of the accumulated gradient, one float32 vector per group, and clear it.

        With stage 1 this sums it over the ranks, and all ranks call it.
        """
        if self._sums:
            taken = [self._world.sum_of_shards(whole) for whole in self._sums]
            self.forget()
            return taken
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
        """Clear the accumulated gradient."""
        for whole in self._sums:
            whole.zero_()
        self._zero.averaged_gradients, self._zero.all_grad_tensors = {}, {}
        self._zero.zero_grad(set_to_none=True)

    def step(self, gradient: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Take an AdamW step and all-gather the new weights.

        Args:
            gradient: this rank's shard of each group.
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
        """Gather a group's float32 weights on rank 0; all ranks call it."""
        return self._whole(group, self._zero.single_partition_of_fp32_groups[group].detach())

    def restore_master_weights(self, group: int, weights: Sequence[Tensor]) -> None:
        """Restore this rank's part of the result of ``master_weights``; the parameters themselves are restored before."""
        part = self._zero.single_partition_of_fp32_groups[group]
        with torch.no_grad():
            part.copy_(self._mine(group, weights))

    def moments(self, group: int) -> dict[str, Any]:
        """Gather AdamW's state of a group on rank 0; all ranks call it.

        By name a list with one tensor per parameter, or the number of steps; empty before the first step.
        """
        state = self._zero.optimizer.state.get(self._zero.single_partition_of_fp32_groups[group], {})
        return {
            name: value.cpu() if value.dim() == 0 else self._whole(group, value)
            for name, value in state.items()
        }

    def restore_moments(self, group: int, state: dict[str, Any]) -> None:
        """Restore the result of ``moments``."""
        part = self._zero.single_partition_of_fp32_groups[group]
        self._zero.optimizer.state[part] = {
            name: value.clone() if isinstance(value, Tensor) else self._mine(group, value).to(self._device)
            for name, value in state.items()
        }

    def _whole(self, group: int, part: Tensor) -> list[Tensor]:
        """Gather all ranks' shards as one CPU tensor per parameter on rank 0; empty on the others."""
        parts = self._world.gather(part.cpu())
        if not parts:
            return []
        flat = torch.cat(parts)
        return [flat[at : at + p.numel()].view(p.shape).clone() for p, at in self._places(group)]

    def _mine(self, group: int, tensors: Sequence[Tensor]) -> Tensor:
        """Copy this rank's shard of one tensor per parameter, on the CPU; no more of them is read."""
        size = self._zero.single_partition_of_fp32_groups[group].numel()
        first, mine = size * self._world.rank, torch.zeros(size)
        for (parameter, at), tensor in zip(self._places(group), tensors, strict=True):
            start, end = max(at, first), min(at + parameter.numel(), first + size)
            if start < end:
                mine[start - first : end - first] = tensor.reshape(-1)[start - at : end - at]
        require_finite(mine, "the checkpoint's optimizer state")
        return mine

    def _places(self, group: int) -> Iterator[tuple[nn.Parameter, int]]:
        """Yield each parameter of a group with its offset in the group's storage."""
        first = self._zero.bit16_groups_flat[group].storage_offset()
        return ((p, p.storage_offset() - first) for p in self._zero.bit16_groups[group])


def _move_gradient(own: Tensor, parameter: Tensor) -> None:
    """Add a parameter's gradient to its place among the float32 sums."""
    if parameter.grad is not None:
        own += parameter.grad
        parameter.grad = None


def _options(stage: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # required, but only DeepSpeed's data loader uses it
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # the learner clips, after checking that the norm is finite
        "zero_allow_untested_optimizer": True,
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET,
            "contiguous_gradients": stage == 2,
            "overlap_comm": False,
            "round_robin_gradients": False,
        },
    }
    return options | ({"data_types": {"grad_accum_dtype": "fp32"}} if stage == 2 else {})


def import_deepspeed(device: torch.device) -> Any:
    """Import deepspeed, silence its logs and stop it from compiling its shared-memory reduction.

    Raises:
        MissingExtra: deepspeed is not installed.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        raise MissingExtra("--learner deepspeed", error.name or "deepspeed", "deepspeed") from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)  # the import resets the level
    if device.type == "cpu":
        # A killed compilation leaves a lock file, and every later run would wait for it silently. gloo does not need this extension.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    """Set the environment variables that DeepSpeed reads: accelerator and local rank."""
    wanted = {"LOCAL_RANK": str(device.index or 0), "DS_ACCELERATOR": device.type}
    before = {name: os.environ.get(name) for name in wanted}
    # torchrun's LOCAL_RANK is no GPU index if processes share a GPU (--device cuda:0).
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


# Number of gradient entries squared at a time: 128 MiB in float64.
_SQUARED = 1 << 24


class DeepSpeedLearner(PolicyLearner):
    """See ``Learner``; for the arguments see ``PolicyLearner``.

    Attributes:
        parts: gradient of each part of the step, by name, one tensor per group: with stage 1 this rank's own of shape (ranks, shard), with
            stage 2 this rank's shard of the sum. Empty for a large model, whose gradient DeepSpeed holds until the step.

    Raises:
        MissingExtra: deepspeed is not installed.
    """

    _reads_part = True

    def _set_up(self, groups: list[list[torch.nn.Parameter]], rates: list[float]) -> None:
        self._parameters = [p for group in groups for p in group]
        # DeepSpeed needs one dtype per group. Entries: (number of the group that is clipped together, AdamW's parameter group).
        split = [
            (n, of_one_dtype)
            for n, group in enumerate(groups)
            for d in dict.fromkeys(p.dtype for p in group)
            for of_one_dtype in decayed([p for p in group if p.dtype == d], self._options.weight_decay)
        ]
        self._clipped = [n for n, _ in split]
        self._rates = [rates[n] for n in self._clipped]
        self._numbers = [_numbers(group["params"], self._parameters) for _, group in split]
        self._zero = Zero(
            [group for _, group in split],
            self._world,
            self.model.device,
            self._options.betas,
            self._options.zero_stage,
        )
        self._once = self._options.zero_stage == 1
        self.parts: dict[str, list[Tensor]] = {}
        # As in ``TorchLearner``: the norms of the parts are not worth another copy of a large gradient.
        self._whole = sum(p.numel() for p in self._parameters) > PARTS_BELOW
        self._added = False
        self._gathered: tuple[list[Tensor], dict[str, Any]] | None = None
        self._ended = False
        self._broken: list[Tensor] = []
        self._order: list[int] = []
        for number, parameter in enumerate(() if self._once else self._parameters):
            parameter.register_hook(functools.partial(self._seen, number))

    @property
    def saves_alone(self) -> bool:
        """See ``Learner``."""
        return self._world.size == 1

    def backward(self, loss: Tensor) -> None:
        """See ``Learner``."""
        if self._once:
            loss.backward()
            return
        if self._ended or not self._vote(more=True):  # another rank has failed: all ranks are about to raise
            return
        self._together(loss)

    def abandon(self) -> None:
        """See ``Learner``."""
        if not self._ended and not self._once:
            self._vote(failed=True)

    def discard(self) -> None:
        """See ``Learner``."""
        self.parts, self._added = {}, False
        self._begin()
        self._zero.forget()

    def end_part(self, what: str) -> None:
        """See ``Learner``; the rank whose own gradient has NaN or infinite values raises."""
        for own in self._zero.sums:
            checked_norm(own, f"the gradient of the {what} loss")
        if self._once:
            return
        while not self._ended and self._vote():
            self._together(self._nothing())
        self._ended = True
        if any(bool(flag) for flag in self._broken):
            raise NotFinite(f"the gradient of the {what} loss has values that are NaN or infinite")

    def add_part(self, what: str) -> None:
        """See ``Learner``."""
        self._added = True
        if self._whole:
            self._begin()
        elif self._once:
            self.parts[what] = [own.clone() for own in self._zero.sums]
            self._zero.forget()
            self._begin()
        else:
            self.parts[what] = self._taken()

    def apply(self, factor: float) -> Norms:
        """See ``Learner``."""
        if not self._added:
            raise ValueError("no part of the gradient was added")
        of_parts: dict[str, float] = {}
        if self._whole:
            gradient = self._taken()
        else:
            parts = self._summed_parts()
            of_parts = {what: self._norm(part, summed_part(what)) for what, part in parts.items()}
            gradient = [functools.reduce(torch.add, shards) for shards in zip(*parts.values(), strict=True)]
        self.parts, self._added = {}, False
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
        return Norms(norms[0], of_parts)

    def _summed_parts(self) -> dict[str, list[Tensor]]:
        """Return this rank's shards of the parts' sums; with stage 1 all parts of a group are summed together."""
        if not self._once:
            return self.parts
        summed: dict[str, list[Tensor]] = {what: [] for what in self.parts}
        for own in zip(*self.parts.values(), strict=True):
            shards = self._world.sum_of_shards(torch.cat(own, dim=1)).split([part.shape[1] for part in own])
            for mine, shard in zip(summed.values(), shards, strict=True):
                mine.append(shard)
        return summed

    def gather(self) -> None:
        """See ``Learner``."""
        super().gather()
        masters: list[Tensor] = [torch.empty(0)] * len(self._parameters)
        state: dict[int, dict[str, Tensor]] = {}
        for n, numbers in enumerate(self._numbers):
            half = self._parameters[numbers[0]].dtype.itemsize < 4
            for number, weights in zip(numbers, self._zero.master_weights(n) if half else [], strict=False):
                masters[number] = weights
            for name, value in self._zero.moments(n).items():
                # Each parameter gets its own step counter: torch would increment a shared one once per parameter.
                values = [value.clone() for _ in numbers] if isinstance(value, Tensor) else value
                for number, each in zip(numbers, values, strict=False):  # none on the other ranks
                    state.setdefault(number, {})[name] = each
        options = {
            "betas": self._options.betas,
            "eps": 1e-8,
            "weight_decay": self._options.weight_decay,
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
            RankFailed: the ranks' last passes reached the parameters in different orders, so the summed gradients are wrong.
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
        """Run DeepSpeed's collectives; after a failure no more are made, because other ranks hang inside one."""
        try:
            with self._world.external_collectives(what):
                call()
        except RuntimeError:
            self._ended = True
            raise

    def _taken(self) -> list[Tensor]:
        """Take the gradient summed since the last call: this rank's shard of each group."""
        if not self._once:
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

    def _gathered_files(self) -> list[str]:
        return [*super()._gathered_files(), "masters", "optimizer"]

    def _master_names(self) -> Sequence[str]:
        return [f"{n:05d}" for n, _ in enumerate(p for p in self._parameters if p.dtype.itemsize < 4)]

    def _master_weights_state(self) -> dict[str, Tensor]:
        masters, _ = self._whole_state()
        half = [weight for weight, p in zip(masters, self._parameters, strict=True) if p.dtype.itemsize < 4]
        return dict(zip(self._master_names(), half, strict=True))

    def _restore_master_weights(self, state: dict[str, Tensor]) -> None:
        half = iter(state.values())
        weights = [next(half) if p.dtype.itemsize < 4 else p.detach() for p in self._parameters]
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
