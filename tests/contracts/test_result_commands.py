"""Commands on the pages of results and in README.md: each exists and takes its options."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.table_commits import (
    PAGE,
    RECORDS,
    RUNS_PAGE,
    all_tables,
    commands_of,
    commits_of,
    listed,
    shown,
    tables_of,
)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/results").glob("*.md"))]
UNKNOWN = "--no-such-option-at-all"
# Words that stand for something: a value that the option takes.
STANDS_FOR = {
    "ENV": "hotpotqa",
    "SET": "nq",
    "SPLIT": "valid",
    "SEED": "1",
    "START": "auto",
    "PATH": "auto",
    "WEIGHT": "0.5",
    "RATE": "1e-4",
    "CREDIT": "1",
    "T": "0.5",
    "E": "local",
    "TYPE": "flat",
    "AGENT": "oracle",
}


COMMANDS = sorted({command for page in PAGES for command in commands_of(page.read_text("utf-8"))})


def words_of(command: str) -> list[str]:
    return [STANDS_FOR.get(word, word) for word in shlex.split(command.replace("$M", "--model m"))]


def options_of(script: Path) -> set[str]:
    """Options of a script whose packages are of an environment of its own: the fields of its class ``Options``."""
    classes = {
        node.name: node
        for node in ast.parse(script.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    fields = [node.target for node in classes["Options"].body if isinstance(node, ast.AnnAssign)]
    return {"--" + field.id.replace("_", "-") for field in fields if isinstance(field, ast.Name)}


def complaint(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Output of a command that got all its options and one that it has not; it ends before it does anything."""
    if words[:2] == ["python", "-m"]:
        module, arguments = words[2], words[3:]
        # runpy warns where it is imported already.
        monkeypatch.delitem(sys.modules, f"{module}.__main__", raising=False)
        run = lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)  # noqa: E731
        monkeypatch.setattr(sys, "argv", [module, *arguments, UNKNOWN])
    else:
        script, arguments = str(ROOT / words[1]), words[2:]
        run = lambda: runpy.run_path(script, run_name="__main__")  # noqa: E731
        monkeypatch.setattr(sys, "argv", [script, *arguments, UNKNOWN])
        monkeypatch.syspath_prepend(str(Path(script).parent))
    with pytest.raises(SystemExit) as ended:
        run()
    said = capsys.readouterr()
    assert ended.value.code not in (0, None), said
    return re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", f"{said.out} {said.err} {ended.value.code}"))


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 80
    assert "python scripts/bench/bench_overhead.py --envs hotpotqa sokoban-easy --iterations 4" in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_and_takes_its_options(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(command)
    if (
        words[0].startswith("scripts/") and words[0].endswith(".py") and len(words) > 1
    ):  # alone: a file that is named
        words = ["python", *words]
    if words[0].startswith("scripts/"):
        assert (ROOT / words[0]).is_file() and (
            words[0].endswith(".py") or os.access(ROOT / words[0], os.X_OK)
        )
        return
    if words[0].startswith(".venv-"):
        assert {word for word in words if word.startswith("--")} <= options_of(ROOT / words[1])
        return
    if words[1:3] in (["-m", "venv"], ["-m", "pytest"]):
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
        return
    monkeypatch.chdir(ROOT)
    # The first unknown option is named: no other one is.
    named = rf"(?:no option '|unrecognized (?:arguments|options): |takes no others, got ){UNKNOWN}|'{UNKNOWN}' is not an option"
    said = complaint(words, monkeypatch, capsys)
    assert re.search(named, said, re.IGNORECASE), said


@pytest.mark.parametrize(
    "wrong",
    [
        "python -m tstar_train --env hotpotqa --tree.node state",
        "python -m tstar_envs eval --env webshop --sample 3",
        "python scripts/studies/measure_credit.py --truths exact",
        "python scripts/studies/compare_algorithms.py --tables",
        "scripts/studies/compare_algorithms.py --tables",
        ".venv-adapters/openenv/bin/python scripts/bench/bench_adapters.py --episode 160",
    ],
)
def test_a_wrong_option_is_found(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        test_a_command_exists_and_takes_its_options(wrong, monkeypatch, capsys)


def test_every_table_of_results_is_listed_with_its_command() -> None:
    """After a change: ``python scripts/table_commits.py`` (it also renews the commits)."""
    tables = all_tables()
    assert {(table.name, shown(table.commands)) for table in tables} == listed()
    assert len(tables) > 60 and all(table.commands for table in tables)


def test_every_group_of_recorded_runs_is_listed_with_commits_of_this_history() -> None:
    """After a change: ``python scripts/table_commits.py``."""
    text = RUNS_PAGE.read_text("utf-8")
    rows = dict(re.findall(r"^\| (\S+\.jsonl, \S+) \| (\d+) \|", text, re.MULTILINE))
    runs = Counter(
        f"{name}, {json.loads(line)['group']}"
        for name in RECORDS
        for line in (PAGE.parent / name).read_text("utf-8").splitlines()
    )
    assert {group: int(count) for group, count in rows.items()} == runs
    git = ["git", "-C", str(ROOT)]
    counted = subprocess.run([*git, "rev-list", "--count", "HEAD"], capture_output=True, text=True)
    if int(counted.stdout or 0) < 1000:  # a shallow clone, or a copy without its history
        pytest.skip("the history is not here")
    commits = set(re.findall(r"\b[0-9a-f]{9,10}\b", PAGE.read_text("utf-8") + text))
    assert len(commits) > 60
    for commit in commits:
        assert subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"]).returncode == 0, commit


def test_the_command_of_a_table_is_that_of_its_comment_its_section_or_its_page(tmp_path: Path) -> None:
    page = """# Page
`python first.py` and `python second.py`
| a | b |
|---|---|
| x | 1 |

## Own
    python second.py --own  # before it
    python third.py --all  # two minutes

| a | b |
|---|---|
| x | 1 |
text <!-- command: python fourth.py -->
| a | b |
|---|---|
| x | no number |

| a | b |
|---|---|
| x | 2 |
## Without
| a | b |
|---|---|
| x | 3 |
"""
    page += (
        "Between: `python between.py`\n| a | b |\n|---|---|\n| x | 5 |\n\n| a | b |\n|---|---|\n| x | 6 |\n"
    )
    page += "## Both\n<!-- command: python fifth.py -->\n`python sixth.py`\n| a | b |\n|---|---|\n| x | 4 |\n"
    found = [(table.heading, table.number, *table.commands) for table in tables_of(tmp_path / "p.md", page)]
    assert found == [
        ("Page", 1, "python second.py"),
        ("Own", 1, "python second.py --own", "python third.py --all"),
        ("Own", 2, "python fourth.py"),
        ("Without", 1, "python first.py"),
        ("Without", 2, "python between.py"),
        ("Without", 3, "python between.py"),
        ("Both", 1, "python fifth.py"),
    ]


def test_rows_that_moved_to_another_page_keep_their_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    run = lambda *words: subprocess.run([*git, *words], check=True, capture_output=True, text=True).stdout  # noqa: E731
    rows = "".join(
        f"| a long enough row of measured numbers {n} | .{n}21 (.{n}01 to .{n}44) |\n" for n in range(4)
    )
    table = f"`python first.py`\n\n| what | how much |\n|---|---|\n{rows}"
    old, new = tmp_path / "old.md", tmp_path / "new.md"
    run("init", "-q")
    commits = []
    for pages in ({old: f"# Old\n{table}"}, {old: "# Old\n", new: f"# New\n{table}"}):
        for page, text in pages.items():
            page.write_text(text)
        run("add", "-A")
        run("commit", "-q", "-m", "a page")
        commits.append(run("rev-parse", "HEAD").strip())
    monkeypatch.setattr("scripts.table_commits.ROOT", tmp_path)
    [found] = tables_of(new, new.read_text())
    [commit] = commits_of(found)
    assert commits[0].startswith(commit) and not commits[1].startswith(commit)


def test_a_table_has_no_command_of_another_section(tmp_path: Path) -> None:
    page = "# Page\n## One\n`python first.py`\n## Two\n| a | b |\n|---|---|\n| x | 1 |\n"
    assert [table.commands for table in tables_of(tmp_path / "p.md", page)] == [()]
