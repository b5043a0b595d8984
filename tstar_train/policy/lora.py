"""LoRA adapters by peft, injected in place: the model keeps its class for engine and learner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tstar_envs import MissingExtra, UnknownOption

_MARK = ".lora_"  # part of the name of every adapter weight
_BASE = ".base_layer"  # name of a layer under an adapter
_NAME = "default"  # peft's name of our adapters


def add_adapters(model: PreTrainedModel, rank: int, alpha: int) -> None:
    """Add an adapter to every linear layer except the output matrix, and freeze all other weights.

    Args:
        model: changed in place; its own weights keep their dtype, the adapters are float32.
        rank: rank of the adapters.
        alpha: LoRA alpha; adapters are scaled by ``alpha / rank``.

    Raises:
        MissingExtra: peft is not installed.
        UnknownOption: peft cannot put adapters on this model.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise MissingExtra("--lora.rank", error.name or "peft", "lora") from error
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same initial adapters on every rank
        try:
            # GPT-2's matrices are transposed.
            turned = any(isinstance(module, Conv1D) for module in model.modules())
            wanted = LoraConfig(
                r=rank, lora_alpha=alpha, target_modules="all-linear", lora_dropout=0.0, fan_in_fan_out=turned
            )
            inject_adapter_in_model(wanted, model)
        except ValueError as error:
            raise UnknownOption(
                f"--lora.rank {rank}: peft cannot put adapters on {model.config.model_type} ({error})"
            ) from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_MARK in name)
        if _MARK in name:
            parameter.data = parameter.data.float()
    model.eval()


def has_adapters(model: PreTrainedModel) -> bool:
    """Check whether a model has adapters of ``add_adapters``."""
    return any(_MARK in name for name, _ in model.named_parameters())


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with adapters merged, under the names of the plain model; the model is unchanged."""
    modules = dict(model.named_modules())
    for name, tensor in model.state_dict().items():
        if _MARK in name:
            continue
        before, base, after = name.partition(_BASE)
        if base and after == ".weight":
            delta = modules[before].get_delta_weight(_NAME)
            yield before + after, (tensor.float() + delta).to(tensor.dtype)
        else:
            yield before + after, tensor.detach()


def base_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the frozen weights under the adapters, under the names of the plain model."""
    for name, tensor in model.state_dict().items():
        if _MARK not in name:
            yield name.replace(_BASE, ""), tensor.detach()


def adapted_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the frozen weights that have an adapter, under the names of the plain model."""
    for name, tensor in model.state_dict().items():
        if name.endswith(f"{_BASE}.weight"):
            yield name.replace(_BASE, ""), tensor.detach()


def save_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Write the adapters as peft does, in the model's dtype.

    Args:
        model: with adapters of ``add_adapters``.
        folder: gets ``adapter_config.json`` and ``adapter_model.safetensors``.
    """
    tensors = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": tensor.detach()
        .to("cpu", model.dtype)
        .contiguous()
        for name, tensor in model.state_dict().items()
        if _MARK in name
    }
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config[_NAME].save_pretrained(str(folder))
