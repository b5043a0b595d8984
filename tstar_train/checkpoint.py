"""Checkpoints: saving, the best one, and taking a run up again."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import pickle
import shlex
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from tstar_envs import BadData, TStarError, UnknownOption, find_entry, read_json, write_whole
from tstar_envs.redaction import HIDDEN, without_secrets
from tstar_train.ahead import QUEUE
from tstar_train.config import ENVIRONMENT_OPTIONS, Config, with_present_names
from tstar_train.distributed import raise_on_any_rank
from tstar_train.grafting import GraftDataset
from tstar_train.learner.state import LearnerState, in_main_memory, write_tensors
from tstar_train.loop import Trainer, share_of_episodes, share_of_minutes, share_of_turns
from tstar_train.policy.files import check_files, sha256_of
from tstar_train.policy.model import Policy, by_file_names, renamed, save_description
from tstar_train.presets import option_for_each, with_environment_options
from tstar_train.rollout.stream import Estimates
from tstar_train.stopping import hidden_options, option
from tstar_train.tracking import RunFolder

GRAFTS = "grafts.jsonl"  # the grafting set, in runs that keep one


class BadCheckpoint(TStarError, RuntimeError):
    """A checkpoint cannot be read; the message names the file and what to do."""


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        iteration: number of finished iterations.
        seconds: of training so far.
        episodes: played in training so far.
        wall_seconds: since the start, with measurements and without pauses between stop and resume.
    """

    iteration: int = 0
    seconds: float = 0.0
    episodes: int = 0
    wall_seconds: float = 0.0

    @classmethod
    def of(cls, state: dict[str, Any]) -> Progress:
        """Read the progress from a checkpoint's state."""
        return cls(state["iteration"], state["seconds"], state["episodes"], state["wall_seconds"])


@dataclass
class Snapshot:
    """Everything that a checkpoint holds, taken between two iterations.

    Attributes:
        iteration: of the checkpoint.
        learner: weights and optimizer state.
        dataset: grafting set; None in runs that keep none.
        queue: what was sampled ahead; empty without it.
        state: content of ``state.json``, without the files' hashes.
        policy: model and tokenizer, whose description is written.
    """

    iteration: int
    learner: LearnerState
    dataset: GraftDataset | None
    queue: bytes
    state: dict[str, Any]
    policy: Policy


def take_snapshot(trainer: Trainer, progress: Progress, copy: bool = False) -> Snapshot:
    """Take what a checkpoint holds.

    Args:
        trainer: with a complete state (``trainer.whole``).
        progress: of the run.
        copy: True to copy weights and optimizer state to main memory, so that training may go on meanwhile.
    """
    learner = trainer.learner.state()
    state = {
        "iteration": progress.iteration,
        "seconds": progress.seconds,
        "episodes": progress.episodes,
        "wall_seconds": progress.wall_seconds,
        "grafted": sorted(trainer.grafted),
        "cursor": trainer.cursor,
        "turns": trainer.turns,
        **({"estimates": trainer.estimates.record()} if trainer.config.curriculum == "success" else {}),
        "config": trainer.config.record(),
    }
    return Snapshot(
        progress.iteration,
        learner.in_memory() if copy else learner,
        trainer.dataset if trainer.config.keeps_grafts else None,
        trainer.ahead.packed(),
        state,
        trainer.policy,
    )


def save_checkpoint(
    folder: Path,
    trainer: Trainer,
    progress: Progress,
    keep: int,
    chosen: Callable[[int], Collection[int]] | None = None,
) -> Path:
    """Write a checkpoint now; see ``write_checkpoint``."""
    return write_checkpoint(folder, take_snapshot(trainer, progress), keep, chosen)


def write_checkpoint(
    folder: Path,
    snapshot: Snapshot,
    keep: int,
    chosen: Callable[[int], Collection[int]] | None = None,
) -> Path:
    """Write ``checkpoints/<iteration>`` under a run folder, then delete older ones beyond ``keep``.

    A killed writer leaves a folder ``.partial-...``: it is never read, and the next writer or reader removes it.

    Args:
        folder: of the run.
        snapshot: to write.
        keep: number of latest checkpoints to keep.
        chosen: maps an iteration to the best ones validated until then; the best of kept checkpoints are kept too.

    Raises:
        OSError: it could not be written; earlier ones are whole.
    """
    root = folder / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    remove_partial(folder)
    final = root / f"{snapshot.iteration:06d}"
    partial = root / f".partial-{final.name}"
    try:
        partial.mkdir()
        _write(partial, snapshot)
    except (RuntimeError, OSError) as error:
        # A full disk, which torch reports by an error of its own; the run's other files and checkpoints are whole.
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise OSError(
            errno.ENOSPC, f"the checkpoint could not be written ({error}); is the disk full?", str(partial)
        ) from error
    if final.exists():
        remove_checkpoint(final)
    partial.rename(final)
    found = sorted(p for p in root.iterdir() if p.name.isdigit())
    spared = {best for p in found[-keep:] for best in chosen(int(p.name))} if chosen is not None else set()
    for old in found[:-keep]:
        if int(old.name) not in spared:
            remove_checkpoint(old)
    return final


class CheckpointWriter:
    """Writes a run's checkpoints one after another, beside the training or while it waits.

    Args:
        folder: of the run.
        keep: see ``write_checkpoint``.
        chosen: see ``write_checkpoint``; only called while nothing is validated.
        beside: True to write a copy in a thread of its own.
    """

    def __init__(
        self, folder: Path, keep: int, chosen: Callable[[int], Collection[int]], beside: bool = True
    ) -> None:
        self._folder, self._keep, self._chosen, self._beside = folder, keep, chosen, beside
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, trainer: Trainer, progress: Progress) -> None:
        """Save a trainer between two iterations, after the last checkpoint is written.

        Raises:
            OSError: this or the last checkpoint could not be written.
        """
        self.wait()
        if not self._beside:
            save_checkpoint(self._folder, trainer, progress, self._keep, self._chosen)
            return
        snapshot = take_snapshot(trainer, progress, copy=True)

        def work() -> None:
            try:
                write_checkpoint(self._folder, snapshot, self._keep, self._chosen)
            except Exception as error:  # noqa: BLE001  # raised by ``wait`` in the main thread
                self._error = error

        self._thread = threading.Thread(target=work, name="tstar checkpoint")
        self._thread.start()

    @property
    def failed(self) -> bool:
        """True if a checkpoint could not be written; ``wait`` raises the error."""
        return self._error is not None

    def wait(self) -> None:
        """Wait until the checkpoint is written.

        Raises:
            OSError: it could not be.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def remove_partial(folder: Path) -> None:
    """Remove what a killed writer, or a killed cleanup, left in a run folder."""
    for rest in (*(folder / "checkpoints").glob(".partial-*"), *folder.glob(".partial-*")):
        shutil.rmtree(rest)


def remove_checkpoint(old: Path) -> None:
    """Remove a checkpoint so that one that is half gone is never taken for one."""
    doomed = old.with_name(f".partial-old-{old.name}")
    old.rename(doomed)
    shutil.rmtree(doomed)


def _write(partial: Path, snapshot: Snapshot) -> None:
    """All files of a checkpoint; the state comes last, with the others' hashes."""
    sums = snapshot.learner.write(partial)
    if snapshot.dataset is not None:
        snapshot.dataset.save(partial / GRAFTS)
    if snapshot.queue:
        write_whole(partial / QUEUE, snapshot.queue)
    policy = snapshot.policy
    save_description(partial, policy.model, policy.tokenizer, policy.published)
    # The policy loads as a model of its own from this folder: transformers looks for this name.
    weights, model = partial / "policy.safetensors", partial / "model.safetensors"
    with safe_open(weights, framework="pt") as tensors:
        names = [(name, tensors.get_slice(name).get_shape()) for name in tensors.keys()]  # noqa: SIM118  # no mapping
    if renamed(policy.model, names):
        sums[model.name] = write_tensors(
            model, in_main_memory(dict(by_file_names(policy.model, load_file(weights).items())), False)
        )
    else:
        link(weights, model)
        sums[model.name] = sums[weights.name]
    for path in sorted(partial.iterdir()):
        sums.setdefault(path.name, sha256_of(path))
    state = {**snapshot.state, "sha256": dict(sorted(sums.items()))}
    write_whole(partial / "state.json", json.dumps({**state, "state_sha256": _sum_of(state)}, indent=1))


def _sum_of(state: dict[str, Any]) -> str:
    """Hash the state that a run's future depends on, without options (these are compared with ``config.json``)."""
    kept = {name: value for name, value in state.items() if name not in ("config", "state_sha256")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def link(file: Path, name: Path) -> None:
    """Hard-link a file that is never changed in place, or copy it if the file system has no links."""
    try:
        os.link(file, name)
    except OSError:  # FAT, many network and container mounts
        shutil.copyfile(file, name)


def latest_checkpoint(folder: Path) -> Path | None:
    """Find the newest complete checkpoint of a run folder."""
    found = sorted(
        p for p in (folder / "checkpoints").glob("*") if p.name.isdigit() and (p / "state.json").is_file()
    )
    return found[-1] if found else None


def read_state(
    path: Path, iteration: int | None = None, mend: str = "delete it to resume from the one before"
) -> dict[str, Any]:
    """Read a checkpoint's state after verifying all its files.

    Args:
        path: of its folder.
        iteration: expected iteration; None: the one in the folder's name.
        mend: advice for the error message.

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
        for name in ("cursor", "turns"):  # checkpoints of older versions have neither these nor the sum
            count = state.get(name, 0)
            if type(count) is not int or count < 0:
                raise BadData(f"{path / 'state.json'}: no valid {name!r}")
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
    """Refuse to resume a checkpoint with options other than its own; more iterations are allowed.

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
    # An option that is younger than the run is what the run did without it: its default, or ``DONE_BEFORE`` (``with_present_names``).
    theirs = {
        name: default for name, default in _flat(asdict(Config(env=config.env))).items() if name in ours
    } | _flat(with_present_names(made))
    edited = [
        f"{name} is {ours.get(name)!r}, the run was made with {theirs.get(name)!r}"
        for name in dict.fromkeys([*theirs, *ours])
        if name not in _FREE and ours.get(name) != theirs.get(name)
    ]
    if edited:
        raise UnknownOption(
            f"{path.parents[1] / 'config.json'} was edited ({'; '.join(edited):.400}): restore the file, or start a new run "
            f"with other options from these weights: --model {path}"
        )


# What changes where and how a run computes or is kept, but not what it learns; iterations are looked at by who extends a run.
_FREE = {
    "iterations",
    "threads",
    "device",
    "wandb",
    "checkpoint_every",
    "checkpoint_beside",
    "keep_checkpoints",
    "timeout_minutes",
}


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
    """Load a checkpoint that ``read_state`` has verified; all ranks call it.

    Raises:
        BadCheckpoint: a file is missing, damaged, or of another model.
    """
    with raise_on_any_rank(trainer.world):
        _load(trainer, path)


def _load(trainer: Trainer, path: Path) -> None:
    try:
        state = read_json(path / "state.json")
        trainer.learner.load(path)
        trainer.grafted = {(task, key) for task, key in state["grafted"]}
        if trainer.config.keeps_grafts and trainer.world.rank == 0:
            trainer.dataset = GraftDataset.load(path / GRAFTS)
        # Older checkpoints do not hold the cursor; every iteration played as many tasks then.
        trainer.cursor = state.get("cursor", state["iteration"] * trainer.config.rollout.tasks_per_iteration)
        trainer.turns = state.get("turns", 0)
        trainer.estimates = Estimates(state["estimates"] if trainer.config.curriculum == "success" else {})
        if trainer.sampler is not None:
            trainer.ahead.load(path / QUEUE, trainer.world)
    except _UNREADABLE as error:
        raise BadCheckpoint(
            f"{path} cannot be read ({error}); delete it to resume from the one before"
        ) from error


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux, <fcntl.h> and <linux/fs.h>


def best_folder(out: Path, env: str = "") -> Path:
    """Return the best checkpoint's folder.

    Args:
        out: the run folder.
        env: environment whose best is meant, in a run on several; "": the best of all together.
    """
    return out / (f"best-{find_entry(env).name}" if env else "best")


def keep_best_checkpoint(out: Path, iteration: int, env: str = "") -> None:
    """Replace ``best`` by a copy of ``checkpoints/<iteration>``, with hard links where possible.

    Args:
        out: the run folder.
        iteration: of an existing checkpoint.
        env: see ``best_folder``.
    """
    best = best_folder(out, env)
    checkpoint, partial = _checkpoint(out, iteration), out / f".partial-{best.name}"
    remove_folder(partial)
    partial.mkdir()
    for file in checkpoint.iterdir():
        link(file, partial / file.name)
    replace_folder(partial, best)


def restore_best_checkpoint(out: Path, iteration: int, env: str = "") -> None:
    """Restore ``best`` to an iteration if it is another one's, after a kill or a resume from an earlier checkpoint.

    Args:
        out: the run folder.
        iteration: of the best weights.
        env: see ``best_folder``.

    Raises:
        BadCheckpoint: it, or the checkpoint to copy, is damaged.
    """
    try:
        found = read_json(best_folder(out, env) / "state.json").get("iteration")
    except TStarError:  # missing or no state, and so no checkpoint
        found = None
    if found == iteration:
        verified_best_checkpoint(out, iteration, env)
        return
    lost = f"the weights of iteration {iteration}, which validation chose, are lost: restore that folder, or start a new run"
    read_state(_checkpoint(out, iteration), iteration, lost)
    keep_best_checkpoint(out, iteration, env)


def verified_best_checkpoint(out: Path, iteration: int, env: str = "") -> Path:
    """Return the best checkpoint's folder after verifying all its files; arguments as in ``restore_best_checkpoint``.

    Raises:
        BadCheckpoint: it is damaged, or of another iteration.
    """
    path = best_folder(out, env)
    read_state(
        path, iteration, f"delete it, and --resume {out} makes it again from {_checkpoint(out, iteration)}"
    )
    return path


def _checkpoint(out: Path, iteration: int) -> Path:
    return out / "checkpoints" / f"{iteration:06d}"


def replace_folder(new: Path, old: Path) -> None:
    """Replace a folder by another one.

    Linux exchanges the two atomically. Elsewhere (other systems, some network mounts) the name is missing for a moment between two
    renames; a run killed then is repaired from the checkpoint, which is kept until later.
    """
    doomed = old.with_name(f".partial-old-{old.name}")
    remove_folder(doomed)
    if old.exists() and not exchange_folders(new, old):
        old.rename(doomed)
    if not old.exists():
        new.rename(old)
    remove_folder(new)
    remove_folder(doomed)


def remove_folder(path: Path) -> None:
    """Remove a folder if it is there."""
    if path.exists():
        shutil.rmtree(path)


def exchange_folders(one: Path, other: Path) -> bool:
    """Exchange two folders atomically (renameat2).

    Returns:
        True if the system supports it; otherwise nothing is changed.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def resumed(
    out: Path, config: Config, iterations: int | None, console: Console
) -> tuple[Path | None, Config]:
    """Find and verify a run's newest checkpoint; return it with the options to resume with.

    Args:
        out: the run folder, locked by this process (``lock_run_dir``).
        config: what its ``config.json`` says.
        iterations: new total number of iterations; None: unchanged.
        console: for notes.

    Returns:
        (checkpoint or None if there is none yet, options).

    Raises:
        BadCheckpoint: the checkpoint is damaged.
        UnknownOption: ``config.json`` was edited, or ``iterations`` does not make the run longer.
    """
    remove_partial(out)
    for left in out.glob(".report.html.*"):
        left.unlink()
    checkpoint = latest_checkpoint(out)
    if checkpoint is None:
        if iterations is not None:
            config = _longer(config, iterations, config.iterations, out)
            write_whole(out / "config.json", config.to_json())
        return None, config
    state = read_state(checkpoint)
    check_same_options(checkpoint, state, config)
    made_with = state["config"].get("iterations")
    if iterations is None:
        if config.iterations != made_with:
            raise UnknownOption(
                f"{out / 'config.json'} was edited (iterations is {config.iterations}, the run was made with {made_with}): "
                f"restore the file; to make the run longer: --resume {out} --iterations N"
            )
        return checkpoint, config
    config = _longer(config, iterations, made_with, out)
    ended = {
        f"--minutes {config.minutes}": share_of_minutes(config, state["seconds"]) > 1,
        f"--episodes {config.episodes}": share_of_episodes(config, state.get("cursor", 0)) >= 1,
        f"--turns {config.turns}": share_of_turns(config, state.get("turns", 0)) >= 1,
    }
    for limit in (limit for limit, reached in ended.items() if reached):
        raise UnknownOption(f"the run was ended by {limit}, so that more iterations change nothing")
    if config.iterations > made_with:
        _extend(out, checkpoint, state, config)
        console.print(
            f"the run goes on to {config.iterations} iterations instead of {made_with}", highlight=False
        )
    return checkpoint, config


def with_secrets(config: Config, given: Mapping[str, Sequence[str]], out: Path) -> Config:
    """Put secrets that are given again into a run's options; no file of the run holds them.

    Args:
        config: as ``config.json`` says.
        given: ``key=value`` pairs by the field of ``config``.
        out: the run folder, for messages.

    Raises:
        UnknownOption: a secret is missing, or a given option differs from the run's.
    """
    entries = [find_entry(env) for env in config.environments]
    again = {
        field: option_for_each(entries, option(field), given.get(field, ())) for field in ENVIRONMENT_OPTIONS
    }
    for env, field in ((env, field) for env in config.environments for field in ENVIRONMENT_OPTIONS):
        stored = getattr(config.of(env), field)
        for name, value in again[field].get(env, {}).items():
            if without_secrets({name: value}) != {name: stored.get(name)}:
                raise UnknownOption(
                    f"--resume goes on with the run's own options and takes no others, got {option(field)} "
                    f"{name}={without_secrets(value, name)} where {out} has {stored.get(name)!r}; only secrets are given again"
                )
    config = with_environment_options(config, *again.values())
    missing = hidden_options(config)
    if missing:
        raise UnknownOption(
            f"no file of {out} holds the secrets of its options: give them again, each in place of {HIDDEN}: --resume {out} "
            f"{shlex.join(missing)}"
        )
    return config


def finished(out: Path, config: Config, checkpoint: Path | None) -> dict[str, Any] | None:
    """Read the summary of a complete run; None if it is incomplete.

    Raises:
        BadData: the summary or a log is damaged, or of another run.
    """
    path = out / "summary.json"
    if not path.exists():
        return None
    summary: dict[str, Any] = read_json(path)
    done = int(checkpoint.name) if checkpoint is not None else 0
    if summary.get("iterations") != done or type(summary["iterations"]) is not int:
        raise BadData(
            f"{path} is of {summary.get('iterations')!r:.40} iterations, the newest checkpoint of {done}: remove it to measure the "
            f"checkpoint again"
        )
    RunFolder(out, config).cut(done)
    return summary


def _longer(config: Config, iterations: int, before: Any, out: Path) -> Config:
    if not isinstance(before, int) or iterations < before:
        raise UnknownOption(
            f"--iterations {iterations}: {out} was started with {before}, and a run can only be made longer"
        )
    return replace(config, iterations=iterations)


def _extend(out: Path, checkpoint: Path, state: dict[str, Any], config: Config) -> None:
    """Record that a run is extended, keeping its earlier result.

    The options are written first and the checkpoint's copy last: after a kill in between, the same command completes it.
    """
    had = state["iteration"]
    write_whole(out / "config.json", config.to_json())
    for name in ("summary.json", "evaluation.json"):
        if (out / name).exists() and (name == "summary.json" or "after" in read_json(out / name)):
            kept = out / name.replace(".json", f"-{had:06d}.json")
            write_whole(kept, (out / name).read_bytes())
            if name == "summary.json":
                (out / name).unlink()
    recorded = read_json(out / "evaluation.json")
    rest = {
        key: value
        for key, value in recorded.items()
        if key not in ("after", "difference", "ci_low", "ci_high", "by_env", "chosen")
    }
    RunFolder(out, config).write("evaluation.json", rest)
    longer = {**state, "config": {**state["config"], "iterations": config.iterations}}
    write_whole(checkpoint / "state.json", json.dumps(longer, indent=1))
