"""Checkpoints: everything a run's future depends on, written atomically, verified on reading."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tstar_train.loop import Learner


class BadCheckpoint(RuntimeError):
    """A checkpoint cannot be read; the message names the file and what to do."""


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        iteration: iterations done.
        seconds: of training so far.
        episodes: played in training so far.
        wall_seconds: since the run was first started, measurements included, without the time between a stop and a resume.
    """

    iteration: int = 0
    seconds: float = 0.0
    episodes: int = 0
    wall_seconds: float = 0.0


def save_checkpoint(folder: Path, learner: Learner, progress: Progress, keep: int) -> Path:
    """Write ``checkpoints/<iteration>`` under a run folder, then delete older ones beyond ``keep``.

    A killed writer leaves a folder named ``.partial-...``, which is never read and is removed by the next writer.
    """
    root = folder / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    for rest in root.glob(".partial-*"):
        shutil.rmtree(rest)
    final = root / f"{progress.iteration:06d}"
    partial = root / f".partial-{final.name}"
    try:
        partial.mkdir()
        _write(partial, learner, progress)
    except (RuntimeError, SafetensorError) as error:
        # A full disk, told in their own ways by torch and safetensors; the run's other files and checkpoints are whole.
        raise OSError(errno.ENOSPC, f"the checkpoint could not be written ({error}); is the disk full?", str(partial)) from error
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    for old in sorted(p for p in root.iterdir() if p.name.isdigit())[:-keep]:
        shutil.rmtree(old)
    return final


def _write(partial: Path, learner: Learner, progress: Progress) -> None:
    """All files of a checkpoint; the state comes last, with the others' hashes."""
    save_file(_weights(learner.policy.model), partial / "policy.safetensors", metadata={"format": "pt"})
    if learner.reference is not None:
        save_file(_weights(learner.reference), partial / "reference.safetensors", metadata={"format": "pt"})
    torch.save(learner.optimizer.state_dict(), partial / "optimizer.pt")
    torch.save({"cpu": torch.get_rng_state()}, partial / "random.pt")
    learner.policy.model.config.save_pretrained(partial)
    learner.policy.tokenizer.save_pretrained(partial)
    # The policy loads as a model of its own from this folder: transformers looks for this name.
    os.link(partial / "policy.safetensors", partial / "model.safetensors")
    state = {
        "iteration": progress.iteration,
        "seconds": progress.seconds,
        "episodes": progress.episodes,
        "wall_seconds": progress.wall_seconds,
        "grafted": sorted(learner.grafted),
        "sha256": {p.name: _sha256(p) for p in sorted(partial.iterdir())},
    }
    (partial / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    found = sorted(p for p in (folder / "checkpoints").glob("*") if p.name.isdigit() and (p / "state.json").is_file())
    return found[-1] if found else None


def load_checkpoint(path: Path, learner: Learner) -> Progress:
    """Bring the learner back to a checkpoint.

    Raises:
        BadCheckpoint: a file is missing, damaged, or of another model.
    """
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
        for name, digest in state["sha256"].items():
            if _sha256(path / name) != digest:
                raise BadCheckpoint(f"{path / name} is damaged (its sha256 differs); delete {path} to resume from the one before")
        _restore(learner.policy.model, path / "policy.safetensors")
        if learner.reference is not None:
            _restore(learner.reference, path / "reference.safetensors")
        learner.optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True))
        torch.set_rng_state(torch.load(path / "random.pt", weights_only=True)["cpu"])
        learner.grafted = {(task, key) for task, key in state["grafted"]}
        return Progress(state["iteration"], state["seconds"], state["episodes"], state.get("wall_seconds", state["seconds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        if isinstance(error, BadCheckpoint):
            raise
        raise BadCheckpoint(f"{path} cannot be read ({error}); delete it to resume from the one before") from error


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state without tied copies; in full precision, so that a resumed run repeats bit for bit."""
    return {k: v.detach().clone().contiguous() for k, v in model.state_dict().items() if not _tied(model, k)}


def _tied(model: torch.nn.Module, name: str) -> bool:
    return name == "lm_head.weight" and bool(getattr(model.config, "tie_word_embeddings", False))


@torch.no_grad()
def _restore(model: torch.nn.Module, path: Path) -> None:
    """Copy into the existing tensors: other processes share their memory."""
    state = model.state_dict()
    loaded = load_file(path)
    expected = {k for k in state if not _tied(model, k)}
    if set(loaded) != expected:
        raise BadCheckpoint(f"{path} belongs to another model: {sorted(expected ^ set(loaded))[:3]} differ")
    for name, tensor in loaded.items():
        state[name].copy_(tensor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
