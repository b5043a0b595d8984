"""DeepSpeed's ZeRO stage 2: gradients and the state of AdamW are dealt over the ranks (arXiv 1910.02054); the weights are whole on each.

What is read of DeepSpeed's optimizer: ``bit16_groups`` (the parameters), ``bit16_groups_flat`` (their storage, all in one tensor per
group), ``single_partition_of_fp32_groups`` (this rank's part of it in single precision, which AdamW changes) and
``averaged_gradients`` (the gradient of this part). Checked with deepspeed 0.19.8, ``runtime/zero/stage_1_and_2.py``.
"""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tstar_envs import MissingExtra
from tstar_train.world import World

BUCKET = 500_000_000  # gradients that are summed over the ranks together, at most; DeepSpeed's own choice


class Zero:
    """AdamW over parameters of which each rank updates a part.

    Args:
        groups: parameters of one precision each; other ranks give the same ones in the same order.
        world: the ranks, whose process group is used.
        device: of the parameters.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], world: World, device: torch.device) -> None:
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

    def masters(self, group: int) -> list[Tensor]:
        """The weights of a group in single precision, on the first rank; all ranks call it."""
        return self._whole(group, self._zero.single_partition_of_fp32_groups[group].detach())

    def restore_masters(self, group: int, weights: Sequence[Tensor]) -> None:
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
        """What this rank keeps of one tensor per parameter, on the CPU."""
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
    """The package, silenced, and kept from compiling its shared-memory reduction.

    Raises:
        MissingExtra: it is not installed.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        raise MissingExtra("--optimizer deepspeed", error.name or "deepspeed", "deepspeed") from error
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)  # the import sets it anew
    if device.type == "cpu":
        # A compilation that was killed leaves a lock behind, for which every later run would wait in silence. gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    """What DeepSpeed reads from the environment: which device, and its number on this machine."""
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
