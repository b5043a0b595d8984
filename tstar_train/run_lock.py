"""Lock of a run folder: taken before anything is built; a failed start leaves the folder unchanged."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tstar_envs import BadData, TStarError, UnknownOption, only_writer
from tstar_train.config import Config

LOCK = ".lock"
# Folders from which files are removed, and the log whose last line may be cut; whatever else is written takes a link's place.
_CUT = {"trees", "checkpoints", "best", "tensorboard", "episodes.jsonl"}
# What a start leaves that ended before anything was measured: nothing is lost if another one begins there.
_BEGUN = {LOCK, "trees", "config.json", ".config.json.partial", "server"}


@contextmanager
def lock_run_dir(out: Path, *, resume: bool = False, used: str = "") -> Iterator[None]:
    """Lock a run folder for the time of a ``with`` block.

    Args:
        out: the folder, created with its parents if missing; removed again if the block fails before it wrote anything.
        resume: True if the folder holds the run to resume.
        used: advice for the message if the folder is not empty; by default for a run.

    Raises:
        UnknownOption: the folder cannot be created, or is not empty (unless ``resume``).
        InUse: another process writes there.
        WriteFailed: it is not writable, or its file system has no locks.
        BadData: a part of it is a link, so that removing or truncating it would change files elsewhere.
    """
    made = [path.absolute() for path in ([] if resume else _make(out))]
    place = out.absolute()  # an environment may change the process's folder
    try:
        with only_writer(place / LOCK, f"the folder {out}", "wait until it is done, or choose another --out"):
            _refuse_links(out)
            if not resume and not _unused(out):
                raise UnknownOption(
                    f"{out} is not empty: {used or f'choose another --out, or continue that run with --resume {out}'}"
                )
            try:
                yield
            except BaseException:
                if made:
                    remove_unused(place)
                raise
    except BaseException:
        with suppress(OSError):  # somebody else is in there by now
            for path in made:
                if path.exists():
                    path.rmdir()
        raise


def _refuse_links(out: Path) -> None:
    """Check that files that a run removes or truncates are in its folder: checkpoints, trees, logs.

    Raises:
        BadData: a part of the folder, or of its checkpoints, is a link.
    """
    # One level further down only for folders that are removed whole, or from which files are.
    inner = [path for name in ("checkpoints", "trees") for path in (out / name).glob("*")]
    for path in sorted([*out.iterdir(), *inner]):
        if path.is_symlink() and (path.is_dir() or path.name in _CUT):
            raise BadData(
                f"{path} is a link, to {path.readlink()}: a run removes and cuts files of its folder, and would do so there. Put what it "
                f"leads to in its place"
            )


def new_folder(base: Path) -> Path:
    """Create an empty folder ``base``, or ``base-2`` and so on if another run has that name."""
    for number in itertools.count(1):
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            if not path.parent.is_dir():
                raise
            continue
        return path
    raise AssertionError("there are always further numbers")


def remove_unused(out: Path) -> None:
    """Remove a folder in which a start left nothing but its lock."""
    if (
        out.is_dir()
        and {path.name for path in out.iterdir()} <= {LOCK, "trees"}
        and not any((out / "trees").glob("*"))
    ):
        shutil.rmtree(out)


def _make(out: Path) -> list[Path]:
    """Make a folder and what is missing above it; what was made, the deepest first."""
    try:
        if out.exists() and not out.is_dir():
            raise UnknownOption(f"{out} is a file: choose another --out for the run's folder")
        missing = list(itertools.takewhile(lambda path: not path.exists(), (out, *out.parents)))
        out.mkdir(parents=True, exist_ok=True)
    except (
        OSError,
        ValueError,
    ) as error:  # no permission, a file on the way, a name that is too long or holds a NUL
        if isinstance(error, TStarError):
            raise
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise UnknownOption(
            f"--out {str(out)!r:.200} cannot be made a folder ({reason}): choose another one"
        ) from error
    return missing


def _unused(out: Path) -> bool:
    """Check whether a folder is empty or holds only the files of an aborted start."""
    names = {path.name for path in out.iterdir()}
    if not names <= _BEGUN or any((out / "trees").glob("*")):
        return False
    if "config.json" in names:
        try:
            Config.from_json(out / "config.json")
        except TStarError:  # somebody else's
            return False
    return True
