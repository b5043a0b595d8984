"""A real search service over the mini corpus in a process of its own, which a test may kill and start again."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


class ServiceProcess:
    """``python -m retriever serve`` on a free port of the loopback, the same one after each start.

    Args:
        arguments: further options of ``serve``.
    """

    def __init__(self, *arguments: str) -> None:
        pytest.importorskip("uvicorn")
        self._arguments = arguments
        self._port = 0
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [
            sys.executable,
            "-u",
            "-m",
            "retriever",
            "serve",
            "--port",
            str(self._port),
            *self._arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        said, deadline = "", time.monotonic() + START_SECONDS
        while "ready" not in said and time.monotonic() < deadline:
            line = self._process.stdout.readline()
            assert line, f"the service ended: {said}"
            said += line
        found = re.search(r"http://[\d.]+:(\d+)", said)
        assert found is not None, said
        self.url, self._port = found.group(), int(found.group(1))

    def kill(self) -> None:
        """kill -9."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
