"""scripts/bench_all.py: every table has its command, and none is written whose sides one run did not measure."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import tyro

from retriever.cli import Bench
from scripts.bench_all import ENTRIES, RESULTS, ROOT, Entry, Refused, check, main, marked, read_table

TABLE = re.compile(r"^\|.*\|\n\|[-|]+\|\n(?:\|.*\|\n)+", re.MULTILINE)
# Their parsers come after imports that take seconds (trl), or that only an environment of its own has (openenv).
LATE = {"trl": "importing trl takes seconds", "adapters": "openenv is in an environment of its own"}


def page_of(entry: Entry) -> str:
    return (ROOT / RESULTS / entry.page).read_text(encoding="utf-8")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_page_gives_the_command_and_has_the_tables_once(entry: Entry) -> None:
    text = page_of(entry)
    assert entry.as_shown() in " ".join(text.split()), "the command stands beside the table"
    assert not entry.before or f"git worktree add ../before {entry.before}" in text
    begin, end = (0, len(text)) if f"<!-- bench: {entry.name} -->" not in text else marked(text, entry.name)
    assert entry.whole or begin, "the page lacks its comments"
    tables = TABLE.findall(text[begin:end])
    assert tables and (not entry.shown or len(tables) == len(entry.shown))
    for table in tables:
        check(read_table(table), read_table(table), entry.labels)  # its labels tell its rows apart
        # A side that is lacking in the page's own table is not missed.
        with pytest.raises(Refused, match="the rows"):
            fewer = "".join(table.splitlines(keepends=True)[:-1])
            check(read_table(table), read_table(fewer), entry.labels)


def test_every_comment_has_an_entry_and_every_name_is_one() -> None:
    counts = Counter(entry.name for entry in ENTRIES)
    assert set(counts.values()) == {1}
    found = [
        (name, file.name)
        for file in sorted((ROOT / "docs").rglob("*.md"))
        for name in re.findall(r"<!-- bench: (.*?) -->", file.read_text(encoding="utf-8"))
    ]
    known = {entry.name: entry.page for entry in ENTRIES}
    assert found and not [(name, page) for name, page in found if known.get(name) != page]
    assert {name for name, _ in found} | {"solver"} == set(counts), "this one writes all of its page"


def test_the_benches_that_a_page_names_are_in_it() -> None:
    """A new bench on a page of results has an entry, so that its table can be rerun."""
    commands = {entry.as_shown() for entry in ENTRIES}
    named = {
        " ".join(command.split())
        for file in (ROOT / RESULTS).glob("*.md")
        for command in re.findall(
            r"python (?:scripts/bench/bench_\w+\.py|-m retriever bench) [^`]*?(?=`|\n\n| -->)",
            file.read_text("utf-8"),
        )
    }
    assert len(named) > 15
    assert not [one for one in named if not any(one in command for command in commands)]


class Parsed(Exception):
    """The parser took all of the command."""


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.name not in LATE], ids=lambda entry: entry.name
)
def test_a_bench_takes_its_command(
    entry: Entry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, script, *arguments = entry.arguments(sys.executable, str(ROOT))
    if script == "-m":
        assert arguments[:2] == ["retriever", "bench"]
        assert tyro.cli(Bench, args=arguments[2:]).what  # it would exit
        return
    bench = module_of(script, monkeypatch)
    if hasattr(bench, "Options"):
        assert tyro.cli(bench.Options, args=arguments).what
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, given: list[str] | None = None) -> None:
        raise Parsed(parse(self, given))  # type: ignore[call-overload]

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(Parsed):
        bench.main()
    monkeypatch.setattr(sys, "argv", [script, *arguments, "--no-such-option"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "--no-such-option" in capsys.readouterr().err


def module_of(script: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A bench, which finds its neighbours as it does when it is run."""
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    return import_module(Path(script).stem)


@pytest.mark.parametrize("name", LATE)
def test_a_bench_with_late_imports_has_the_options_of_its_command(name: str) -> None:
    [entry] = [entry for entry in ENTRIES if entry.name == name]
    _, script, *arguments = entry.arguments("", "")
    text = (ROOT / script).read_text(encoding="utf-8")
    for option in (argument[2:] for argument in arguments if argument.startswith("--")):
        assert f'"--{option}"' in text or re.search(rf"^    {option}: ", text, re.MULTILINE), option


@pytest.mark.slow
def test_the_bench_beside_trl_takes_its_command() -> None:
    [entry] = [entry for entry in ENTRIES if entry.name == "trl"]
    command = [*entry.arguments(sys.executable, ""), "--no-such-option"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "unrecognized arguments: --no-such-option\n" in done.stderr


PAGE = """# Speed

`python scripts/bench/bench_fake.py`

<!-- bench: other -->
| of another run | s |
|---|---|
| kept | 9 |
<!-- /bench -->

<!-- bench: fake -->
| env | side | s | ratio |
|---|---|---|---|
| easy | **now** | 1.5 | |
| easy | before | 3.0 | 2.0 (1.9 to 2.1) |

Between the tables.

| memory | MB |
|---|---|
| now | 7 |
<!-- /bench -->

| made by hand | s |
|---|---|
| now | 4 |
"""
FIRST = """| env | side | s | ratio |
|---|---|---|---|
| easy | now | 1.2 | |
| easy | before | 3.6 | 3.0 (2.8 to 3.1) |
"""
SECOND = """| memory | MB |
|---|---|
| now | 8 |
"""
FAKE = Entry("fake", "speed.md", "{python} scripts/bench/bench_fake.py", "no time", labels=("side",))


def checkout(root: Path, printed: str, status: int = 0, page: str = PAGE) -> Path:
    """A page, and a bench that prints something."""
    (root / RESULTS).mkdir(parents=True)
    (root / "scripts/bench").mkdir(parents=True)
    (root / RESULTS / "speed.md").write_text(page, encoding="utf-8")
    code = f"import sys\nprint({printed!r})\nsys.exit({status})\n"
    (root / "scripts/bench/bench_fake.py").write_text(code, encoding="utf-8")
    return root / RESULTS / "speed.md"


WHOLE = FAKE._replace(command="{python} scripts/bench/bench_fake.py --out docs/results/speed.md", whole=True)


def test_a_run_takes_the_place_of_its_tables_and_of_nothing_else(tmp_path: Path) -> None:
    page = checkout(tmp_path, f"round 1\n{FIRST}\nA sentence.\n\n{SECOND}")
    assert main(["--names", "fake", "--dry-run"], entries=[FAKE], root=tmp_path) == 0
    assert page.read_text(encoding="utf-8") == PAGE
    assert main(["--page", "speed.md"], entries=[FAKE], root=tmp_path) == 0
    text = page.read_text(encoding="utf-8")
    head, _, rest = PAGE.partition("<!-- bench: fake -->\n")
    tail = rest.partition("<!-- /bench -->")[2]
    assert (
        text == f"{head}<!-- bench: fake -->\n{FIRST}\nBetween the tables.\n\n{SECOND}<!-- /bench -->{tail}"
    )
    assert sorted(file.name for file in page.parent.iterdir()) == ["speed.md"]


def test_some_tables_of_a_run_may_be_shown(tmp_path: Path) -> None:
    before, _, after = PAGE.partition("| env |")
    rest = after.partition("Between the tables.\n\n")[2]
    page = checkout(tmp_path, f"{FIRST}\n{SECOND}", page=before + rest)
    assert main([], entries=[FAKE._replace(shown=(1,))], root=tmp_path) == 0
    assert page.read_text(encoding="utf-8") == before + rest.replace("| now | 7 |", "| now | 8 |")


@pytest.mark.parametrize(
    ("printed", "status", "why"),
    [
        (f"{FIRST}\n{SECOND}", 3, "ended with status 3"),
        ("All sides were measured.", 0, "no table; the command printed:\nAll sides were"),
        (FIRST, 0, "1 tables, the page has 2.*different runs would be mixed"),
        (f"{FIRST}\n{SECOND}\n{SECOND}", 0, "3 tables, the page has 2.*different runs would be mixed"),
        (
            f"{FIRST.replace('| easy | before | 3.6 | 3.0 (2.8 to 3.1) |', '')}\n{SECOND}",
            0,
            r"rows \['easy \| before'\]",
        ),
        (
            f"{FIRST.replace('| easy | before', '| easy | now')}\n{SECOND}",
            0,
            "two rows are called easy | now",
        ),
        (f"{FIRST}\n{SECOND.replace('MB', 'GB')}", 0, r"columns \['MB'\]"),
        (f"{FIRST.replace('3.6', '')}\n{SECOND}", 0, "'s' of the row easy | before is ''"),
        (f"{FIRST.replace('3.0 (2.8 to 3.1)', '-')}\n{SECOND}", 0, "'ratio' of the row easy | before is '-'"),
        (f"{FIRST.replace('3.6', 'nan')}\n{SECOND}", 0, "is 'nan', where the page has '3.0'"),
        (
            f"{FIRST.replace('3.0 (2.8 to 3.1)', '3.0 (nan to nan)')}\n{SECOND}",
            0,
            "no number: '3.0 .nan to nan.'",
        ),
        (f"{FIRST.replace(' | 1.2 |', ' |')}\n{SECOND}", 0, "has 3 cells, but the table has 4 columns"),
    ],
)
def test_a_table_without_all_its_sides_is_refused(
    printed: str, status: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = checkout(tmp_path, printed, status)
    assert main([], entries=[FAKE], root=tmp_path) == 1
    assert page.read_text(encoding="utf-8") == PAGE and [*page.parent.iterdir()] == [page]
    said = capsys.readouterr()
    assert re.search(
        f"fake: refused, speed.md is as it was: .*{why.replace(' | ', ' . ')}", said.err, re.DOTALL
    ), said.err
    assert said.out == "" and "1 of 1 refused: fake" in said.err


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<!-- bench: fake -->\n", "", "stands where no table was begun"),
        ("<!-- bench: fake -->", "<!-- bench: fakes -->", "fake --> 0 times"),
        ("<!-- bench: other -->", "<!-- bench: fake -->", "fake --> 2 times"),
        ("| kept | 9 |\n<!-- /bench -->\n", "| kept | 9 |\n", "stands where <!-- /bench --> is missing"),
        ("| now | 7 |\n<!-- /bench -->\n", "| now | 7 |\n", "fake --> has no <!-- /bench -->"),
    ],
)
def test_comments_that_do_not_pair_are_refused_before_the_bench_runs(
    old: str, new: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert PAGE.count(old) == 1
    page = checkout(tmp_path, f"{FIRST}\n{SECOND}", page=PAGE.replace(old, new))
    ran = tmp_path / "ran"
    (tmp_path / "scripts/bench/bench_fake.py").write_text(f"open({str(ran)!r}, 'w')", encoding="utf-8")
    assert main([], entries=[FAKE], root=tmp_path) == 1
    assert why in capsys.readouterr().err and page.read_text(encoding="utf-8") == PAGE.replace(old, new)
    assert not ran.exists()


def test_the_others_are_written_when_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = checkout(tmp_path, f"{FIRST}\n{SECOND}")
    (tmp_path / "scripts/bench/bench_other.py").write_text(
        "print('| of another run | s |\\n|---|---|\\n| kept | 8 |')", encoding="utf-8"
    )
    other = Entry("other", "speed.md", "{python} scripts/bench/bench_other.py", "no time")
    missing = Entry(
        "missing", "speed.md", "{python} x.py", "no time", python=".venv-x/bin/python", needs="make x"
    )
    assert main([], entries=[missing, other, FAKE], root=tmp_path) == 1
    text = page.read_text(encoding="utf-8")
    assert "| kept | 8 |" in text and FIRST in text and SECOND in text and "| now | 4 |" in text
    said = capsys.readouterr().err
    assert "it needs .venv-x/bin/python, which `make x` makes" in said and "1 of 3 refused: missing" in said


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_table_that_compares_wants_the_checkout_of_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, old, new = (tmp_path / name for name in ("root", "old", "new"))
    page = checkout(root, "")
    (root / "scripts/bench/bench_fake.py").write_text(
        f"import sys\nprint({FIRST + chr(10) + SECOND!r} if sys.argv[1] == {str(old)!r} else '')",
        encoding="utf-8",
    )
    for folder in (old, new):
        folder.mkdir()
        git(folder, "init", "-q")
        git(folder, "commit", "-q", "--allow-empty", "-m", folder.name)
    (old / "inside").mkdir()
    (old / "inside/code.py").write_text("", encoding="utf-8")
    entry = FAKE._replace(command=FAKE.command + " {before}", before=git(old, "rev-parse", "HEAD")[:7])
    for given, why in (
        (
            [],
            f"compares with {entry.before}; make that checkout with `git worktree add ../before-{entry.before}",
        ),
        (["--before", str(new)], f"{new} is at {git(new, 'rev-parse', 'HEAD')[:7]}; make"),
        (["--before", str(old / "inside")], "is at no commit; make"),
    ):
        assert main(given, entries=[entry], root=root) == 1
        assert why in capsys.readouterr().err and page.read_text(encoding="utf-8") == PAGE
    assert main(["--before", str(new), str(old)], entries=[entry], root=root) == 0
    assert FIRST in page.read_text(encoding="utf-8")
    # A checkout with other code than its commit's is none of that commit.
    git(old, "add", "inside/code.py")
    with pytest.raises(SystemExit):
        main(["--before", str(old)], entries=[entry], root=root)
    assert "has changes that its commit lacks (inside/code.py), so its side" in capsys.readouterr().err


def test_a_bench_that_writes_its_page_is_checked_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = f"# Speed\n\n{FIRST}\n{SECOND}"
    page = checkout(tmp_path, "", page=old)
    bench = tmp_path / "scripts/bench/bench_fake.py"
    for written, why in (
        (old, "wrote nothing"),
        (f"# Speed\n\n{SECOND}", "wrote 1 tables, the page has 2"),
        (old.replace("| easy | before | 3.6 | 3.0 (2.8 to 3.1) |\n", ""), "the rows"),
        (old.replace("1.2", "1.3"), ""),
    ):
        bench.write_text(f"import sys\nopen(sys.argv[2], 'w').write({written!r})", encoding="utf-8")
        assert main([], entries=[WHOLE], root=tmp_path) == bool(why)
        assert why in capsys.readouterr().err
        assert page.read_text(encoding="utf-8") == (old if why else written)


def test_a_bench_that_writes_between_its_comments_leaves_the_rest(tmp_path: Path) -> None:
    page = checkout(tmp_path, "")
    bench = tmp_path / "scripts/bench/bench_fake.py"
    for change, wanted in (
        ("t.replace('| now | 7', '| now | 8').replace('| now | 4', '| now | 5')", 1),
        ("t.replace('| now | 7', '| now | 8')", 0),
    ):
        bench.write_text(
            f"import sys\nt = open(sys.argv[2]).read()\nopen(sys.argv[2], 'w').write({change})",
            encoding="utf-8",
        )
        assert main([], entries=[WHOLE], root=tmp_path) == wanted
    assert page.read_text(encoding="utf-8") == PAGE.replace("| now | 7", "| now | 8")


def test_the_list_says_what_would_run_and_wrong_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(
        f"{entry.name}: docs/results/{entry.page}, {entry.takes}\n    {entry.as_shown()}" in said
        for entry in ENTRIES
    )
    assert main(["--list", "--page", "docs/results/solver_speed.md", "--names", "cliffs"]) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^(\S+): ", said, re.MULTILINE) == ["cliffs", "solver"]
    assert "needs: git worktree add ../before eda0ee7" in said
    for wrong, why in (
        (["--names", "clifs"], "invalid choice: 'clifs'"),
        (["--page", "credit.md"], "--page credit.md has no table of this script"),
        (["--before", "/no/such"], "--before /no/such is no folder"),
    ):
        with pytest.raises(SystemExit):
            main(wrong)
        assert why in capsys.readouterr().err
