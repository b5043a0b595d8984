"""Lock for a single writer of a file or folder; rejects a second process.

The lock is the system's (``flock``): it ends with its process, however that ends, and the file of a dead process is simply reused. The
content of the lock file is only for the message.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData, InUse, WriteFailed

if sys.platform != "win32":
    import fcntl


_LONGEST = 4096  # bytes of a lock file


@contextmanager
def only_writer(path: Path, what: str, advice: str) -> Iterator[None]:
    """Hold a lock file during a ``with`` block.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from tstar_envs import only_writer
        >>> folder = Path(tempfile.mkdtemp())
        >>> with only_writer(folder / ".lock", "the results", "wait for the other process"):
        ...     _ = (folder / "results.txt").write_text("done")

    Args:
        path: lock file, removed at the end. Its folder must exist.
        what: name of the locked thing, for the message.
        advice: advice for the user, for the message.

    Raises:
        InUse: another process holds the lock; the message has its process id, host and start time.
        WriteFailed: the lock file cannot be created, another file is in its place, or the file system has no locks.
    """
    holder = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    with _taken(path, what, advice) as handle:
        try:
            try:
                handle.truncate(0)
                handle.write(json.dumps(holder).encode())
            except OSError as error:  # a full disk
                raise _unwritable(path, what, error) from error
            yield
        finally:
            # While it is held: a process that opened it meanwhile sees that it is gone (``_taken``).
            path.unlink(missing_ok=True)


def _unwritable(path: Path, what: str, error: OSError | ValueError) -> WriteFailed:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return WriteFailed(f"{str(path)!r:.300} cannot be written: {reason}. Choose another place for {what}")


def _opened(path: str, flags: int) -> int:
    """Open without following a link, and without blocking on a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def _taken(path: Path, what: str, advice: str) -> FileIO:
    """Open the lock file and lock it."""
    while True:
        try:
            handle = FileIO(path, "a+", opener=_opened)
        except (OSError, ValueError) as error:
            if path.is_symlink():
                raise _not_ours(path, "is a link") from error
            raise _unwritable(path, what, error) from error
        try:
            _require_ours(handle, path)
            _take(handle.fileno(), path, what, advice)
            if _is_at(handle.fileno(), path):
                return handle
        except BaseException:
            handle.close()
            raise
        handle.close()  # its holder removed it between the two calls: create it again


def _require_ours(handle: FileIO, path: Path) -> None:
    """Reject a file that is not one of our lock files: it would be truncated, and finally removed.

    Raises:
        WriteFailed: it is not a lock file.
    """
    found = os.fstat(handle.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise _not_ours(path, "is not a regular file")
    if found.st_nlink > 1:
        raise _not_ours(path, "is another file's second name")
    if found.st_size > _LONGEST:
        raise _not_ours(path, "holds something else")
    handle.seek(0)
    content = handle.read(_LONGEST)
    # A lock file written to a full disk may be truncated.
    if content and not content.startswith(b'{"process": '):
        raise _not_ours(path, "holds something else")


def _not_ours(path: Path, why: str) -> WriteFailed:
    return WriteFailed(f"{path} stands where the lock would be, and {why}: move it away")


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _take(descriptor: int, path: Path, what: str, advice: str) -> None:
    if (
        sys.platform == "win32"
    ):  # pragma: no cover - no flock there; files are then not locked, as the documentation says
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
    """Read the holder of a lock from its file."""
    try:
        holder = parse_json(path.read_text(encoding="utf-8"), path)
    except (BadData, OSError, UnicodeDecodeError):
        # It is just being written; that it is locked is known all the same.
        return "another process"
    return f"process {holder.get('process')} on {holder.get('host')} since {holder.get('since')}"
