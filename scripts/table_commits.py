"""Command and commit of every table of results: writes docs/results/commits.md and recorded_runs.md from the pages and ``git blame``.

    python scripts/table_commits.py

The commits of a table are those that wrote its rows, on this page or on one they were moved from, most first. Its commands are those of
the last line with comments (``<!-- command: ... -->``) between it and the table before it, else the last one there, with those on the
lines before it if it stands in a block, else those found so above that table in its section, else the first one above the page's
sections. The second page has the commits of the code that made the recorded runs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results"
PAGE = FOLDER / "commits.md"
RUNS_PAGE = FOLDER / "recorded_runs.md"
STARTS = r"(?:python3? |scripts/|\.venv[\w/-]*/bin/python )"
COMMANDS = re.compile(
    rf"^(?: {{4}})?({STARTS}[^`\n]*)$|`({STARTS}[^`]+)`|<!-- command: ([^>]+) -->", re.MULTILINE
)
RECORDS = ("evidence.jsonl", "algorithms.jsonl")
PRINTED = ("scripts/reproduce.py tables --print", "compare_algorithms.py --table")
HEAD = f"""# Where the numbers come from

Each table of these pages and of README.md's results, the commands that make it, and the commits that wrote its rows, most first. Where a
command measures, the code that did is of that commit or of one shortly before, unless the page names another. Where it prints recorded runs
(`{PRINTED[0]}`, `{PRINTED[1]}`), the code that made the runs is of the commits in
[recorded_runs.md](recorded_runs.md). Figures in sentences are of their section's commands. Written by `python scripts/table_commits.py`.

| table | commands | commits |
|---|---|---|
"""
RUNS = """# Recorded runs

Commits of the code that made each group's runs, with how many in brackets; a plus sign: with edited files. "Before": the run does not name
its commit, and was recorded at this one. Written by `python scripts/table_commits.py`.

| group | runs | commits |
|---|---|---|
"""


@dataclass(frozen=True)
class Table:
    """A table of a page.

    Attributes:
        page: file.
        heading: of its section.
        number: which of the section's tables, from 1.
        first: line of its head, from 0.
        last: line after it.
        commands: that make it; none if the page names none above it.
    """

    page: Path
    heading: str
    number: int
    first: int
    last: int
    commands: tuple[str, ...]

    @property
    def name(self) -> str:
        """Page, section and number, as in the list."""
        place = f"{self.page.name}, {self.heading}"
        return place if self.number == 1 else f"{place} ({self.number})"


def commands_of(text: str) -> list[str]:
    """Find the commands of a text, in blocks and in sentences, each on one line and without its comment."""
    found = (next(filter(None, groups)) for groups in COMMANDS.findall(text.replace("\\\n", " ")))
    return [re.split(r" #| && | \| ", re.sub(r"\s+", " ", one))[0].strip() for one in found]


def tables_of(page: Path, text: str) -> Iterator[Table]:
    """Find a page's tables that hold numbers, in order."""
    lines = text.splitlines()
    head = next((at for at, line in enumerate(lines) if line.startswith("## ")), len(lines))
    first = commands_of("\n".join(lines[:head]))[:1]
    heading, number, at = page.stem, 0, 0
    parts = [0]  # where the section begins and where its tables so far end
    while at < len(lines):
        if found := re.match(r"#+ (.*)", lines[at]):
            heading, parts, number = found[1], [at], 0
        if not lines[at].startswith("|"):
            at += 1
            continue
        last = at
        while last < len(lines) and lines[last].startswith("|"):
            last += 1
        if any(re.search(r"\d", cell) for row in lines[at + 2 : last] for cell in row.split("|")[2:]):
            number += 1
            above = (
                _nearest(lines[start:end])
                for start, end in zip(parts[::-1], [at, *parts[:0:-1]], strict=True)
            )
            yield Table(page, heading, number, at, last, next(filter(None, above), tuple(first)))
        parts.append(last)
        at = last


def _nearest(lines: list[str]) -> tuple[str, ...]:
    """Find the commands for what follows some lines of a section: of the last comment, else of the last block, else the last one."""
    comment = re.compile(r"<!-- command: ([^>]+) -->")
    if commented := [line for line in lines if comment.search(line)]:
        return tuple(command.strip() for command in comment.findall(commented[-1]))
    block = re.compile(rf" {{4}}{STARTS}")
    for last in range(len(lines) - 1, -1, -1):
        if found := commands_of("\n".join(lines[last:])):
            first = last
            while first and block.match(lines[first]) and block.match(lines[first - 1]):
                first -= 1
            return tuple(commands_of("\n".join(lines[first : last + 1])) if first < last else found[-1:])
    return ()


def commits_of(table: Table) -> list[str]:
    """Return the commits that wrote rows of a table, most first."""
    rows = f"{table.first + 3},{table.last}"
    command = ["git", "-C", str(ROOT), "blame", "-s", "-M", "-C", "--abbrev=9", "-L", rows, str(table.page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    counts = Counter(line.split()[0].lstrip("^") for line in done.stdout.splitlines())
    return [commit for commit, _ in counts.most_common() if commit.strip("0")]  # zeros: not committed yet


def recorded() -> Iterator[tuple[str, Counter[str]]]:
    """Count the runs of each recorded group by commit: the one that made a run, else the one that recorded it."""
    for name in RECORDS:
        command = ["git", "-C", str(ROOT), "blame", "-s", "-M", "--abbrev=9", str(FOLDER / name)]
        blamed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        groups: dict[str, Counter[str]] = {}
        for line in blamed:
            commit, _, text = line.partition(" ")
            run = json.loads(text[text.index("{") :])
            groups.setdefault(run["group"], Counter())[
                run.get("commit") or f"before {commit.lstrip('^')}"
            ] += 1
        for group, counts in groups.items():
            yield f"{name}, {group}", counts


def all_tables() -> list[Table]:
    """Find the tables of README.md's results and of the pages of results."""
    readme = ROOT / "README.md"
    pages = sorted(FOLDER.glob("*.md"))
    found = [table for table in tables_of(readme, readme.read_text("utf-8")) if table.heading == "Results"]
    return found + [
        table
        for page in pages
        if page not in (PAGE, RUNS_PAGE)
        for table in tables_of(page, page.read_text("utf-8"))
    ]


def shown(commands: tuple[str, ...]) -> str:
    """Write a table's commands as a cell."""
    return ", ".join(f"`{command}`" for command in commands)


def listed() -> set[tuple[str, str]]:
    """Read the names and commands on the page as it is."""
    return set(re.findall(r"^\| ([^|]+) \| (`.*`) \| ", PAGE.read_text("utf-8"), re.MULTILINE))


def main() -> None:
    """Rewrite the pages."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()  # no options
    rows = [
        f"| {table.name} | {shown(table.commands)} | {', '.join(commits_of(table))} |"
        for table in all_tables()
    ]
    runs = [
        f"| {group} | {counts.total()} | {', '.join(f'{commit} ({count})' for commit, count in counts.most_common())} |"
        for group, counts in recorded()
    ]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    RUNS_PAGE.write_text(RUNS + "\n".join(runs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
