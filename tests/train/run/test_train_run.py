"""Whole runs through the command line on the shipped policy: folder, resume after SIGKILL, Ctrl-C, bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from train_process import TrainProcess, run

from tstar_train.__main__ import main
from tstar_train.checkpoint import latest_checkpoint
from tstar_train.policy.files import has_tiny

pytestmark = pytest.mark.skipif(
    not has_tiny("search_qa"), reason="the package has no tiny weights for search_qa yet"
)
SMALL = (
    "--env hotpotqa --iterations 4 --checkpoint-every 2 --rollout.tasks-per-iteration 2 --rollout.group-size 4 "
    "--tree.nodes depth --tree.kl-samples 2 "
    "--evaluation.tasks 2 --evaluation.samples 1 --tree.statistics-everywhere"
).split()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return folder / "whole", run(folder, *SMALL, "--processes", 2, "--out", folder / "whole").stdout


def lines(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_folder_is_complete_and_the_summary_printed(whole):
    out, printed = whole
    metrics = lines(out / "metrics.jsonl")
    assert [m["iteration"] for m in metrics] == [1, 2, 3, 4]
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) >= {
        "env",
        "algo",
        "tstar",
        "seed",
        "metric",
        "before",
        "after",
        "difference",
        "ci_low",
        "ci_high",
        "greedy_before",
        "greedy_after",
        "episodes",
        "iterations",
        "seconds",
    }
    assert summary["episodes"] == 4 * 2 * 4 and summary["metric"] == "EM"
    for name in ("report.html", "config.json", "timings.jsonl", "episodes.jsonl", "evaluation.json"):
        assert (out / name).stat().st_size > 0
    assert list((out / "trees").glob("*.json")) and list((out / "tensorboard").iterdir())
    assert "95 % interval" in printed and "report.html" in printed
    assert all(m["logprob_difference_mean"] < 1e-5 for m in metrics)
    for name in (
        "tree_merge_ratio",
        "grafting_coverage",
        "weight_change",
        "kl_asked",
        "surgical_loss",
        "entropy",
    ):
        assert name in metrics[0]


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's points as it shows them, clock times apart."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    names = [name for name in events.Tags()["scalars"] if not name.startswith("seconds/")]
    return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in names}


def test_resume_after_sigkill_gives_the_same_metrics(whole, tmp_path):
    out, _ = whole
    killed = tmp_path / "killed"
    with TrainProcess(tmp_path, *SMALL, "--processes", 2, "--out", killed) as process:
        deadline = time.time() + 200
        # Past the first checkpoint and into what comes after it, so that lines exist that the resumed run must write again.
        while time.time() < deadline and not (
            latest_checkpoint(killed) and len((killed / "metrics.jsonl").read_text().splitlines()) == 3
        ):
            time.sleep(0.05)
            assert process.running, "the run ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
    assert not (killed / "summary.json").exists()
    run(tmp_path, "--resume", killed)
    assert (killed / "metrics.jsonl").read_bytes() == (out / "metrics.jsonl").read_bytes()
    assert (killed / "episodes.jsonl").read_bytes() == (out / "episodes.jsonl").read_bytes()
    assert curves(killed) == curves(out) and [step for step, _ in curves(out)["entropy"]] == [1, 2, 3, 4]
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (out, killed))
    assert {k: v for k, v in one.items() if k != "seconds"} == {
        k: v for k, v in two.items() if k != "seconds"
    }


def test_ctrl_c_saves(tmp_path):
    out = tmp_path / "stopped"
    arguments = [a if a != "4" or SMALL[i - 1] != "--iterations" else "400" for i, a in enumerate(SMALL)]
    with TrainProcess(tmp_path, *arguments, "--processes", 1, "--out", out) as process:
        deadline = time.time() + 200
        while time.time() < deadline and not (out / "metrics.jsonl").exists():
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        ended = process.done(timeout=100)
    assert ended.returncode == 0 and "--resume" in ended.stdout
    done = len(lines(out / "metrics.jsonl"))
    newest = latest_checkpoint(out)
    assert newest is not None and int(newest.name) == done < 400


def test_a_damaged_checkpoint_is_named(whole, tmp_path, capsys):
    out, _ = whole
    copy = tmp_path / "damaged"
    shutil.copytree(out, copy)
    newest = latest_checkpoint(copy)
    data = bytearray((newest / "policy.safetensors").read_bytes())
    data[-100] ^= 1
    (newest / "policy.safetensors").write_bytes(data)
    metrics = (copy / "metrics.jsonl").read_bytes()
    assert main(["--resume", str(copy)]) == 2
    error = capsys.readouterr().err
    assert "policy.safetensors is damaged" in error and "Traceback" not in error
    assert (copy / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "nowhere"], "valid: hotpotqa"),
        ([], "--env {hotpotqa"),
        (["--resume", "/nonexistent"], "no run to resume"),
        (["--env", "hotpotqa", "--model", "/nonexistent/model"], "/nonexistent/model"),
        (
            [*SMALL, "--processes", "1", "--env-option", "retriever=http://127.0.0.1:9"],
            "python -m retriever serve",
        ),
        (["--env", "hotpotqa", "--env-option", "data=/nonexistent"], "data='mini' works"),
        (["--env", "hotpotqa", "--env-option", "topk"], "key=value"),
        (["--env", "hotpotqa", "--env-option", "tpok=3"], "tpok"),
        (["--env", "hotpotqa", "--env-option", "split=test"], "use --split test"),
        (["--env", "hotpotqa", "--env-option", "topk=many"], "topk must be a whole number"),
        (["--env", "hotpotqa", "--rollout.tasks-per-iteration", "9999"], "fewer than"),
    ],
)
def test_bad_input_gives_one_message(arguments, message, tmp_path, capsys):
    out = [] if "--resume" in arguments else ["--out", tmp_path / "run"]
    code = main([*map(str, arguments), *map(str, out)])
    error = capsys.readouterr().err
    assert code == 2 and message in error, error


def test_an_unknown_option_names_the_valid_ones(tmp_path):
    done = run(tmp_path, "--env", "hotpotqa", "--tree.histroy", "state", "--out", tmp_path / "r", check=False)
    assert done.returncode == 2 and "--tree.history" in done.stderr + done.stdout


def test_a_used_folder_is_refused(whole, capsys):
    out, _ = whole
    assert main([*SMALL, "--out", str(out)]) == 2 and "--resume" in capsys.readouterr().err


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
    done = run(tmp_path, "--resume", copy, check=False)
    assert done.returncode == 2 and "disk is full" in done.stderr and "Traceback" not in done.stderr
    assert (copy / "evaluation.json").read_bytes() == before


def test_weights_and_biases_by_flag(tmp_path):
    arguments = [a if a != "4" or SMALL[i - 1] != "--iterations" else "1" for i, a in enumerate(SMALL)]
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    run(
        tmp_path,
        *arguments,
        "--processes",
        1,
        "--wandb",
        "tstar-tests",
        "--out",
        tmp_path / "run",
        environment=offline,
    )
    written = list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(written) == 1 and written[0].stat().st_size > 1000
