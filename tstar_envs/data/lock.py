"""One writer for a file or folder: a second process is refused with the name of the first.

The lock is the system's (``flock``), so it ends with its process however that ends, and one left by a dead process is simply
taken over. What the lock file holds is only for the message.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData, InUse, WriteFailed

if sys.platform != "win32":
    import fcntl


@contextmanager
def only_writer(path: Path, what: str, advice: str) -> Iterator[None]:
    """Hold a lock file for the time of a ``with`` block.

    Args:
        path: the lock file, removed at the end. Its folder must be there.
        what: what is guarded, for the message.
        advice: what to do instead, for the message.

    Raises:
        InUse: another process holds it; the message names its process, host and start.
        WriteFailed: the lock file cannot be made, or the file system has no locks.
    """
    with _taken(path, what, advice) as handle:
        handle.truncate(0)
        handle.write(
            json.dumps(
                {
                    "process": os.getpid(),
                    "host": socket.gethostname(),
                    "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                }
            )
        )
        handle.flush()
        try:
            yield
        finally:
            # While it is held: who opened it meanwhile sees that it is gone (``_taken``).
            path.unlink(missing_ok=True)


def _taken(path: Path, what: str, advice: str) -> TextIO:
    """The lock file, open and locked."""
    while True:
        try:
            handle = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closed by the caller
        except (OSError, ValueError) as error:
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise WriteFailed(
                f"{str(path)!r:.300} cannot be written: {reason}. Choose another place for {what}"
            ) from error
        try:
            _take(handle.fileno(), path, what, advice)
            if _is_at(handle.fileno(), path):
                return handle
        except BaseException:
            handle.close()
            raise
        handle.close()  # its holder removed it between the two calls: make it anew


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _take(descriptor: int, path: Path, what: str, advice: str) -> None:
    if (
        sys.platform == "win32"
    ):  # pragma: no cover - no flock there; files are then unguarded, as the documentation says
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(f"{what} is being written by {_holder(path)}; {advice}") from None
    except OSError as error:
        raise WriteFailed(
            f"{path} cannot be locked: {error.strerror or error}. Choose a file system that has locks for {what}"
        ) from error


def _holder(path: Path) -> str:
    """The holder of a lock, as the lock file names it."""
    try:
        holder = parse_json(path.read_text(encoding="utf-8"), path)
    except (BadData, OSError, UnicodeDecodeError):
        # It is just being written; that it is held is known all the same.
        return "another process"
    return f"process {holder.get('process')} on {holder.get('host')} since {holder.get('since')}"
