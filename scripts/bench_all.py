"""Rerun the tables of docs/results that are about speed, each by one run of its bench.

    python scripts/bench_all.py --list                                   # every table: its command, how long it takes, what it needs
    python scripts/bench_all.py --names solver opening                   # some of them; --page retriever.md for those of a page
    python scripts/bench_all.py --names cliffs --before ../before        # a table that compares with an older checkout
    python scripts/bench_all.py --names opening --dry-run                # print the new table, write nothing

In a page the tables of a run stand between two HTML comments, ``<!-- bench: NAME -->`` and ``<!-- /bench -->``. The command runs once, in
one process that measures all sides in turn, and its tables take the place of those between the comments; sentences there stay. A table
with a side that this run did not measure is refused: nothing is written if the command fails, or if the new tables lack a table, a column,
a row or a number that the page has. What a page says about its numbers is not rewritten: read it after a run.

Not here: gpu.md and the vLLM table of llm.md (other machines), tables whose seconds are by-products of training runs or studies (the CPU
minutes of algorithms.md, planning.md, grafting.md), and bench_restore.py, whose numbers stand in a sentence of docs/tstar.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("docs/results")
END = "<!-- /bench -->"
_MARK = re.compile(r"^<!-- (?:bench: (?P<name>[\w-]+)|/bench) -->$", re.MULTILINE)
# A header, a line of dashes, and at least one row.
_TABLE = re.compile(r"^\|.*\|\n\|(?:[ :]*-+[ :]*\|)+\n(?:\|.*\|(?:\n|\Z))+", re.MULTILINE)


class Refused(Exception):
    """A table that is not written; the message says why."""


class Entry(NamedTuple):
    """The tables of one run of a bench.

    Attributes:
        name: in the comment of the page, and for ``--names``.
        page: in docs/results.
        command: arguments as the page gives them; ``{python}`` is an interpreter, ``{before}`` the folder of another checkout.
        takes: time on two cores with nothing else to do, roughly.
        labels: titles of columns that name a row together with the first, in tables that have them.
        shown: which of the printed tables the page shows; empty: all.
        before: revision of the other checkout.
        python: interpreter in an environment of its own, from the root.
        needs: how to get what else the command needs.
        whole: the bench writes the page itself, to the path that the command names; what it prints is not read.
    """

    name: str
    page: str
    command: str
    takes: str
    labels: tuple[str, ...] = ()
    shown: tuple[int, ...] = ()
    before: str = ""
    python: str = ""
    needs: str = ""
    whole: bool = False

    def arguments(self, python: str, before: str) -> list[str]:
        """Return the command with an interpreter and the folder of the other checkout."""
        return [part.format(python=python, before=before) for part in shlex.split(self.command)]

    def as_shown(self) -> str:
        """Return the command as the page gives it."""
        return " ".join(self.arguments(self.python or "python", "../before"))


ENTRIES = (
    Entry(
        "adapters",
        "adapters.md",
        "{python} scripts/bench/bench_adapters.py --episodes 160",
        "5 minutes",
        python=".venv-adapters/openenv/bin/python",
        needs="scripts/test_adapters.sh openenv",
    ),
    Entry(
        "alfworld",
        "alfworld.md",
        "{python} scripts/bench/bench_alfworld.py --games 12 --steps 10 --out docs/results/alfworld.md",
        "5 minutes",
        labels=("scene",),
        needs="pip install '.[alfworld]'",
        whole=True,
    ),
    Entry(
        "overhead",
        "overhead.md",
        "{python} scripts/bench/bench_overhead.py --envs hotpotqa sokoban-easy --iterations 4",
        "25 minutes",
        labels=("method",),
        shown=(0,),
    ),
    Entry("sharing", "sampling.md", "{python} scripts/bench/bench_sharing.py --rounds 4", "8 minutes"),
    Entry(
        "envs",
        "envs_speed.md",
        "{python} scripts/bench/bench_envs.py --rounds 5 --out docs/results/envs_speed.md",
        "4 minutes",
        whole=True,
    ),
    Entry(
        "memory",
        "envs_speed.md",
        "{python} scripts/bench/bench_memory.py --other {before}",
        "2 minutes",
        before="f093721",
    ),
    Entry(
        "endpoint",
        "harness_speed.md",
        "{python} scripts/bench/bench_harness.py --other {before} --what endpoint oracle",
        "15 minutes",
        labels=("side",),
        before="f093721",
    ),
    Entry(
        "records",
        "harness_speed.md",
        "{python} scripts/bench/bench_harness.py --other {before} --what records --rounds 1",
        "5 minutes, 1 GB in the folder of temporary files",
        labels=("agent",),
        before="2440e7e0",
    ),
    Entry("trl", "llm.md", "{python} scripts/bench/bench_trl.py", "25 minutes", needs="pip install '.[dev]'"),
    Entry("ranks", "ranks.md", "{python} scripts/bench/bench_ranks.py --rounds 3", "6 minutes"),
    Entry(
        "ranks-long",
        "ranks.md",
        "{python} scripts/bench/bench_ranks.py --rounds 2 --horizon 40 --tasks 32",
        "6 minutes",
        shown=(2,),
    ),
    Entry(
        "checkpoint",
        "ranks.md",
        "{python} scripts/bench/bench_checkpoint.py --other {before} --hidden 512 1024 --rounds 5",
        "15 minutes, 8 GB in the folder of temporary files",
        labels=("way",),
        before="9d4d966",
    ),
    Entry(
        "service",
        "retriever.md",
        "{python} -m retriever bench --what service --rounds 5 --seconds 8",
        "4 minutes",
        labels=("clients",),
    ),
    Entry("large", "retriever.md", "{python} -m retriever bench --what large --rounds 5", "1 minute"),
    Entry("flat", "retriever.md", "{python} -m retriever bench --what flat --rounds 1", "4 minutes"),
    Entry(
        "scale",
        "retriever.md",
        "{python} -m retriever bench --what scale",
        "40 minutes, 6 GB in the folder of temporary files",
        labels=("vectors",),
    ),
    Entry(
        "scale-hnsw",
        "retriever.md",
        "{python} -m retriever bench --what scale --sizes 30000 100000 --types flat hnsw",
        "5 minutes",
        labels=("vectors",),
    ),
    Entry(
        "opening",
        "retriever.md",
        "{python} -m retriever bench --what open",
        "1 minute, 2 GB in the folder of temporary files",
    ),
    Entry(
        "cliffs",
        "sampling.md",
        "{python} scripts/bench/bench_cliffs.py --other {before} --rounds 3",
        "10 minutes",
        before="eda0ee7",
    ),
    Entry(
        "ahead",
        "sampling.md",
        "{python} scripts/bench/bench_ahead.py --rounds 2 --iterations 7",
        "8 minutes",
    ),
    Entry(
        "iteration",
        "sampling.md",
        "{python} scripts/bench/bench_overhead.py --other {before} --envs hotpotqa --iterations 2 --rounds 2",
        "2 minutes",
        before="3c72ba5",
    ),
    Entry(
        "solver",
        "solver_speed.md",
        "{python} scripts/bench/bench_solver.py --levels 100 --boxes 4 --most-states 1000000 --out docs/results/solver_speed.md",
        "3 minutes",
        whole=True,
    ),
    Entry("webshop", "webshop.md", "{python} scripts/bench/bench_webshop.py --steps 10000", "1 minute"),
    Entry(
        "webshop-large",
        "webshop.md",
        "{python} scripts/bench/bench_webshop.py --large large",
        "15 minutes, 10 GB in the folder of temporary files",
    ),
)


class Table(NamedTuple):
    """A table of Markdown: titles of its columns, and rows of as many cells."""

    columns: list[str]
    rows: list[list[str]]


def read_table(text: str) -> Table:
    """Read a table that ``_TABLE`` found.

    Raises:
        Refused: A row has another number of cells than the header.
    """
    # Only the outermost bars go: an empty first or last cell counts.
    inner = [line.strip()[1:-1] for line in text.strip().splitlines()]
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in inner]
    columns, rows = lines[0], lines[2:]
    for row in rows:
        if len(row) != len(columns):
            raise Refused(
                f"the row {row} has {len(row)} cells, but the table has {len(columns)} columns: {columns}"
            )
    return Table(columns, rows)


def plain(cell: str) -> str:
    """Return a cell without bold type."""
    return cell.replace("**", "")


def cells_of(table: Table, labels: Sequence[str]) -> dict[tuple[str, ...], dict[tuple[str, int], str]]:
    """Return the cells of each row, by its label, and by column; a column of an equal title is told apart by its count.

    Raises:
        Refused: Two rows have one label.
    """
    seen: Counter[str] = Counter()
    names = []
    for column in table.columns:
        names.append((column, seen[column]))
        seen[column] += 1
    named = [place for place, column in enumerate(table.columns) if not place or column in labels]
    found: dict[tuple[str, ...], dict[tuple[str, int], str]] = {}
    for row in table.rows:
        label = tuple(plain(row[place]) for place in named)
        if label in found:
            raise Refused(f"two rows are called {' | '.join(label)}")
        found[label] = {
            name: cell
            for place, (name, cell) in enumerate(zip(names, row, strict=True))
            if place not in named
        }
    return found


def check(old: Table, new: Table, labels: Sequence[str]) -> None:
    """Refuse a new table that lacks what the old one has.

    Raises:
        Refused: A column, a row or a number is missing.
    """
    lacking = Counter(old.columns) - Counter(new.columns)
    if lacking:
        raise Refused(f"not measured in this run: the columns {sorted(lacking)}; it has {new.columns}")
    before, after = cells_of(old, labels), cells_of(new, labels)
    if missing := [" | ".join(label) for label in before if label not in after]:
        raise Refused(
            f"not measured in this run: the rows {missing}; it has {[' | '.join(label) for label in after]}"
        )
    for label, row in before.items():
        for column, cell in row.items():
            now = after[label][column]
            if (cell and not now) or (re.search(r"\d", cell) and not re.search(r"\d", now)):
                raise Refused(
                    f"not measured in this run: {column[0]!r} of the row {' | '.join(label)} is {now!r}, "
                    f"where the page has {cell!r}"
                )
            if re.search(r"(?<!\w)(?:nan|inf)(?!\w)", now):
                raise Refused(f"{column[0]!r} of the row {' | '.join(label)} is no number: {now!r}")


def marked(text: str, name: str) -> tuple[int, int]:
    """Return where the text between the comments of a name begins and ends in a page.

    Raises:
        Refused: They are not there exactly once, or not in turn.
    """
    places: list[tuple[int, int]] = []
    opened: tuple[str, int] | None = None
    for mark in _MARK.finditer(text):
        found = mark["name"]
        if (found is None) == (opened is None):
            raise Refused(
                f"{mark[0]} stands where {'no table was begun' if opened is None else f'{END} is missing'}"
            )
        if found is not None:
            opened = (found, mark.end() + 1)
        elif opened is not None:
            if opened[0] == name:
                places.append((opened[1], mark.start()))
            opened = None
    if opened is not None:
        raise Refused(f"<!-- bench: {opened[0]} --> has no {END}")
    if len(places) != 1:
        raise Refused(
            f"the page has <!-- bench: {name} --> {len(places)} times; it takes one, with {END} below the tables"
        )
    return places[0]


def replaced(entry: Entry, text: str, printed: Sequence[str]) -> str:
    """Return a page with the tables of a run in place of those between its comments.

    Args:
        entry: of the run.
        text: the page.
        printed: tables of the run, those that the page shows.

    Raises:
        Refused: The run did not measure all that the page has.
    """
    begin, end = marked(text, entry.name)
    between = text[begin:end]
    old = [found[0] for found in _TABLE.finditer(between)]
    if not old or len(old) != len(printed):
        raise Refused(
            f"the run gave {len(printed)} tables, the page has {len(old)} between its comments: tables of "
            "different runs would be mixed"
        )
    for before, after in zip(old, printed, strict=True):
        check(read_table(before), read_table(after), entry.labels)
    fresh = iter(printed)
    return text[:begin] + _TABLE.sub(lambda _: next(fresh), between) + text[end:]


def shown_tables(entry: Entry, output: str) -> list[str]:
    """Return the tables of a run's output that the page shows.

    Raises:
        Refused: There are none, or fewer than the page needs.
    """
    tables = [found[0].rstrip("\n") + "\n" for found in _TABLE.finditer(output)]
    if not tables:
        raise Refused("there is no table")
    if entry.shown and max(entry.shown) >= len(tables):
        raise Refused(f"the page shows table {max(entry.shown) + 1} of the run, which printed {len(tables)}")
    return [tables[place] for place in entry.shown] if entry.shown else tables


def checked_whole(entry: Entry, old: str, new: str) -> list[str]:
    """Return the tables that a bench wrote to its page, once they have all that was there.

    Raises:
        Refused: One lacks something, or nothing was written.
    """
    if new == old:
        raise Refused("the command wrote nothing to the page")
    begins = [0, 0] if "<!-- bench:" not in old else [marked(text, entry.name)[0] for text in (old, new)]
    ends = [len(old), len(new)] if not any(begins) else [marked(text, entry.name)[1] for text in (old, new)]
    before, after = (
        [found[0] for found in _TABLE.finditer(text[begin:end])]
        for text, begin, end in zip((old, new), begins, ends, strict=True)
    )
    if len(before) != len(after):
        raise Refused(f"the run wrote {len(after)} tables, the page has {len(before)}")
    if any(begins) and (old[: begins[0]], old[ends[0] :]) != (new[: begins[1]], new[ends[1] :]):
        raise Refused("the command changed what is not between its comments")
    for one, other in zip(before, after, strict=True):
        check(read_table(one), read_table(other), entry.labels)
    return after


def measured(entry: Entry, root: Path, python: str, before: str) -> tuple[list[str], str]:
    """Run the command of an entry once; return its new tables and the new page.

    It runs in an empty folder with a copy of the page, so that whatever it does, the checkout stays as it is.

    Args:
        entry: of the run.
        root: of the checkout with the page and the benches.
        python: interpreter of entries without their own.
        before: folder of the other checkout.

    Raises:
        Refused: The command failed, or the run did not measure all that the page has.
    """
    command = entry.arguments(str(root / entry.python) if entry.python else python, before)
    command[1:2] = [str(root / part) if part.startswith("scripts/") else part for part in command[1:2]]
    page = root / RESULTS / entry.page
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="bench-all-") as name:
        copy = Path(name) / RESULTS / entry.page
        copy.parent.mkdir(parents=True)
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        done = subprocess.run(
            command,
            cwd=name,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        written = copy.read_text(encoding="utf-8") if copy.is_file() else ""
    if done.returncode:
        raise Refused(f"{shlex.join(command)} ended with status {done.returncode}; its message is above")
    # Read again: another entry of the page may have been written meanwhile.
    text = page.read_text(encoding="utf-8")
    try:
        if entry.whole:
            return checked_whole(entry, text, written), written
        tables = shown_tables(entry, done.stdout)
        return tables, replaced(entry, text, tables)
    except Refused as error:  # minutes of measurements are not lost with it
        raise Refused(f"{error}; the command printed:\n{done.stdout.rstrip()}") from error


def revision_of(folder: Path) -> str:
    """Return the commit that a folder has checked out; empty if it is no checkout of its own."""
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--show-prefix", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    prefix, _, head = done.stdout.partition("\n")
    return head.strip() if not done.returncode and not prefix else ""


def changes_in(folder: Path) -> list[str]:
    """List the tracked files of a checkout that differ from its commit; none if it is no checkout of its own."""
    if not revision_of(folder):
        return []
    command = ["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line[3:] for line in done.stdout.splitlines()]


def folder_before(entry: Entry, checkouts: Mapping[Path, str]) -> str:
    """Return the folder that an entry compares with, empty if it needs none.

    Args:
        entry: to run.
        checkouts: folders given, and the commit of each.

    Raises:
        Refused: None of them has the entry's revision.
    """
    if not entry.before:
        return ""
    for folder, head in checkouts.items():
        if head.startswith(entry.before):
            return str(folder.resolve())
    given = "".join(f"; {folder} is at {head[:7] or 'no commit'}" for folder, head in checkouts.items())
    raise Refused(
        f"it compares with {entry.before}{given}; make that checkout with `git worktree add ../before-{entry.before} "
        f"{entry.before}` and give --before ../before-{entry.before}"
    )


def chosen(entries: Iterable[Entry], names: Sequence[str], pages: Sequence[str]) -> list[Entry]:
    """Return the entries asked for: of these names or pages, all without either."""
    wanted = {Path(page).name.removesuffix(".md") for page in pages}
    return [
        entry
        for entry in entries
        if not (names or pages) or entry.name in names or entry.page.removesuffix(".md") in wanted
    ]


def listed(entry: Entry) -> str:
    """Describe an entry for ``--list``."""
    other = f"git worktree add ../before {entry.before}" if entry.before else ""
    lines = [f"{entry.name}: {RESULTS / entry.page}, {entry.takes}", f"    {entry.as_shown()}"]
    return "\n".join([*lines, *(f"    needs: {need}" for need in (entry.needs, other) if need)])


def main(
    arguments: Sequence[str] | None = None, entries: Sequence[Entry] = ENTRIES, root: Path = ROOT
) -> int:
    """Rerun tables.

    Args:
        arguments: of the command line; None: this process's.
        entries: tables to choose from.
        root: checkout with the pages and the benches.

    Returns:
        0, or 1 if a table was refused.
    """
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\nNot here")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--names",
        nargs="+",
        default=[],
        choices=[entry.name for entry in entries],
        help="tables (default: all)",
    )
    parser.add_argument("--page", nargs="+", default=[], help="pages of docs/results, such as retriever.md")
    parser.add_argument(
        "--before",
        nargs="+",
        type=Path,
        default=[],
        help="checkouts of older revisions that tables compare with",
    )
    parser.add_argument("--list", action="store_true", help="print what would run, with commands and times")
    parser.add_argument("--dry-run", action="store_true", help="run, print the new tables, and write nothing")
    asked = parser.parse_args(arguments)
    known = {entry.page for entry in entries}
    for page in asked.page:
        if f"{Path(page).name.removesuffix('.md')}.md" not in known:
            parser.error(
                f"--page {page} has no table of this script; those that have: {' '.join(sorted(known))}"
            )
    for folder in asked.before:
        if not folder.is_dir():
            parser.error(f"--before {folder} is no folder")
        if changed := changes_in(folder):
            parser.error(
                f"--before {folder} has changes that its commit lacks ({', '.join(changed[:3])}), so its side would not be that "
                f"commit's: `git -C {folder} stash`"
            )
    run = chosen(entries, asked.names, asked.page)
    if asked.list:
        print("\n".join(map(listed, run)))
        return 0
    checkouts = {folder: revision_of(folder) for folder in asked.before}
    refused: dict[str, str] = {}
    for entry in run:
        print(f"{entry.name}: {entry.as_shown()} ({entry.takes})", file=sys.stderr, flush=True)
        page = root / RESULTS / entry.page
        try:
            before = folder_before(entry, checkouts)
            if entry.python and not (root / entry.python).is_file():
                raise Refused(f"it needs {entry.python}, which `{entry.needs}` makes")
            if not entry.whole:
                marked(page.read_text(encoding="utf-8"), entry.name)  # before minutes are spent
            tables, text = measured(entry, root, sys.executable, before)
        except Refused as error:
            refused[entry.name] = str(error)
            print(f"{entry.name}: refused, {page.name} is as it was: {error}", file=sys.stderr, flush=True)
            continue
        print("\n".join(tables), flush=True)
        if not asked.dry_run:
            partial = page.with_name(f"{page.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(page)
            print(
                f"{entry.name}: written to {RESULTS / entry.page}; read the sentences beside it",
                file=sys.stderr,
            )
    if refused:
        print(f"{len(refused)} of {len(run)} refused: {' '.join(refused)}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
