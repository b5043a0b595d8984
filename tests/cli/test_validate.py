"""``validate``, and environments that are not the suite's on the command line."""

import json

from cli_process import ROOT, run_process

OWN = ROOT / "tests" / "contracts"  # where own_lamps.py is


def test_the_command_prints_figures_writes_reports_and_ends_with_1_where_a_check_fails(tmp_path):
    done = run_process(tmp_path, "validate", "--env", "sokoban-easy", "--tasks", "2", "--openenv", "reports")
    assert (
        done.returncode == 0 and "pass: 15 of 15 checks" in done.stdout and "oracle_reward 1" in done.stdout
    )
    assert json.loads((tmp_path / "reports/sokoban-easy.json").read_text())["verdict"] == "pass"
    done = run_process(OWN, "validate", "--env", "own_lamps:mine/WeakExpert", "--json")
    assert done.returncode == 1
    graded = json.loads(done.stdout)["environments"][0]
    assert graded["verdict"] == "fail" and graded["env"] == "own_lamps:mine/WeakExpert"
    assert run_process(tmp_path, "validate", "--env", "sokoban-easy", "--tasks", "0").returncode == 2


def test_eval_plays_an_environment_of_ones_own(tmp_path):
    out = tmp_path / "own.jsonl"
    done = run_process(
        OWN, "eval", "--env", "own_lamps:mine/Lamps", "--agent", "oracle", "--tasks", "3", "--out", str(out)
    )
    assert done.returncode == 0 and "100.0%" in done.stdout, done.stderr
    done = run_process(OWN, "replay", str(out))
    assert done.returncode == 0, done.stdout
