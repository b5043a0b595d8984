"""scripts/reproduce.py: the table of runs that are there, worked out by hand."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tstar_train.evaluate import Measurement

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "reproduce.py"
TASKS = 40


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def record(solved: int, greedy: int) -> dict:
    """The first so many tasks are solved."""
    won = [[float(n < count) for n in range(TASKS)] for count in (solved, greedy)]
    return Measurement(
        *won, kinds=["a"] * 10 + ["b"] * 30, solved_per_task=won[0], greedy_solved_per_task=won[1]
    ).report()


@pytest.fixture
def runs(tmp_path):
    """T-STAR, GRPO and the control of seeds 0 and 1; seed 1 of the control stopped before its last measurement."""
    after = {"tstar-0": 30, "tstar-1": 24, "grpo-0": 26, "grpo-1": 20, "imitation-0": 32, "imitation-1": None}
    for name, solved in after.items():
        (tmp_path / name).mkdir()
        measured = {"before": record(20, 10)} | ({} if solved is None else {"after": record(solved, 12)})
        (tmp_path / name / "evaluation.json").write_text(json.dumps(measured))
        (tmp_path / name / "cpu.json").write_text(json.dumps({"cpu_seconds": 100.4}))
    return tmp_path


def cells(table: str) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip(" *") for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    return {(row[0], row[1]): row[2:] for row in rows}


def test_a_row_for_each_run_and_means_of_what_is_there(script, runs):
    rows = cells(script["table"](runs, [0, 1]))
    assert set(rows) == {
        ("tstar", "0"),
        ("tstar", "1"),
        ("tstar", "mean of 2"),
        ("grpo", "0"),
        ("grpo", "1"),
        ("grpo", "mean of 2"),
        ("imitation", "0"),
        ("imitation", "mean of 1"),
        ("tstar - grpo", "mean of 2"),
        ("tstar - imitation", "mean of 1"),
    }
    first = rows["tstar", "0"]
    assert (first[0], first[1], first[3:]) == ("0.500", "0.750", ["0.250", "0.300", "100"]) and first[
        2
    ].startswith("+0.250 (+0.1")
    for key, difference in {
        ("tstar", "mean of 2"): "+0.175",
        ("grpo", "mean of 2"): "+0.075",
        ("imitation", "mean of 1"): "+0.300",
        ("tstar - grpo", "mean of 2"): "+0.100",
        ("tstar - imitation", "mean of 1"): "-0.050",
    }.items():
        assert rows[key][2].replace("*", "").startswith(f"{difference} ("), key


def test_success_by_kind_is_the_mean_over_seeds(script, runs):
    rows = script["kinds_table"](runs, [0, 1]).splitlines()
    # All ten tasks of kind a are solved throughout; of b's 30 ten before, then 20 and 14 by T-STAR.
    assert rows[2:] == [
        "| a | 10 | 1.00 (1.00) | 1.00 (1.00) | 1.00 (1.00) | 1.00 (1.00) |",
        "| b | 30 | 0.33 (0.00) | 0.57 (0.07) | 0.43 (0.07) | 0.73 (0.07) |",
    ]


def test_the_table_alone_plays_nothing(runs, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(runs), "--seeds", "0", "1", "--table"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert "| **tstar - imitation** | mean of 1 |" in printed and "| kind | tasks |" in printed
    assert before == {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
