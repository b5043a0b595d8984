"""However a run ends, what it learnt is saved: signals to it or to its group, helpers killed or stopped, an output that is closed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patient_rank import SLOW_SECONDS, hanging, patient, slow
from train_process import TrainProcess

from tstar_train.checkpoint import latest_checkpoint
from tstar_train.distributed import RankFailed, launched
from tstar_train.stopping import stop_signals

RUN = (
    "--env hotpotqa --iterations 400 --checkpoint-every 300 --rollout.tasks-per-iteration 2 --rollout.group-size 2 "
    "--tree.nodes depth --tree.kl-samples 2 "
    "--evaluation.tasks 2 --evaluation.samples 1 --evaluation.no-greedy"
).split()


def wait_for_an_iteration(out: Path, running: Callable[[], bool]) -> None:
    deadline = time.time() + 120
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_bytes().count(b"\n"):
        assert running() and time.time() < deadline
        time.sleep(0.05)


def end_by_a_signal_to_the_group(out: Path) -> str:
    """Signal the run as a cluster's scheduler does; return what the run prints on stderr."""
    with TrainProcess(out.parent, *RUN, "--processes", 2, "--out", out) as process:
        wait_for_an_iteration(out, lambda: process.running)
        os.killpg(process.pid, signal.SIGTERM)
        done = process.done(timeout=60)
    assert done.returncode == 0 and f"--resume {out}" in done.stdout
    return done.stderr


def end_by_closing_its_output(out: Path) -> str:
    """What the run prints on stderr; a process of its own from the first line on."""
    command = [sys.executable, "-m", "tstar_train", *RUN, "--processes", "1", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for_an_iteration(out, lambda: process.poll() is None)
            process.stdout.close()
            while process.poll() is None:
                time.sleep(0.1)
                # A run that prints nothing for a long time learns of it only when it does.
                if len((out / "metrics.jsonl").read_text().splitlines()) > 60:
                    process.send_signal(signal.SIGTERM)
            return process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    "end", [end_by_a_signal_to_the_group, pytest.param(end_by_closing_its_output, marks=pytest.mark.slow)]
)
def test_what_was_learnt_is_saved(end: Callable[[Path], str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    error = end(out)
    assert "Traceback" not in error
    newest = latest_checkpoint(out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert newest is not None and int(newest.name) == len(lines) >= 1


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_end_of_an_iteration_and_a_second_one_does_not(number: signal.Signals) -> None:
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, handler)  # the tests themselves may have been started with nohup
    try:
        with stop_signals() as stop:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            stop.patient = True
            signal.raise_signal(number)
            assert stop.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


def test_who_started_it_with_nohup_is_obeyed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.asked
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("start_method")
@pytest.mark.parametrize(
    ("signum", "minutes", "message"),
    [
        (signal.SIGSTOP, 1 / 60, "waited .*--timeout-minutes"),
        (signal.SIGKILL, 10.0, "died by signal SIGKILL"),
    ],
)
def test_a_stopped_helper_is_waited_for_as_long_as_is_said_and_a_dead_one_not_at_all(
    signum: signal.Signals, minutes: float, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RankFailed, match=message) as raised, launched(2, patient, 10.0) as world:
        world.set_failure_message(tmp_path, str)
        [process] = [p for p in multiprocessing.active_children() if p.pid is not None]
        world.set_timeout(minutes)
        os.kill(process.pid or 0, signum)
        begun = time.monotonic()
        world.gather("what")
    assert time.monotonic() - begun < 60 and not process.is_alive()
    assert f"rank 1 (process {process.pid} on " in str(raised.value) and "gives no sign of life" in str(
        raised.value
    )
    assert (
        "rank 0, waiting in a sum:" in capfd.readouterr().err
        and "in gather" in (tmp_path / "stacks-0.txt").read_text()
    )


@pytest.mark.usefixtures("start_method")
def test_a_slow_rank_that_makes_progress_is_waited_for() -> None:
    with launched(2, slow, 10.0) as world:
        world.set_timeout(SLOW_SECONDS / 4 / 60)
        begun = time.monotonic()
        assert world.gather("early") == ["early", "late"]
        assert time.monotonic() - begun > SLOW_SECONDS / 2
        world.broadcast(None)


@pytest.mark.usefixtures("start_method")
def test_a_rank_without_progress_is_not_waited_for() -> None:
    with (
        pytest.raises(RankFailed, match="and none of them made progress") as raised,
        launched(2, hanging, 10.0) as world,
    ):
        world.set_timeout(1 / 60)
        world.gather("early")
    assert "rank 1" in str(raised.value) and "hanging" in str(raised.value)
