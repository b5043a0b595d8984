"""What the parts of ``check_gpu.py`` share: where a finding goes, and runs of ``python -m tstar_train`` with what they logged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Nothing is fetched; what is measured at the start and the end of a run is kept short, as no part is about it.
SHORT = "--evaluation.tasks 2 --evaluation.samples 1 --evaluation.no-greedy".split()


@dataclass(frozen=True)
class Bench:
    """What a part works with.

    Attributes:
        device: ``cuda``, or ``cpu`` to try the parts themselves at tiny sizes.
        folder: for models and runs.
        lines: file that a line of JSON is appended to for each finding.
        part: whose findings they are.
    """

    device: str
    folder: Path
    lines: Path
    part: str

    @property
    def tiny(self) -> bool:
        """Whether sizes are those of a trial without a GPU."""
        return self.device == "cpu"

    def say(self, table: str, **row: Any) -> None:
        """Write down and print a row of a table."""
        record = {"part": self.part, "table": table, "row": row}
        with self.lines.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")
        print(
            f"[{self.part}] {table}: " + ", ".join(f"{key} {shown(value)}" for key, value in row.items()),
            flush=True,
        )


def shown(value: Any) -> str:
    """A figure for a person."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(each)}" for key, each in value.items())
    return str(value).replace("|", "/").replace("\n", " ")


@dataclass(frozen=True)
class Done:
    """A program that ended; the code is None where it was stopped for taking too long."""

    code: int | None
    printed: str
    errors: str
    seconds: float

    @property
    def said(self) -> str:
        """How it ended: ``ok``, or the exit status with the last line of what it complained of."""
        if self.code == 0:
            return "ok"
        last = [line for line in (self.errors or self.printed).strip().splitlines() if line.strip()][-1:]
        ours = [line for line in self.errors.splitlines() if line.startswith("tstar_train: ")][:1]
        how = f"stopped after {self.seconds:.0f} s" if self.code is None else f"exit {self.code}"
        return f"{how}: {(ours or last or ['nothing said'])[0]:.400}"


class Program:
    """A program that runs beside this one, in a process group of its own, with its output in files."""

    def __init__(
        self, command: Sequence[object], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._streams = log.with_suffix(".out"), log.with_suffix(".err")
        log.parent.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        variables = {
            **os.environ,
            "PYTHONPATH": paths,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "160",
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        }
        self._began = time.monotonic()
        with self._streams[0].open("w") as out, self._streams[1].open("w") as err:
            self._process = subprocess.Popen(
                list(map(str, command)),
                stdout=out,
                stderr=err,
                env=variables,
                cwd=ROOT,
                start_new_session=True,
            )

    def done(self, limit: float) -> Done:
        """Wait for its end, at most so many seconds since its start."""
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(max(0.1, limit - (time.monotonic() - self._began)))
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        printed, errors = (path.read_text(errors="replace") for path in self._streams)
        return Done(code, printed, errors, time.monotonic() - self._began)


def training(bench: Bench, out: Path, *arguments: object, launcher: Sequence[object] = ()) -> Program:
    """Start ``python -m tstar_train`` on the bench's device, or by ``torchrun``'s arguments in front of it."""
    start = [sys.executable, *(launcher or ())]
    return Program([*start, "-m", "tstar_train", *arguments, "--out", out], out.with_name(out.name + ".log"))


def records(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON; none where there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def figures(run: Path, *names: str) -> dict[str, list[Any]]:
    """What a run logged of each iteration, by name of the metric."""
    return {name: [line.get(name) for line in records(run / "metrics.jsonl")] for name in names}


def seconds(run: Path) -> list[float]:
    """Of each iteration, all phases together."""
    skipped = ("iteration", "seconds", "gpu_memory_peak_gib")
    return [sum(v for k, v in line.items() if k not in skipped) for line in records(run / "timings.jsonl")]


def phases(run: Path) -> dict[str, float]:
    """Seconds by phase, of the last iteration."""
    skipped = ("iteration", "seconds", "gpu_memory_peak_gib")
    return {k: v for k, v in (records(run / "timings.jsonl") or [{}])[-1].items() if k not in skipped}


def memory(run: Path) -> dict[str, float]:
    """The most GiB of each phase, of all iterations."""
    most: dict[str, float] = {}
    for line in records(run / "timings.jsonl"):
        for phase, gib in line.get("gpu_memory_peak_gib", {}).items():
            most[phase] = max(most.get(phase, 0.0), gib)
    return most
