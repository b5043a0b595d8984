"""Stop signals of a run (Ctrl-C, SIGTERM of a scheduler, SIGHUP of a closed terminal), and the resume command."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from tstar_envs import TStarError
from tstar_envs.redaction import HIDDEN
from tstar_train.config import ENVIRONMENT_OPTIONS, Config

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def resume_command(out: Path) -> str:
    """Format the command that resumes a run, with the path of the running Python.

    Args:
        out: folder of the run.
    """
    own, found = Path(sys.executable), shutil.which("python")
    python = "python"
    if found is None or Path(found).parent != own.parent:
        python = str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
    secrets: list[str] = []
    with suppress(OSError, TStarError):  # a run that was refused before it wrote them
        secrets = hidden_options(Config.from_json(out / "config.json"))
    return shlex.join([python, "-m", "tstar_train", "--resume", str(out), *secrets])


def hidden_options(config: Config) -> list[str]:
    """List the command-line options whose secret values were replaced by ``***``.

    Args:
        config: as read from ``config.json``.
    """
    return [
        word
        for env in config.environments
        for field in ENVIRONMENT_OPTIONS
        for name, value in getattr(config.of(env), field).items()
        if HIDDEN in str(value)
        for word in (option(field), f"{f'{env}:' if config.mix else ''}{name}={value}")
    ]


def option(field: str) -> str:
    """Return the command-line option of a config field: ``--env-option`` or ``--training-option``."""
    return f"--{field.removesuffix('s').replace('_', '-')}"


class Stop:
    """Request to stop, set by a signal.

    Attributes:
        asked: True once a signal came.
        patient: True if the first signal waits for the end of an iteration; otherwise it interrupts at once, as a second one does.
    """

    def __init__(self) -> None:
        self.asked = False
        self.patient = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Remember a first signal if the run can still finish its iteration; else raise KeyboardInterrupt."""
        if self.asked or not self.patient:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Catch stop signals within a ``with`` block; only the main thread can."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # Who started it with nohup wants it to outlive the terminal.
    caught = [s for s in SIGNALS if s == signal.SIGINT or signal.getsignal(s) != signal.SIG_IGN]
    previous = {s: signal.signal(s, stop.handle) for s in caught}
    try:
        yield stop
    finally:
        for signum, old in previous.items():
            signal.signal(signum, old)


@contextmanager
def unheard_by_children() -> Iterator[None]:
    """Make processes started within the block ignore the signals until they install handlers.

    A terminal or scheduler signals the whole process group. A worker that died of it would break the iteration that the main process
    is about to finish and save. Signals to this process are delayed until the end of the block.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    handlers = {s: signal.signal(s, signal.SIG_IGN) for s in SIGNALS}
    try:
        yield
    finally:
        for signum, old in handlers.items():
            signal.signal(signum, old)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
