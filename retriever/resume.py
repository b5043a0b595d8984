"""Resuming: marks of a build that an interruption does not undo, and its progress."""

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
    """Yield a function that takes the phase, how much of it is done, and out of how much."""
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
    return {"reading": "bytes", "writing": ""}.get(phase, "passages")


Report = Callable[[str, int, int], None]
"""Called with the phase, how much of it is done, and out of how much."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Marks:
    """How far a build has come, on disk.

    Args:
        work: The folder of the unfinished build.
        identity: What is built from what, in JSON's types.

    Raises:
        BadSetting: The folder holds a build of something else.
    """

    def __init__(self, work: Path, identity: dict[str, Any]) -> None:
        self.work = work
        self._path = work / "state.json"
        self.state: dict[str, Any] = {"plan": identity}
        if self._path.is_file():
            self.state = json.loads(self._path.read_text())
            if self.state["plan"] != identity:
                raise BadSetting(
                    f"{work} holds a build of other settings or of another corpus file: repeat that command, or remove the "
                    f"folder and start anew (then: {self.state['plan']}; now: {identity})."
                )

    def __getitem__(self, name: str) -> int:
        """A mark; 0 before it was set."""
        return int(self.state.get(name, 0))

    def set(self, **marks: int | str) -> None:
        """Set marks, all or none, once what they stand for is on the disk."""
        self.state.update(marks)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as stream:
            json.dump(self.state, stream)
            to_disk(stream)
        temporary.replace(self._path)

    def growing(self, name: str, size: int) -> AbstractContextManager[BinaryIO]:
        """Open a file of the working folder as `grown` does."""
        return grown(self.work / name, size)

    def placed(self, name: str) -> int:
        """Like ``marks[name]``, for what was written with `place`: 0 if the machine was, or may have been, started anew since."""
        return self[name] if self.state.get("boot", "") == _boot() != "" else 0

    def place(self, name: str, count: int) -> None:
        """Set a mark for bytes that the kernel has, if not the disk.

        Bytes that go to scattered places are not waited for: a killed process loses none of what it has written, only
        a machine that fails does, which the changed boot id shows after its next start.
        """
        marks: dict[str, int | str] = {name: count, "boot": _boot()}
        self.set(**marks)


def _boot() -> str:
    return BOOT_ID.read_text().strip() if BOOT_ID.is_file() else ""


@contextmanager
def grown(path: Path, size: int) -> Iterator[BinaryIO]:
    """Open a file to go on after its first ``size`` bytes; what lies behind them was never finished."""
    with path.open("ab") as stream:
        stream.truncate(size)
        stream.seek(size)
        yield stream


def reserve(path: Path, size: int) -> None:
    """Make a file of ``size`` bytes, or the first ``size`` of one that is there, safe to be written as a mapping.

    A full disk is reported here, as an OSError; a write to a mapped file could only be answered by a signal.
    """
    with path.open("ab") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        else:  # macOS
            while (left := size - stream.tell()) > 0:
                stream.write(bytes(min(left, 1 << 20)))


def to_disk(*streams: IO[Any]) -> None:
    """Return when the disk has what was written."""
    for stream in streams:
        stream.flush()
        os.fsync(stream.fileno())


def turns(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of equal elements before each element: [7, 3, 7, 7] gives [0, 0, 1, 2]."""
    order = np.argsort(groups, kind="stable")
    _, first, counts = np.unique(groups[order], return_index=True, return_counts=True)
    result = np.empty(len(groups), np.int64)
    result[order] = np.arange(len(groups)) - np.repeat(first, counts)
    return result


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Make the folder of a build, and keep other processes out of it.

    Raises:
        BadSetting: Another process builds there, or a part of it is a link: files would be cut and removed where it leads to.
    """
    for path in (work, *(work.rglob("*") if work.is_dir() else ())):
        if path.is_symlink():
            raise BadSetting(
                f"{path} is a link, to {path.readlink()}, and a build cuts and removes files there: move it away."
            )
    work.mkdir(exist_ok=True)
    with (work / "lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadSetting(f"another process builds in {work}; wait for it or end it.") from error
        yield
