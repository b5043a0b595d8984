"""Resumable builds: durable marks of the progress, and the progress display."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from retriever.errors import BadSetting

_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a build; yields a `Report` function."""
    if not console.is_terminal:
        yield _Lines(console).report
        return
    amount = TextColumn("{task.fields[amount]}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        amount,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total, amount="")
            bars.update(
                tasks[phase], completed=done, total=total, amount=f"{done:,} of {total:,} {_unit(phase)}"
            )

        yield report


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = time.monotonic()

    def report(self, phase: str, done: int, total: int) -> None:
        if time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._console.print(
                f"{phase}: {done:,} of {total:,} {_unit(phase)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _unit(phase: str) -> str:
    return {"reading": "bytes", "writing": "", "choosing": ""}.get(phase, "passages")


Report = Callable[[str, int, int], None]
"""Progress callback, called with phase, done and total."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Marks:
    """Durable progress marks of a build.

    Args:
        work: Folder of the unfinished build.
        identity: Corpus and settings of the build, JSON-serializable.

    Raises:
        BadSetting: The folder holds a build with other settings.
    """

    def __init__(self, work: Path, identity: dict[str, Any]) -> None:
        self.work = work
        self._path = work / "state.json"
        self.state: dict[str, Any] = {"plan": identity}
        if self._path.is_file():
            self.state = json.loads(self._path.read_text())
            if self.state["plan"] != identity:
                raise BadSetting(
                    f"{work} holds a build with other settings or of another corpus file: repeat that command, or remove the "
                    f"folder to start again (then: {self.state['plan']}; now: {identity})."
                )

    def __getitem__(self, name: str) -> int:
        """Get a mark; 0 if it was never set."""
        return int(self.state.get(name, 0))

    def set(self, **marks: int | str) -> None:
        """Set marks atomically. The data that they describe must be on disk already."""
        self.state.update(marks)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as stream:
            json.dump(self.state, stream)
            to_disk(stream)
        temporary.replace(self._path)

    def growing(self, name: str, size: int) -> AbstractContextManager[BinaryIO]:
        """Open a file of the work folder with `grown`."""
        return grown(self.work / name, size)

    def placed(self, name: str) -> int:
        """Get a mark that was set with `place`.

        0 if the machine may have rebooted since.
        """
        return self[name] if self.state.get("boot", "") == _boot() != "" else 0

    def place(self, name: str, count: int) -> None:
        """Set a mark for data that the kernel has, but perhaps not the disk.

        Scattered writes are not synced, which would be slow. A killed process loses nothing of them; only a crash of the machine
        does, and that is detected by its changed boot id.
        """
        marks: dict[str, int | str] = {name: count, "boot": _boot()}
        self.set(**marks)


def _boot() -> str:
    return BOOT_ID.read_text().strip() if BOOT_ID.is_file() else ""


@contextmanager
def grown(path: Path, size: int) -> Iterator[BinaryIO]:
    """Open a file for appending after its first ``size`` bytes.

    The rest is unfinished and cut off.
    """
    with path.open("ab") as stream:
        stream.truncate(size)
        stream.seek(size)
        yield stream


def reserve(path: Path, size: int) -> None:
    """Allocate the disk space of a file that will be written through a memory map.

    A full disk raises OSError here; during a write through a map it would kill the process with a signal.
    """
    with path.open("ab") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:  # macOS
            while (left := size - stream.tell()) > 0:
                stream.write(bytes(min(left, 1 << 20)))


def to_disk(*streams: IO[Any]) -> None:
    """Flush streams and sync them to disk."""
    for stream in streams:
        stream.flush()
        os.fsync(stream.fileno())


def turns(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the equal elements before each element: [7, 3, 7, 7] gives [0, 0, 1, 2]."""
    order = np.argsort(groups, kind="stable")
    _, first, counts = np.unique(groups[order], return_index=True, return_counts=True)
    result = np.empty(len(groups), np.int64)
    result[order] = np.arange(len(groups)) - np.repeat(first, counts)
    return result


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Create and lock the folder of a build.

    Raises:
        BadSetting: Another process builds there, or it contains a link, whose target a build would truncate or remove.
    """
    for path in (work, *(work.rglob("*") if work.is_dir() else ())):
        if path.is_symlink():
            raise BadSetting(
                f"{path} is a link to {path.readlink()}, and a build truncates and removes files there: move it away."
            )
    work.mkdir(exist_ok=True)
    with (work / "lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadSetting(f"another process builds in {work}; wait for it or end it.") from error
        yield
