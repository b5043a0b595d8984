"""What a model's folder says of itself, compared with what it holds, before anything of that size is built."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tstar_envs import BadData, file_kind, read_json, regular_file
from tstar_train.policy.checksums import check_folder

_SLACK = 1_000_000  # parameters; small models keep tables that their files leave out
_INDEX = "model.safetensors.index.json"


def check_claims(folder: Path) -> None:
    """Refuse a folder whose files are not those that were written, or whose configuration describes a larger model than they hold.

    A configuration is a few numbers: a million layers, or a vocabulary of a trillion, would be built and filled with random numbers
    for hours before the first missing tensor is noticed.

    Raises:
        BadData, MissingData: it is so, or a file cannot be read.
    """
    read_json(folder / "config.json")
    check_folder(folder)
    tensors, elements = stored_size(folder)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    require_no_kernel(config, folder)
    layers = int(getattr(config.get_text_config(), "num_hidden_layers", 0) or 0)
    if layers > tensors:
        raise BadData(f"{folder / 'config.json'} names {layers:,} layers, the files hold {tensors} tensors")
    with torch.device("meta"):  # shapes without numbers
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    described = sum(p.numel() for p in model.parameters())
    if described > 2 * elements + _SLACK:
        raise BadData(
            f"{folder / 'config.json'} describes a model of {described:,} parameters, the files hold {elements:,}"
        )


def require_no_kernel(config: Any, where: object) -> None:
    """Refuse a configuration that names an attention kernel of a hub: that is code, which transformers would fetch and run.

    Raises:
        BadData: it does.
    """
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        kernel = getattr(part, "_attn_implementation", None)
        if isinstance(kernel, str) and "/" in kernel:
            raise BadData(
                f"{where}: config.json names the attention kernel {kernel!r:.100}, code of somebody's that is never fetched here; remove "
                "its field attn_implementation"
            )


def check_weights(model: PreTrainedModel, absent: Any, where: object) -> None:
    """Refuse a model that was loaded in part, or whose weights are no numbers.

    Args:
        model: as loaded.
        absent: names of tensors that no file had, and that were therefore drawn at random.
        where: for the message.

    Raises:
        BadData: it is so.
    """
    if absent:
        raise BadData(
            f"{where}: no weights for {', '.join(sorted(absent)[:3])}{' ...' if len(absent) > 3 else ''}"
        )
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise BadData(
                f"{where}: the weights {name} are not all finite numbers; they are damaged, or a training that failed left them"
            )


def stored_size(folder: Path) -> tuple[int, int]:
    """(tensors, elements) of a folder's weight files, by their headers alone.

    Raises:
        BadData: one of them is no file in safetensors' form; a download that stopped at a pointer, for example.
    """
    if (folder / "model.safetensors").exists():
        files = [folder / "model.safetensors"]
    elif (folder / _INDEX).is_file():
        named = read_json(folder / _INDEX).get("weight_map")
        names = set(named.values()) if isinstance(named, dict) else set()
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise BadData(f"{folder / _INDEX}: no 'weight_map' to files of this folder")
        files = [folder / name for name in sorted(names)]
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors = elements = 0
    for file in files:
        regular_file(file)
        try:
            with safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118 - not a mapping
                    tensors += 1
                    elements += math.prod(content.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            size = file.stat().st_size
            found = file_kind(file) or (f"{size:,} bytes ({error})" if size else "an empty file")
            raise BadData(f"{file}: no weights in safetensors' form but {found}") from None
    return tensors, elements
