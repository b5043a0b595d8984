"""However a run ends, what it learnt is saved: signals to it or to its group, helpers killed or stopped, an output that is closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from policies import random_policy

from tstar_envs import find_entry
from tstar_train.checkpoint import latest_checkpoint
from tstar_train.config import Config, RolloutConfig
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.team import HelperFailed, Team
from tstar_train.stopping import stop_signals

RUN = (
    "--env hotpotqa --iterations 400 --checkpoint-every 300 --rollout.tasks 2 --rollout.group 2 --tree.kl-samples 2 --processes 2 "
    "--evaluation.tasks 2 --evaluation.samples 1 --evaluation.no-greedy"
).split()


def start(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tstar_train", *RUN, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.time() + 120
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_bytes().count(b"\n"):
        assert process.poll() is None and time.time() < deadline, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("way", ["terminated group", "output closed"])
def test_what_was_learnt_is_saved(way: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start(out) as process:
        try:
            if way == "terminated group":  # as a cluster's scheduler does
                os.killpg(process.pid, signal.SIGTERM)
                printed, error = process.communicate(timeout=60)
                assert process.returncode == 0 and f"--resume {out}" in printed
            else:
                process.stdout.close()
                while process.poll() is None:
                    time.sleep(0.1)
                    # A run that prints nothing for a long time learns of it only when it does.
                    if len((out / "metrics.jsonl").read_text().splitlines()) > 60:
                        process.send_signal(signal.SIGTERM)
                error = process.stderr.read()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in error
    newest = latest_checkpoint(out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert newest is not None and int(newest.name) == len(lines) >= 1


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_end_of_an_iteration_and_a_second_one_does_not(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        stop.patient = True
        os.kill(os.getpid(), number)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_who_started_it_with_nohup_is_obeyed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.asked
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stopped_helper_is_waited_for_as_long_as_is_said_and_a_dead_one_not_at_all() -> None:
    policy = random_policy()
    config = Config(env="tstar/HotpotQA", rollout=RolloutConfig(tasks=2, group=2, max_tokens=4))
    team = Team(policy, None, config, EnvSpec("tstar/HotpotQA", {"horizon": 1}), 2)
    tasks = find_entry("hotpotqa").load_class()().task_ids("train")[:2]
    try:
        process, _ = team._helpers[0]
        os.kill(process.pid, signal.SIGSTOP)
        team._patience_seconds = 1.0
        begun = time.monotonic()
        with pytest.raises(HelperFailed, match="--helper-minutes"):
            team.evaluate(tasks, "train", 1, 1.0, "seed")
        assert time.monotonic() - begun < 60
        os.kill(process.pid, signal.SIGKILL)
        team._patience_seconds = 600.0
        with pytest.raises(HelperFailed, match="died by signal SIGKILL"):
            team.evaluate(tasks, "train", 1, 1.0, "seed")
    finally:
        team.close()
    assert not process.is_alive()
