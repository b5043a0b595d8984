"""Files of policies: shipped weights, checksums, and whether a folder holds what it claims."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tstar_envs import (
    BadData,
    EnvEntry,
    MissingData,
    TStarError,
    file_kind,
    list_envs,
    read_json,
    regular_file,
)
from tstar_train.recipes.recipe import policy_name

_BLOCK = 1 << 20
# A checkpoint of training and what ``warmstart`` wrote record the sums of their files here.
_RECORDS = ("state.json", "training.json")


def sha256_of(path: Path) -> str:
    """The sum of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_files(folder: Path, sums: Mapping[str, Any], needed: Collection[str] = ()) -> None:
    """Compare files with their recorded sums.

    Args:
        folder: where they lie.
        sums: by name; a name stands for a regular file of this folder and for nothing else, whatever it looks like.
        needed: names that must be among them.

    Raises:
        BadData: a name that leads elsewhere, a file that is no regular one or differs, a sum that is none, or one that is missing.
        MissingData: a file is not there.
    """
    if absent := sorted(set(needed) - set(sums)):
        raise BadData(f"{folder}: no sha256 is recorded of {', '.join(absent)}")
    for name, expected in sums.items():
        path = folder / name
        if Path(name).name != name or path.is_symlink():
            raise BadData(f"{folder}: {name!r:.100} is recorded as a file, but is none of this folder")
        if not path.exists():
            raise MissingData(f"{path} is missing, but its sha256 is recorded")
        if not path.is_file():
            raise BadData(f"{path} is not a regular file")
        if sha256_of(path) != expected:
            raise BadData(f"{path} is damaged (its sha256 differs)")


def check_folder(folder: Path) -> None:
    """Compare the files of a model's folder with the sums that it records, if it records any.

    Raises:
        BadData, MissingData: see ``check_files``; or the record itself cannot be read.
    """
    for name in _RECORDS:
        if (folder / name).is_file():
            sums = read_json(folder / name).get("sha256")
            if isinstance(sums, dict):
                check_files(folder, sums)
            elif name == "state.json":
                raise BadData(f"{folder / name}: no 'sha256', so that the weights cannot be checked")


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


WEIGHTS = Path(__file__).parent / "weights"
# Of a tiny model's configuration: by which settings it learnt to play.
POLICY_FIELD = "tstar_policy"
# The special tokens of a tiny policy, by which its folder is known.
PAD = "<|pad|>"
END = "<|end|>"


def model_source(name: str, built_in: str, weights: bool = True) -> str | Path:
    """The folder that a name means, or the name itself if it can only be a Hugging Face one.

    Args:
        name: as the user gave it.
        built_in: which of the shipped policies ``tiny`` is.
        weights: whether a folder must hold weights; a plan needs its ``config.json`` alone.

    Raises:
        MissingData: there is no such folder, or it lacks what is needed.
    """
    if name == "tiny":
        if not has_tiny(built_in):
            trained = sorted(p.name for p in WEIGHTS.iterdir()) if WEIGHTS.is_dir() else []
            env = next((e.name for e in list_envs() if policy_name(e) == built_in), built_in)
            raise MissingData(
                f"the tiny model has no weights for {built_in!r} (it has: {', '.join(trained) or 'none'}); "
                f"make them with: {warmstart_advice(env)}"
            )
        return WEIGHTS / built_in
    path = Path(name).expanduser()
    if not path.exists():
        # Hugging Face names look like owner/name, which is also how a path may look.
        if name.startswith(("/", ".", "~")) or (os.sep in name and path.parent.exists()):
            raise MissingData(f"no model at {name}: there is no such folder")
        return name
    if not (path / "config.json").is_file() or (weights and not any(path.glob("*.safetensors"))):
        inside = (
            " (a run keeps its policies in checkpoints/NUMBER)" if (path / "checkpoints").is_dir() else ""
        )
        raise MissingData(
            f"no model at {name}: a model is a folder with config.json, *.safetensors and a tokenizer{inside}"
        )
    return path


def warmstart_advice(env: str) -> str:
    """The commands that make a tiny policy for an environment and then use it."""
    return f"python -m tstar_train warmstart --env {env} --out FOLDER, and then name it: --model FOLDER (eval: --agent tiny:FOLDER)"


def is_tiny(name: str) -> bool:
    """Whether a name is ``tiny`` or the path of a policy of that kind (a checkpoint, or what ``warmstart`` wrote)."""
    record = _record(name, "tokenizer_config.json")
    return name == "tiny" or (record.get("pad_token"), record.get("eos_token")) == (PAD, END)


def settings_name(name: str, entry: EnvEntry) -> str:
    """The name of the recipe by which a tiny policy plays an environment (for ``load_recipe``).

    It is the recipe that the policy was made with, which its ``config.json`` names and its checkpoints keep, where that is of the
    environment's family; otherwise the environment's own. Sokoban's two policies see rooms alike, but only one of them makes several
    moves a turn.

    Args:
        name: ``tiny`` or the path of a policy (see ``is_tiny``).
        entry: the environment to be played.
    """
    own = policy_name(entry)
    made_as = own if name == "tiny" else _record(name, "config.json").get(POLICY_FIELD)
    return next(
        (policy_name(e) for e in list_envs() if e.family == entry.family and policy_name(e) == made_as), own
    )


def _record(folder: str, file: str) -> dict[str, Any]:
    """What a JSON file of a policy's folder holds; empty where it cannot be read (``load_policy`` says what is wrong with it)."""
    try:
        record: dict[str, Any] = read_json(Path(folder).expanduser() / file)
    except (TStarError, RuntimeError):  # RuntimeError: a home folder that there is not
        return {}
    return record


def has_tiny(built_in: str) -> bool:
    """Whether the package ships tiny weights of this name (see ``recipes.built_in.policy_name``)."""
    return (WEIGHTS / built_in / "model.safetensors").is_file()
