"""One run on two hosts: two network namespaces with a cable between them where the machine allows it, else two launches on loopback."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORT = 29617


def _ip(*arguments):
    return subprocess.run(
        ["ip", *map(str, arguments)], capture_output=True, text=True, timeout=20, check=False
    )


def environment(**more):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


class Hosts:
    """Two hosts; ``kind`` says what they are: "network namespaces" or "loopback"."""

    def __init__(self):
        self.names = [f"tstar{os.getpid()}{which}" for which in "ab"]
        self.kind = "loopback"
        if shutil.which("ip") and os.geteuid() == 0:
            made = [_ip("netns", "add", name) for name in self.names]
            made.append(
                _ip(
                    "link",
                    "add",
                    "va",
                    "netns",
                    self.names[0],
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "vb",
                    "netns",
                    self.names[1],
                )
            )
            for name, card, address in zip(
                self.names, ("va", "vb"), ("10.77.0.1/24", "10.77.0.2/24"), strict=True
            ):
                made += [_ip("-n", name, "addr", "add", address, "dev", card)]
                made += [_ip("-n", name, "link", "set", which, "up") for which in ("lo", card)]
            if all(one.returncode == 0 for one in made):
                self.kind = "network namespaces"
            else:
                self.close()
        self.first = "10.77.0.1" if self.kind == "network namespaces" else "127.0.0.1"

    def torchrun(self, host, *arguments, port=PORT, first=None):
        """The command of one host."""
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            2,
            "--node-rank",
            host,
            "--nproc-per-node",
            1,
        ]
        command += ["--master-addr", first or self.first, "--master-port", port, *arguments]
        return self.on(host, *command)

    def on(self, host, *command):
        """A command as it is given to that host."""
        inside = ["ip", "netns", "exec", self.names[host]] if self.kind == "network namespaces" else []
        return [*inside, *map(str, command)]

    def cut(self):
        """Pull the cable."""
        assert _ip("-n", self.names[0], "link", "set", "va", "down").returncode == 0

    def mend(self):
        assert _ip("-n", self.names[0], "link", "set", "va", "up").returncode == 0

    def close(self):
        for name in self.names:
            _ip("netns", "del", name)


class Started:
    """Commands at work, and what they and all their descendants left when they ended."""

    def __init__(self, folder, commands, **variables):
        folder.mkdir(parents=True, exist_ok=True)
        self._mark = f"tstar-test-{os.getpid()}-{time.monotonic_ns()}"
        self._printed = [folder / f"{number}.output" for number, _ in enumerate(commands)]
        self.processes = []
        for printed, command in zip(self._printed, commands, strict=True):
            with printed.open("w") as out:
                given = environment(TSTAR_TEST_MARK=self._mark, **variables)
                self.processes.append(
                    subprocess.Popen(
                        [*map(str, command)], env=given, stdout=out, stderr=out, start_new_session=True
                    )
                )

    def codes(self, timeout):
        """Exit codes once all have ended."""
        deadline = time.monotonic() + timeout
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    @property
    def printed(self):
        """What each of them printed."""
        return [path.read_text() for path in self._printed]

    def left(self):
        """Processes that still run, children of children included, which carry the mark in their environment."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (
                    self._mark.encode() in (place / "environ").read_bytes()
                    and "\nState:\tZ" not in (place / "status").read_text()
                ):
                    found.append(int(place.name))
        return found

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


RUN = (
    "-m tstar_train --env hotpotqa --iterations 3 --rollout.tasks-per-iteration 2 --rollout.group-size 4 "
    "--tree.nodes depth --tree.kl-samples 2 --evaluation.tasks 3 "
    "--evaluation.samples 1 --evaluation.no-greedy"
).split()
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node".split()


def logged(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def require_same_run(mine, theirs):
    for got, wanted in zip(logged(mine), logged(theirs), strict=True):
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            if isinstance(value, float) and not math.isnan(value) and "seconds" not in name:
                assert got[name] == pytest.approx(value, abs=1e-5, rel=1e-4), name
            elif "seconds" not in name:
                assert got[name] == value, name
