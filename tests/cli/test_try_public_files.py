"""What ``scripts/try_public_files.py`` says of small folders of every family, run as a user runs it."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_process import ENVIRONMENT, ROOT, run_process

from tstar_envs.envs.alfworld.engine import alfworld_file, write_problem
from tstar_envs.envs.alfworld.game import Facts, Goal

LEVEL = "#####\n#@$.#\n#####\n"
PROBLEM = "(define (problem p) (:domain blocksworld) (:objects a b) (:init (ontable a) {init}) (:goal (and (on a b))))"
STACKED = "(on b a) (clear b) (handempty)"


def look(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / "try_public_files.py"), *arguments]
    environment = {**ENVIRONMENT, "TSTAR_DATA": str(folder / "tstar_data")}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def put(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def commands(said: str) -> list[str]:
    return [line.strip() for line in said.splitlines() if "-m tstar_envs eval" in line]


def test_levels_good_bad_solved_and_long(tmp_path: Path) -> None:
    far = "#" * 75 + "\n#@$" + " " * 71 + ".#\n" + "#" * 76 + "\n"
    put(tmp_path / "levels/one.xsb", f"; 1\n{LEVEL}\n{far}\n#####\n#@* #\n#####\n")
    put(
        tmp_path / "levels/deep/two.txt",
        "#####\n#@$ #\n#####\n\n######\n#@$$.#\n######\n\n######\n#@$ .#\n#####\n",
    )
    done = look(tmp_path, "levels")
    assert done.returncode == 0 and not done.stderr, done
    assert (
        "6 loaded, 4 usable, 2 refused, 1 solved at the start, above the horizon of 60 steps: 1 of 4 looked at"
        in done.stdout
    )
    assert re.search(
        r"refused 2 x a level needs .*1 boxes and 0 targets \(levels/deep/two\.txt, line 1\)", done.stdout
    ), done.stdout
    (command,) = commands(done.stdout)
    assert command.endswith("--option levels=levels --option skip_bad=true --option 'horizon=optimal*2'")
    played = run_process(tmp_path, *command.replace("'", "").split()[3:])
    assert played.returncode == 0 and "4 (4 tasks)" in played.stdout, played


def test_problems_in_a_split_folder(tmp_path: Path) -> None:
    put(tmp_path / "train/one.pddl", PROBLEM.format(init=STACKED))
    put(tmp_path / "train/domain.pddl", "(define (domain blocksworld))")
    put(tmp_path / "train/handless.pddl", PROBLEM.format(init="(on b a) (clear b)"))
    (tmp_path / "train/folder.pddl").mkdir()
    done = look(tmp_path, ".")
    assert (
        done.returncode == 0
        and "2 loaded, 1 usable, 1 refused" in done.stdout
        and "3-operator domain" in done.stdout
    ), done
    assert "--split train" in commands(done.stdout)[0]


def test_a_shop(tmp_path: Path) -> None:
    shop = ROOT / "tests" / "data" / "webshop"
    done = look(tmp_path, str(shop))
    assert (
        done.returncode == 0
        and "webshop: " in done.stdout
        and re.search(r"\d+ usable, 0 refused", done.stdout)
    ), done
    put(tmp_path / "shop/items_shuffle.json", "[{]")
    done = look(tmp_path, "shop")
    assert done.returncode == 1 and "items_shuffle.json" in done.stdout and "0 usable" in done.stdout, done


def test_games(tmp_path: Path) -> None:
    facts = Facts(agent_location="loc_bar_9")
    facts.receptacle_types["table_bar_1"] = "table"
    facts.receptacle_location["table_bar_1"] = "loc_bar_0"
    facts.object_types["mug_bar_0"] = "mug"
    facts.receptacle_types["bed_bar_1"] = "bed"
    facts.receptacle_location["bed_bar_1"] = "loc_bar_1"
    facts.inside.add(("mug_bar_0", "bed_bar_1"))
    facts.object_locations.add(("mug_bar_0", "loc_bar_1"))
    facts.abilities["pickupable"].add("mug_bar_0")
    goal = Goal("pick_and_place_simple", "mug", "table")
    grammar = alfworld_file("data/alfred.twl2", "the tests").replace("UNKNOWN GOAL", "put a mug on the table")
    game = {
        "pddl_domain": alfworld_file("data/alfred.pddl", "the tests"),
        "grammar": grammar,
        "pddl_problem": write_problem(facts, goal, "small"),
        "solvable": True,
    }
    put(tmp_path / "games/valid_seen/a/game.tw-pddl", game)
    put(tmp_path / "games/valid_seen/a/initial_state.pddl", "(define (problem other))")
    put(tmp_path / "games/valid_seen/b/game.tw-pddl", {**game, "pddl_problem": "(define"})
    done = look(tmp_path, "games")
    assert done.returncode == 0 and "alfworld: games\n  2 loaded, 1 usable, 1 refused" in done.stdout, done
    assert "blocksworld" not in done.stdout


QUESTION = {"id": "1", "question": "Who?", "golden_answers": ["She"]}


def test_questions_under_any_name(tmp_path: Path) -> None:
    put(tmp_path / "my nq part.jsonl", QUESTION)
    put(tmp_path / "bad.jsonl", {"id": "1", "question": "Who?"})
    put(tmp_path / "notes.json", {"a": 1})
    put(tmp_path / "README.txt", "No level here.\n# A title #\n")
    done = look(tmp_path, ".")
    assert done.returncode == 0 and "total: 2 loaded, 1 usable, 1 refused" in done.stdout, done
    assert "bad.jsonl, " in done.stdout and "notes" not in done.stdout and "sokoban" not in done.stdout
    # The commands work once the corpus is named.
    put(tmp_path / "corpus.jsonl", {"id": "0", "contents": '"She"\nShe did it.'})
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
    made = lines[0].replace("/YOUR/CORPUS.jsonl", str(tmp_path / "corpus.jsonl"))
    subprocess.run(made, shell=True, cwd=tmp_path, check=True)
    command = lines[1].replace("python", sys.executable, 1)
    played = subprocess.run(
        command, shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert played.returncode == 0 and "1 (1 task)" in played.stdout, played


def test_a_folder_of_questions_as_the_suite_reads_them(tmp_path: Path) -> None:
    (tmp_path / "qa").mkdir()
    (tmp_path / "qa/hotpotqa.test.jsonl.gz").write_bytes(gzip.compress(json.dumps(QUESTION).encode()))
    put(tmp_path / "qa/corpus.jsonl", {"id": "0", "contents": '"She"\nShe did it.'})
    done = look(tmp_path, "qa")
    assert done.returncode == 0 and commands(done.stdout)[0].endswith(
        "--env hotpotqa --agent random --option data=qa"
    ), done


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("absent", 2, "no folder and no regular file"),
        ("x" * 5000, 2, "no folder and no regular file"),
        ("/dev/zero", 2, "no folder and no regular file"),
        ("pipe.pddl", 2, "no folder and no regular file"),
        ("", 2, "no folder and no regular file"),
        ("empty", 1, "nothing that an environment reads"),
        ("prose.txt", 1, "nothing that an environment reads"),
    ],
)
def test_bad_paths_and_nothing_usable(tmp_path: Path, path: str, code: int, said: str) -> None:
    os.mkfifo(tmp_path / "pipe.pddl")
    (tmp_path / "empty").mkdir()
    put(tmp_path / "prose.txt", "Prose.\n")
    done = look(tmp_path, path)
    assert done.returncode == code and said in done.stdout + done.stderr, done
    assert "Traceback" not in done.stderr


def test_a_forced_family_says_why(tmp_path: Path) -> None:
    put(tmp_path / "a.dat", LEVEL)
    put(tmp_path / "prose.txt", "Prose.\n")
    assert "1 loaded, 1 usable" in look(tmp_path, "a.dat", "--family", "sokoban").stdout
    for family in ("blocksworld", "alfworld", "search_qa"):
        done = look(tmp_path, "prose.txt", "--family", family)
        assert done.returncode == 1 and not done.stderr and family in done.stdout, done
    assert look(tmp_path, "a.dat", "--family", "chess").returncode == 2
