"""``validate``, and environments that are not the suite's on the command line."""

import json

from cli_process import ROOT, call_main, run_process

OWN = ROOT / "tests" / "support"  # where own_lamps.py is


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


def test_a_folder_for_reports_that_cannot_be_made_is_reported_before_anything_is_played(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    for folder in ("taken", "taken/reports"):
        code, out, err = call_main(
            capsys, "validate", "--env", "sokoban-easy", "--openenv", str(tmp_path / folder)
        )
        assert code == 2 and not out and "cannot make the folder" in err and "name another one" in err


def test_eval_plays_an_environment_of_ones_own(tmp_path):
    out = tmp_path / "own.jsonl"
    done = run_process(
        OWN, "eval", "--env", "own_lamps:mine/Lamps", "--agent", "oracle", "--tasks", "3", "--out", str(out)
    )
    assert done.returncode == 0 and "100.0%" in done.stdout, done.stderr
    done = run_process(OWN, "replay", str(out))
    assert done.returncode == 0, done.stdout
