"""The best checkpoint of a run as a folder of its own, ``best``: always a whole one, whenever the process ends."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from tstar_envs import TStarError, read_json
from tstar_train.checkpoint import link, read_state

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux, <fcntl.h> and <linux/fs.h>


def best_folder(out: Path) -> Path:
    """Where a run keeps it."""
    return out / "best"


def keep_best(out: Path, iteration: int) -> None:
    """Let ``best`` be what ``checkpoints/<iteration>`` is, in place of what it was. Files are shared where there are hard links.

    Args:
        out: the run folder.
        iteration: whose checkpoint is there.
    """
    checkpoint, partial = _checkpoint(out, iteration), out / ".partial-best"
    remove_folder(partial)
    partial.mkdir()
    for file in checkpoint.iterdir():
        link(file, partial / file.name)
    replace_folder(partial, best_folder(out))


def restore_best(out: Path, iteration: int) -> None:
    """Bring ``best`` to an iteration if it is another one's: the run was killed before it was replaced, or resumes from further back.

    Raises:
        BadCheckpoint: it is damaged, or is to be made from a checkpoint that is.
    """
    try:
        found = read_json(best_folder(out) / "state.json").get("iteration")
    except TStarError:  # missing or no state, and so no checkpoint
        found = None
    if found == iteration:
        verified_best(out, iteration)
        return
    lost = f"the weights of iteration {iteration}, which validation chose, are lost: put that folder back, or start a new run"
    read_state(_checkpoint(out, iteration), iteration, lost)
    keep_best(out, iteration)


def verified_best(out: Path, iteration: int) -> Path:
    """The folder, once every file of it is known to be what was written.

    Raises:
        BadCheckpoint: it is damaged, or another iteration's.
    """
    path = best_folder(out)
    read_state(
        path, iteration, f"delete it, and --resume {out} makes it again from {_checkpoint(out, iteration)}"
    )
    return path


def _checkpoint(out: Path, iteration: int) -> Path:
    return out / "checkpoints" / f"{iteration:06d}"


def replace_folder(new: Path, old: Path) -> None:
    """Put a folder in another one's place.

    Linux exchanges the two in one stroke. Where it cannot (other systems, some network mounts) the name is missing for a moment between
    two renames; a run that is killed then makes it again from the checkpoint, which is kept as long.
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
    """Exchange two folders by name in one stroke (renameat2).

    Returns:
        Whether the system could; else both are where they were.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
