"""The command line as a process of its own, in an empty folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-W", "error", "-m", "tstar_envs"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``python -m tstar_envs`` with the given arguments, and ``stdin`` as what is typed."""

    def call(*arguments: str, stdin: str | bytes = "") -> "subprocess.CompletedProcess[str]":
        typed = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, env=ENVIRONMENT, input=typed, capture_output=True, timeout=120)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return call
