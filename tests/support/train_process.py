"""``python -m tstar_train`` as processes of their own, forked from one that has imported torch: an import takes seconds each time."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tstar_train.cli", "tstar_train.run", "tstar_train.plan"])


def _kill_at(name: str, number: int) -> None:
    """Let this process be killed as it comes to a function, by its full name, for the n-th time."""
    parts, owner = name.split("."), None
    for length in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            owner = importlib.import_module(".".join(parts[:length]))
            break
    for part in parts[length:-1]:
        owner = getattr(owner, part)
    true, left = getattr(owner, parts[-1]), itertools.count(1)

    def killed(*arguments: object, **named: object) -> object:
        if next(left) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return true(*arguments, **named)

    setattr(owner, parts[-1], killed)


def _run(
    arguments: list[str],
    streams: tuple[Path, Path],
    environment: dict[str, str],
    killed_at: tuple[str, int] | None,
) -> None:
    os.setsid()  # a group of its own, as of a shell's command
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    # What pytest puts in the place of these has no descriptor.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.environ.update(environment)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    from tstar_train.__main__ import main

    if killed_at is not None:
        _kill_at(*killed_at)
    sys.exit(main(arguments))


class TrainProcess:
    """A run that can be waited for, signalled and killed; leaving the ``with`` block kills it and its helpers.

    Args:
        folder: for what it prints, in files of its process's name.
        arguments: of the command line.
        environment: variables that it gets.
        killed_at: full name of a function, and for the how many-th time: there it kills itself, as ``kill -9`` would.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        killed_at: tuple[str, int] | None = None,
    ) -> None:
        self._arguments = [*map(str, arguments)]
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.printed")))
        self._streams = (folder / f"{number}.printed", folder / f"{number}.errors")
        self._process = _CONTEXT.Process(
            target=_run, args=(self._arguments, self._streams, dict(environment or {}), killed_at)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def done(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Exit code and what it printed, after its end."""
        self._process.join(timeout)
        assert not self.running, f"not done after {timeout} s"
        printed, errors = (path.read_text() for path in self._streams)
        return subprocess.CompletedProcess(self._arguments, self._process.exitcode or 0, printed, errors)

    def done_by_kill(self, timeout: float = 300) -> None:
        """After its end, which must be by ``killed_at``."""
        self._process.join(timeout)
        assert self._process.exitcode == -signal.SIGKILL, [path.read_text() for path in self._streams]

    def __enter__(self) -> TrainProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.join()


def run(
    folder: Path, *arguments: object, check: bool = True, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """From beginning to end; ``check`` that it ends well."""
    with TrainProcess(folder, *arguments, environment=environment) as process:
        done = process.done()
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
