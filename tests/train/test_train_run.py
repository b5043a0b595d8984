"""Whole runs through the command line on the shipped policy: folder, resume after SIGKILL, Ctrl-C, bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tstar_train.__main__ import main
from tstar_train.checkpoint import latest_checkpoint
from tstar_train.policy.model import has_tiny

pytestmark = pytest.mark.skipif(not has_tiny("search_qa"), reason="the package has no tiny weights for search_qa yet")
SMALL = (
    "--env hotpotqa --iterations 4 --checkpoint-every 2 --rollout.tasks 4 --rollout.group 4 --tree.kl-samples 3 "
    "--evaluation.tasks 6 --evaluation.samples 1 --tree.statistics-everywhere"
).split()


def command(*arguments):
    return [sys.executable, "-m", "tstar_train", *map(str, arguments)]


def run(*arguments, check=True):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = run(*SMALL, "--processes", 2, "--out", out)
    return out, done.stdout


def lines(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_folder_is_complete_and_the_summary_printed(whole):
    out, printed = whole
    metrics = lines(out / "metrics.jsonl")
    assert [m["iteration"] for m in metrics] == [1, 2, 3, 4]
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) >= {
        "env", "algo", "tstar", "seed", "metric", "before", "after", "difference", "ci_low", "ci_high", "greedy_before",
        "greedy_after", "episodes", "iterations", "seconds",
    }  # fmt: skip
    assert summary["episodes"] == 4 * 4 * 4 and summary["metric"] == "EM"
    for name in ("report.html", "config.json", "timings.jsonl", "episodes.jsonl", "evaluation.json"):
        assert (out / name).stat().st_size > 0
    assert list((out / "trees").glob("*.json")) and list((out / "tensorboard").iterdir())
    assert "95 % interval" in printed and "report.html" in printed
    assert all(m["logprob_difference_mean"] < 1e-5 for m in metrics)
    for name in ("tree_merge_ratio", "grafting_coverage", "weight_change", "kl_asked", "surgical_loss", "entropy"):
        assert name in metrics[0]


def test_resume_after_sigkill_gives_the_same_metrics(whole, tmp_path):
    out, _ = whole
    killed = tmp_path / "killed"
    process = subprocess.Popen(command(*SMALL, "--processes", 2, "--out", killed), stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.time() + 200
    # Past the first checkpoint and into what comes after it, so that lines exist that the resumed run must write again.
    while time.time() < deadline and not (latest_checkpoint(killed) and len((killed / "metrics.jsonl").read_text().splitlines()) == 3):
        time.sleep(0.05)
        assert process.poll() is None, "the run ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "summary.json").exists()
    run("--resume", killed)
    assert (killed / "metrics.jsonl").read_bytes() == (out / "metrics.jsonl").read_bytes()
    assert (killed / "episodes.jsonl").read_bytes() == (out / "episodes.jsonl").read_bytes()
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (out, killed))
    assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in two.items() if k != "seconds"}


def test_ctrl_c_saves(tmp_path):
    out = tmp_path / "stopped"
    arguments = [a if a != "4" or SMALL[i - 1] != "--iterations" else "400" for i, a in enumerate(SMALL)]
    process = subprocess.Popen(command(*arguments, "--processes", 1, "--out", out), stdout=subprocess.PIPE, text=True)
    deadline = time.time() + 200
    while time.time() < deadline and not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == 0 and "--resume" in printed
    done = len(lines(out / "metrics.jsonl"))
    newest = latest_checkpoint(out)
    assert newest is not None and int(newest.name) == done < 400


def test_a_damaged_checkpoint_is_named(whole, tmp_path):
    out, _ = whole
    copy = tmp_path / "damaged"
    shutil.copytree(out, copy)
    newest = latest_checkpoint(copy)
    data = bytearray((newest / "policy.safetensors").read_bytes())
    data[-100] ^= 1
    (newest / "policy.safetensors").write_bytes(data)
    metrics = (copy / "metrics.jsonl").read_bytes()
    done = run("--resume", copy, check=False)
    assert done.returncode == 2 and "policy.safetensors is damaged" in done.stderr and "Traceback" not in done.stderr
    assert (copy / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "nowhere"], "valid: hotpotqa"),
        ([], "--env {hotpotqa"),
        (["--resume", "/nonexistent"], "no run to resume"),
        (["--env", "hotpotqa", "--model", "/nonexistent/model"], "/nonexistent/model"),
        (["--env", "hotpotqa", "--env-option", "retriever=http://127.0.0.1:9"], "python -m retriever serve"),
        (["--env", "hotpotqa", "--env-option", "data=/nonexistent"], "data='mini' works"),
        (["--env", "hotpotqa", "--env-option", "topk"], "key=value"),
        (["--env", "hotpotqa", "--env-option", "tpok=3"], "tpok"),
        (["--env", "hotpotqa", "--env-option", "split=test"], "use --split test"),
        (["--env", "hotpotqa", "--env-option", "topk=many"], "topk must be a whole number"),
        (["--env", "hotpotqa", "--rollout.tasks", "9999"], "fewer than"),
    ],
)
def test_bad_input_gives_one_message(arguments, message, tmp_path, capsys):
    out = [] if "--resume" in arguments else ["--out", tmp_path / "run"]
    code = main([*map(str, arguments), *map(str, out)])
    told = capsys.readouterr().err
    assert code == 2 and message in told, told


def test_an_unknown_option_names_the_valid_ones(tmp_path):
    done = run("--env", "hotpotqa", "--tree.histroy", "state", "--out", tmp_path / "r", check=False)
    assert done.returncode == 2 and "--tree.history" in done.stderr + done.stdout


def test_a_used_folder_is_refused(whole):
    out, _ = whole
    done = run(*SMALL, "--out", out, check=False)
    assert done.returncode == 2 and "--resume" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full to act as a full disk")
def test_a_full_disk_is_said_and_loses_nothing(whole, tmp_path):
    out, _ = whole
    copy = tmp_path / "full"
    shutil.copytree(out, copy)
    for name in ("000004",):
        shutil.rmtree(copy / "checkpoints" / name)
    (copy / "summary.json").unlink()
    (copy / "timings.jsonl").unlink()
    (copy / "timings.jsonl").symlink_to("/dev/full")
    before = (copy / "evaluation.json").read_bytes()
    done = run("--resume", copy, check=False)
    assert done.returncode == 2 and "disk is full" in done.stderr and "Traceback" not in done.stderr
    assert (copy / "evaluation.json").read_bytes() == before


def test_weights_and_biases_by_flag(tmp_path):
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    arguments = [a if a != "4" or SMALL[i - 1] != "--iterations" else "1" for i, a in enumerate(SMALL)]
    done = subprocess.run(
        command(*arguments, "--processes", 1, "--wandb", "tstar-tests", "--out", tmp_path / "run"),
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(written) == 1 and written[0].stat().st_size > 1000
