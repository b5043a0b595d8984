"""Whole runs with an environment of somebody's own that goes wrong on its way: one sentence, all saved, and it goes on when mended."""

import json
import os
import re
from pathlib import Path

import pytest
from lamps_environment import Lamps
from train_process import run

from scripts.studies.small_models import save_small
from tstar_envs import EnvironmentFailed, progress_of

SMALL = (
    *(
        "--iterations",
        3,
        "--rollout.tasks-per-iteration",
        2,
        "--rollout.group-size",
        2,
        "--rollout.horizon",
        3,
        "--processes",
        1,
    ),
    *("--rollout.max-tokens", 8, "--evaluation.tasks", 2, "--evaluation.samples", 1),
    *("--evaluation.no-greedy", "--evaluation.validate-every", 0, "--checkpoint-every", 100),
    *("--rollout.progress-credit", 0.5),
)
NAME = "goes_wrong:mine/GoesWrong"


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("fewer tasks", "no task 'lamps-"),
        ("progress exits", "the environment raised SystemExit: 0"),
        ("progress in words", "the environment's progress must give a number from 0 to 1, found 'far'"),
    ],
)
def test_what_was_learnt_is_saved_and_goes_on(tmp_path: Path, way: str, said: str) -> None:
    save_small("qwen2", tmp_path / "model")
    out = tmp_path / "run"
    start = ("--env", NAME, "--model", tmp_path / "model", *SMALL, "--out", out)
    done = run(tmp_path, *start, check=False, environment={"WAY": way})
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert said in done.stderr and done.stderr.strip().count("\n") == 0
    [saved] = re.findall(r"up to iteration [12] is saved in (.+?);", done.stderr)
    assert (Path(saved) / "state.json").is_file()
    assert f"-m tstar_train --resume {out}" in done.stderr
    run(tmp_path, "--resume", out, environment={"WAY": ""})
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_run_stays_where_it_began_when_the_environment_changes_the_folder(
    tmp_path: Path,
) -> None:
    save_small("qwen2", tmp_path / "model")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run(
        tmp_path,
        *("--env", NAME, "--model", tmp_path / "model", *SMALL),
        *("--out", os.path.relpath(tmp_path / "run")),
        environment={"WAY": "folder", "ELSEWHERE": str(elsewhere)},
    )
    assert f"report: {os.path.relpath(tmp_path / 'run')}" in done.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["iterations"] == 3
    assert (tmp_path / "run" / "report.html").exists() and not (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("given", [None, "0.5", float("nan"), -0.1, 1.5, True, [0.5]])
def test_progress_is_a_number(given: object) -> None:
    env = type("Odd", (Lamps,), {"progress": lambda self: given})()
    with pytest.raises(EnvironmentFailed, match="progress must give a number from 0 to 1"):
        progress_of(env)
