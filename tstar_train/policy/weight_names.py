"""The names that weights have in a model's files, where transformers 5 gives them others when it loads them.

A layer's experts of Mixtral are two tensors in memory and three an expert in the files; whoever else reads a checkpoint knows these alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def renamed(model: PreTrainedModel, shapes: Iterable[tuple[str, Iterable[int]]]) -> bool:
    """Whether the files of a model have other names for some of its weights.

    Args:
        model: whose weights they are.
        shapes: of the weights, by the names in memory.
    """
    ours = {name: torch.empty(tuple(shape), device="meta") for name, shape in shapes}
    return set(revert_weight_conversion(model, dict(ours))) != set(ours)


def by_file_names(
    model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """A model's weights under the names of its files."""
    yield from revert_weight_conversion(model, dict(weights)).items()


def save_renamed(file: Path, target: Path, model: PreTrainedModel) -> bool:
    """Write weights under the names of the model's files, where these differ.

    Args:
        file: of all weights, by their names in memory.
        target: what to write.
        model: whose weights they are.

    Returns:
        Whether any name differs; otherwise nothing is written.
    """
    with safe_open(file, framework="pt") as tensors:
        shapes = [(name, tensors.get_slice(name).get_shape()) for name in tensors.keys()]  # noqa: SIM118  # no mapping
    if not renamed(model, shapes):
        return False
    theirs = by_file_names(model, load_file(file).items())
    save_file({name: tensor.clone() for name, tensor in theirs}, target, metadata={"format": "pt"})
    return True
