"""Checkpoints: everything a run's future depends on, written atomically, verified on reading."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from tstar_envs import BadData, TStarError, UnknownOption, read_json, write_whole
from tstar_train.config import Config
from tstar_train.loop import Trainer
from tstar_train.policy.checksums import check_files, sha256_of
from tstar_train.policy.published import save_description
from tstar_train.policy.weight_names import save_renamed
from tstar_train.world import together


class BadCheckpoint(TStarError, RuntimeError):
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

    @classmethod
    def of(cls, state: dict[str, Any]) -> Progress:
        """Read the progress from a checkpoint's state."""
        return cls(state["iteration"], state["seconds"], state["episodes"], state["wall_seconds"])


def save_checkpoint(
    folder: Path,
    trainer: Trainer,
    progress: Progress,
    keep: int,
    chosen: Callable[[int], int | None] | None = None,
) -> Path:
    """Write ``checkpoints/<iteration>`` under a run folder, then delete older ones beyond ``keep``.

    A killed writer leaves a folder named ``.partial-...``, which is never read and is removed by the next writer or reader.

    Args:
        folder: of the run.
        trainer: a whole state of it.
        progress: how far it is.
        keep: how many checkpoints stay.
        chosen: which iteration validation had chosen up to a given one; the choices of those that stay, stay too.
    """
    root = folder / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    remove_partial(folder)
    final = root / f"{progress.iteration:06d}"
    partial = root / f".partial-{final.name}"
    try:
        partial.mkdir()
        _write(partial, trainer, progress)
    except (RuntimeError, SafetensorError) as error:
        # A full disk, which torch and safetensors report by errors of their own; the run's other files and checkpoints are whole.
        raise OSError(
            errno.ENOSPC, f"the checkpoint could not be written ({error}); is the disk full?", str(partial)
        ) from error
    if final.exists():
        remove_checkpoint(final)
    partial.rename(final)
    found = sorted(p for p in root.iterdir() if p.name.isdigit())
    spared = {chosen(int(p.name)) for p in found[-keep:]} if chosen is not None else set()
    for old in found[:-keep]:
        if int(old.name) not in spared:
            remove_checkpoint(old)
    return final


def remove_partial(folder: Path) -> None:
    """Remove what a killed writer, or a killed cleanup, left in a run folder."""
    for rest in (*(folder / "checkpoints").glob(".partial-*"), *folder.glob(".partial-*")):
        shutil.rmtree(rest)


def remove_checkpoint(old: Path) -> None:
    """Remove a checkpoint so that one that is half gone is never taken for one."""
    doomed = old.with_name(f".partial-old-{old.name}")
    old.rename(doomed)
    shutil.rmtree(doomed)


def _write(partial: Path, trainer: Trainer, progress: Progress) -> None:
    """All files of a checkpoint; the state comes last, with the others' hashes."""
    trainer.learner.save(partial)
    policy = trainer.policy
    save_description(partial, policy.model, policy.tokenizer, policy.published)
    # The policy loads as a model of its own from this folder: transformers looks for this name.
    weights, model = partial / "policy.safetensors", partial / "model.safetensors"
    if not save_renamed(weights, model, policy.model):
        link(weights, model)
    state = {
        "iteration": progress.iteration,
        "seconds": progress.seconds,
        "episodes": progress.episodes,
        "wall_seconds": progress.wall_seconds,
        "grafted": sorted(trainer.grafted),
        "cursor": trainer.cursor,
        "config": trainer.config.record(),
        "sha256": {p.name: sha256_of(p) for p in sorted(partial.iterdir())},
    }
    write_whole(partial / "state.json", json.dumps({**state, "state_sha256": _sum_of(state)}, indent=1))


def _sum_of(state: dict[str, Any]) -> str:
    """The sum of what a run's future depends on; its options are compared with ``config.json``, and more iterations change them."""
    kept = {name: value for name, value in state.items() if name not in ("config", "state_sha256")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def link(file: Path, name: Path) -> None:
    """Give a file that is never changed in place a second name, or a copy where the file system has no hard links."""
    try:
        os.link(file, name)
    except OSError:  # FAT, many network and container mounts
        shutil.copyfile(file, name)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    found = sorted(
        p for p in (folder / "checkpoints").glob("*") if p.name.isdigit() and (p / "state.json").is_file()
    )
    return found[-1] if found else None


def read_state(
    path: Path, iteration: int | None = None, mend: str = "delete it to resume from the one before"
) -> dict[str, Any]:
    """The state of a checkpoint, once every file of it is known to be what was written.

    Args:
        path: of its folder.
        iteration: that it must be of; None: the one that the folder's name says.
        mend: what to do where it cannot be used, for the message.

    Raises:
        BadCheckpoint: a file is missing or damaged.
    """
    try:
        state: dict[str, Any] = read_json(path / "state.json")
        for name, kind in _STATE.items():
            if not isinstance(state.get(name), kind) or isinstance(state[name], bool):
                raise BadData(f"{path / 'state.json'}: no valid {name!r}")
        if state["iteration"] != (int(path.name) if iteration is None else iteration):
            raise BadData(f"{path / 'state.json'} is of iteration {state['iteration']}")
        needed = {"policy.safetensors", "model.safetensors", "optimizer.pt", "config.json"}
        check_files(path, state["sha256"], needed)
        cursor = state.get("cursor", 0)  # checkpoints of older versions have neither this nor the sum
        if type(cursor) is not int or cursor < 0:
            raise BadData(f"{path / 'state.json'}: no valid 'cursor'")
        if "state_sha256" in state and state["state_sha256"] != _sum_of(state):
            raise BadData(f"{path / 'state.json'} was edited or is damaged (its own sha256 differs)")
    except TStarError as error:
        raise BadCheckpoint(f"{error}; {path} cannot be used: {mend}") from error
    return state


_STATE = {
    "iteration": int,
    "seconds": int | float,
    "episodes": int,
    "wall_seconds": int | float,
    "grafted": list,
    "sha256": dict,
}


def check_same_options(path: Path, state: dict[str, Any], config: Config) -> None:
    """Refuse to go on from a checkpoint with other options than it was made with; more iterations are no others.

    Raises:
        UnknownOption: options were edited; they are named.
        BadCheckpoint: the checkpoint does not hold its options.
    """
    made = state.get("config")
    if not isinstance(made, dict):
        raise BadCheckpoint(
            f"{path} does not say which options it was made with (an older version wrote it); start a new run from it: --model {path}"
        )
    ours = _flat(json.loads(config.to_json()))
    # An option that is younger than the run is, by default, what the run did without it.
    theirs = {
        name: default for name, default in _flat(asdict(Config(env=config.env))).items() if name in ours
    } | _flat(made)
    edited = [
        f"{name} is {ours.get(name)!r}, the run was made with {theirs.get(name)!r}"
        for name in dict.fromkeys([*theirs, *ours])
        if name not in _FREE and ours.get(name) != theirs.get(name)
    ]
    if edited:
        raise UnknownOption(
            f"{path.parents[1] / 'config.json'} was edited ({'; '.join(edited):.400}): put it back, or start a new run with other options "
            f"from these weights: --model {path}"
        )


# What changes where and how a run computes or is kept, but not what it learns; iterations are looked at by who extends a run.
_FREE = {"iterations", "threads", "device", "wandb", "checkpoint_every", "keep_checkpoints", "helper_minutes"}


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    parts = [
        _flat(v, f"{prefix}{k}.") if isinstance(v, dict) and v else {f"{prefix}{k}": v}
        for k, v in record.items()
    ]
    return {name: value for part in parts for name, value in part.items()}


# What torch and safetensors raise for files that they cannot read, and what a state of another shape leads to.
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    SafetensorError,
    pickle.UnpicklingError,
    TStarError,
)


def load_state(trainer: Trainer, path: Path) -> None:
    """Bring a rank back to a checkpoint that ``read_state`` has verified; all ranks call it.

    Raises:
        BadCheckpoint: a file is missing, damaged, or of another model.
    """
    with together(trainer.world):
        _load(trainer, path)


def _load(trainer: Trainer, path: Path) -> None:
    try:
        state = read_json(path / "state.json")
        trainer.learner.load(path)
        trainer.grafted = {(task, key) for task, key in state["grafted"]}
        # Older checkpoints do not hold the cursor; every iteration played as many tasks then.
        trainer.cursor = state.get("cursor", state["iteration"] * trainer.config.rollout.tasks)
    except _UNREADABLE as error:
        raise BadCheckpoint(
            f"{path} cannot be read ({error}); delete it to resume from the one before"
        ) from error
