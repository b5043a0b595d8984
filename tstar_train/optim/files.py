"""Weights of modules in the files of a checkpoint: written without tied copies, read back only if they are of the same module."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tstar_envs import BadData
from tstar_train.finite import require_finite


def tied(module: nn.Module, name: str) -> bool:
    """Whether a tensor of a module is another one's copy: the output matrix of a model that shares it with the embedding."""
    return name == "lm_head.weight" and bool(
        getattr(getattr(module, "config", None), "tie_word_embeddings", False)
    )


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's weights, without tied ones."""
    return {k: v.detach().clone().contiguous() for k, v in module.state_dict().items() if not tied(module, k)}


def read_tensors(path: Path, expected: Collection[str]) -> dict[str, Tensor]:
    """The tensors of a file.

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
