"""Shipped policies and their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tstar_envs import (
    BadData,
    EnvEntry,
    MissingData,
    TStarError,
    list_envs,
    read_json,
)
from tstar_envs.redaction import HIDDEN
from tstar_train import config_check
from tstar_train.progress import progress
from tstar_train.recipes.recipe import EnvRecipe, Recipe, load_recipe, policy_name, recipe_from_record

_BLOCK = 1 << 20
# Files with the checksums of a training checkpoint, and of an output of ``warmstart``.
_RECORDS = ("state.json", "training.json")


def sha256_of(path: Path) -> str:
    """Compute a file's SHA-256 as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)
            progress.advance()
    return digest.hexdigest()


def check_files(folder: Path, sums: Mapping[str, Any], needed: Collection[str] = ()) -> None:
    """Compare files with their recorded SHA-256 sums.

    Args:
        folder: folder of the files.
        sums: SHA-256 by file name; each name must be a regular file directly in this folder.
        needed: names that must be recorded.

    Raises:
        BadData: a name is not a regular file of this folder, a file differs from its sum, or a needed name has no sum.
        MissingData: a file is missing.
    """
    if absent := sorted(set(needed) - set(sums)):
        raise BadData(f"{folder}: no sha256 is recorded of {', '.join(absent)}")
    for name, expected in sums.items():
        path = folder / name
        if Path(name).name != name or path.is_symlink():
            raise BadData(f"{folder}: {name!r:.100} is recorded as a file, but is not a file of this folder")
        if not path.exists():
            raise MissingData(f"{path} is missing, but its sha256 is recorded")
        if not path.is_file():
            raise BadData(f"{path} is not a regular file")
        if sha256_of(path) != expected:
            raise BadData(f"{path} is damaged (its sha256 differs)")


def check_folder(folder: Path) -> None:
    """Compare the files of a model's folder with its recorded sums, if any.

    Raises:
        BadData, MissingData: see ``check_files``; or the record cannot be read.
    """
    for name in _RECORDS:
        if (folder / name).is_file():
            sums = read_json(folder / name).get("sha256")
            if isinstance(sums, dict):
                check_files(folder, sums)
            elif name == "state.json":
                raise BadData(f"{folder / name}: no 'sha256', so the weights cannot be checked")


WEIGHTS = Path(__file__).parent / "weights"
# Field of a tiny model's config.json with the name of its recipe.
POLICY_FIELD = "tstar_policy"
# Field with the recipe itself, of policies whose recipe is not in the package.
RECIPE_FIELD = "tstar_recipe"
# Special tokens that identify a tiny policy's folder.
PAD = "<|pad|>"
END = "<|end|>"


def model_source(name: str, built_in: str, weights: bool = True) -> str | Path:
    """Resolve a model name to a folder; other names are returned as Hugging Face names.

    Args:
        name: as the user gave it.
        built_in: the shipped policy that ``tiny`` stands for.
        weights: True if a folder must have weights; a plan only needs its ``config.json``.

    Raises:
        MissingData: the folder is missing, or lacks a needed file.
    """
    if name == "tiny":
        if not has_tiny(built_in):
            trained = sorted(p.name for p in WEIGHTS.iterdir()) if WEIGHTS.is_dir() else []
            env = next((e.cli_name for e in list_envs() if policy_name(e) == built_in), built_in)
            raise MissingData(
                f"the tiny model has no weights for {built_in!r} (it has: {', '.join(trained) or 'none'}); "
                f"make them with: {warmstart_advice(env)}"
            )
        return WEIGHTS / built_in
    path = Path(name).expanduser()
    if not path.exists():
        # owner/name may be a Hugging Face name or a path.
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
    """Format the commands that make a tiny policy for an environment and then use it."""
    return f"python -m tstar_train warmstart --env {env} --out FOLDER, and then name it: --model FOLDER (eval: --agent tiny:FOLDER)"


def is_tiny(name: str) -> bool:
    """Check whether a name is ``tiny`` or the path of a tiny policy (a checkpoint or an output of ``warmstart``)."""
    record = _record(name, "tokenizer_config.json")
    return name == "tiny" or (record.get("pad_token"), record.get("eos_token")) == (PAD, END)


def settings_name(name: str, entry: EnvEntry) -> str:
    """Return the name of a tiny policy's recipe for an environment (for ``load_recipe``).

    The policy's ``config.json`` names the recipe it was made with, and its checkpoints keep the name. That recipe is used if it belongs to
    the environment's family, otherwise the environment's own. For example, Sokoban's two policies use the same observations, but only one
    of them makes several moves per turn.

    Args:
        name: ``tiny`` or the path of a policy (see ``is_tiny``).
        entry: the environment to play.
    """
    own = policy_name(entry)
    made_as = own if name == "tiny" else _record(name, "config.json").get(POLICY_FIELD)
    return next(
        (policy_name(e) for e in list_envs() if e.family == entry.family and policy_name(e) == made_as), own
    )


def recipe_of_policy(name: str, entry: EnvEntry) -> Recipe:
    """Load a tiny policy's recipe for an environment: the one that its ``config.json`` holds, else that of ``settings_name``.

    Args:
        name: ``tiny`` or the path of a policy (see ``is_tiny``).
        entry: the environment to play.

    Raises:
        BadData: the recipe in its ``config.json`` is not valid.
        MissingData: there is no recipe.
    """
    record = {} if name == "tiny" else _record(name, "config.json").get(RECIPE_FIELD)
    if isinstance(record, dict) and record:
        return recipe_from_record(record, Path(name).expanduser() / "config.json")
    return load_recipe(settings_name(name, entry))


def imitated_form(name: str, entry: EnvEntry) -> EnvRecipe | None:
    """Look up the contexts and environment options that a model imitated (``warmstart --model``); None for other models.

    Args:
        name: name or path of a model.
        entry: the environment to play; of one that was not imitated, the options are those of an imitated one of its family, or none.

    Raises:
        BadData: its ``training.json`` is not valid.
    """
    record = _record(name, "training.json")
    seen, options = record.get("seen"), record.get("env_options")
    if not isinstance(seen, dict) or not isinstance(options, dict):
        return None
    ids = {e.id for e in list_envs() if e.family == entry.family}
    kin = [env for env in options if env in ids]
    try:
        own: dict[str, Any] = options[entry.id if entry.id in kin else kin[0]] if kin else {}
        form = EnvRecipe((), {key: value for key, value in own.items() if HIDDEN not in str(value)}, **seen)
    except (TypeError, AttributeError) as error:
        raise BadData(
            f"{Path(name) / 'training.json'} is not valid ({error}): make the model again"
        ) from error
    for key, value, hint in config_check.options(form):
        if not config_check.is_a(value, hint):
            raise BadData(
                f"{Path(name) / 'training.json'}: {key} must be {config_check.expected(hint)}, got {value!r:.40}"
            )
    return form


def _record(folder: str, file: str) -> dict[str, Any]:
    """Read a JSON file of a policy's folder; empty if unreadable (``load_policy`` reports the error)."""
    try:
        record: dict[str, Any] = read_json(Path(folder).expanduser() / file)
    except (TStarError, RuntimeError):  # RuntimeError: no home folder to expand ~
        return {}
    return record


def has_tiny(built_in: str) -> bool:
    """Check whether the package ships tiny weights of this name (see ``recipes.policy_name``)."""
    return (WEIGHTS / built_in / "model.safetensors").is_file()
