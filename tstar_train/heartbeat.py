"""Heartbeat monitor: a small process that kills its rank if heartbeats stop.

That happens when the rank is stopped, or busy in a call that lets no other thread run, the watchdog's included.

This file is also the monitor's program (``python heartbeat.py PID RANK SECONDS``), so it imports only fast modules.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_GRACE_SECONDS = 5.0  # after a pause of both processes (a suspended job) the rank may have to wake up first
_DUMP_SECONDS = 2.0  # for the stacks to be written


class Heartbeat:
    """Heartbeat of this process: call ``send`` at least every ``seconds``, or the process is killed.

    Stacks are dumped to stderr first, unless the process is stopped.

    Args:
        rank: of this process, for the message.
        seconds: longest pause between two heartbeats.
    """

    def __init__(self, rank: int, seconds: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if os.name != "posix":
            return
        if not faulthandler.is_enabled():
            faulthandler.enable(2)
        command = [sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid()), str(rank), str(seconds)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        os.set_blocking(self._pipe, False)  # a guard that is stopped itself must not stop us

    @property
    def _pipe(self) -> int:
        return (
            self._process.stdin.fileno()
            if self._process is not None and self._process.stdin is not None
            else -1
        )

    def send(self) -> None:
        """Give a sign of life."""
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                os.write(self._pipe, b".")

    def set_timeout(self, seconds: float) -> None:
        """Another longest pause between two beats."""
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError):
                os.write(self._pipe, f"{math.ceil(seconds)}\n".encode())

    def close(self) -> None:
        """Go on without a guard."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()


def _guard(pid: int, rank: int, seconds: float) -> None:
    """Wait for beats; kill the process when none comes."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    while True:
        begun = time.monotonic()
        if not (_ready(seconds) or _ready(_GRACE_SECONDS)):
            break
        given = os.read(0, 4096)
        if not given or os.getppid() != pid:
            return
        for number in given.decode().replace(".", "").split():
            seconds = float(number)
    silent = time.monotonic() - begun
    sys.stderr.write(
        f"tstar_train: rank {rank} (process {pid}) gave no sign of life for {silent:.0f} seconds and is ended\n"
    )
    for signum in (signal.SIGABRT, signal.SIGKILL):  # the first dumps its stacks, if it is not stopped
        if os.getppid() != pid:
            return
        os.kill(pid, signum)
        time.sleep(_DUMP_SECONDS)


def _ready(seconds: float) -> bool:
    return bool(select.select([0], [], [], seconds)[0])


if __name__ == "__main__":
    _guard(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
