"""The policies that ship with the package, and which folder a model's name means; nothing here loads a model, or torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tstar_envs import EnvEntry, MissingData, TStarError, list_envs, read_json
from tstar_train.recipes.built_in import policy_name

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
