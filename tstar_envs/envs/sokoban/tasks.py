"""Task sets: shipped levels by difficulty, and level files by path."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tstar_envs.data.faults import Faults, check_skip_bad
from tstar_envs.data.files import LEVEL_LINES, decode, find_files, read_bytes
from tstar_envs.data.locate import PathLike, Stamped, existing, stamped
from tstar_envs.data.shipped import read_shipped_records
from tstar_envs.data.tasks import LoadedTasks, ReadWhenAsked, ids_by_split
from tstar_envs.envs.sokoban.level import Task, is_solved, level_rows, parse_level, read_level
from tstar_envs.errors import MissingData
from tstar_envs.utils import SPLITS

if TYPE_CHECKING:
    from tstar_envs.envs.sokoban.level_files import FoundLevel


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Bounds of the levels of a difficulty.

    Attributes:
        sizes: sides of the square rooms, walls included.
        boxes: number of boxes.
        floor: minimum and maximum number of floor cells.
        shortest: minimum optimal length, in moves.
        longest: maximum optimal length.
        pushes: minimum number of pushes in the solution.
        lines: minimum number of box-lines (consecutive pushes of one box in one direction count as one).
        trap: True if a push that is possible along the solution must lose.
    """

    sizes: tuple[int, ...]
    boxes: int
    floor: tuple[int, int]
    shortest: int
    longest: int
    pushes: int
    lines: int = 1
    trap: bool = False


DIFFICULTIES: dict[str, Difficulty] = {
    "easy": Difficulty((6, 7), 1, (8, 18), 5, 12, pushes=2),
    "medium": Difficulty((7, 8), 2, (12, 24), 13, 24, pushes=2),
    "hard": Difficulty((8, 9, 10), 3, (18, 30), 25, 40, pushes=7, lines=4, trap=True),
}


DATA = Path(__file__).parent / "data"


Text = tuple[str, str, str, str]  # split, XSB text, solution or "", place in its file


def task_set(name: str, tier: str, tasks: Iterable[tuple[str, str, str, str, str]]) -> LoadedTasks[Task]:
    """Create a task set of levels, which are parsed lazily.

    Each level is given as (id, split, XSB text, solution, place in its file).
    """
    texts: dict[str, Text] = {
        task_id: (split, text, moves, where) for task_id, split, text, moves, where in tasks
    }
    # Only texts by path may differ from the output of print_level.
    read = _read_public if tier == "path" else _read_own
    by_split = ids_by_split((task_id, text[0]) for task_id, text in texts.items())
    return LoadedTasks(name, tier, ReadWhenAsked(texts, read), by_split)


def _read_public(task_id: str, text: Text) -> Task:
    return Task(task_id, text[0], *parse_level(text[1], text[3]), text[2])


def _read_own(task_id: str, text: Text) -> Task:
    return Task(task_id, text[0], *read_level(text[1]), text[2])


def write_task(task: Task) -> str:
    """Serialize a task as a line of the shipped files."""
    text = "\n".join(level_rows(task.room, task.start))
    return json.dumps({"split": task.split, "level": text, "optimal": len(task.moves), "moves": task.moves})


@lru_cache(maxsize=8)
def load_shipped(difficulty: str) -> LoadedTasks[Task]:
    """Load the shipped levels of a difficulty."""
    path = DATA / f"{difficulty}.jsonl.gz"
    counts = dict.fromkeys(SPLITS, 0)
    rows = []
    for number, record in enumerate(read_shipped_records(path), start=1):
        split = record["split"]
        task_id = f"sokoban-{difficulty}-mini-{split}-{counts[split]:04d}"
        counts[split] += 1
        rows.append((task_id, split, record["level"], record["moves"], f"{path}, line {number}"))
    return task_set(f"Sokoban-{difficulty}", "mini", rows)


LEVEL_SUFFIXES = (".txt", ".xsb", ".sok", ".slc", ".ssx")


def load_path(path: PathLike, option: str = "levels", skip_bad: bool = False) -> LoadedTasks[Task]:
    """Read a level file, or all ``.txt``, ``.xsb``, ``.sok``, ``.slc`` and ``.ssx`` files below a folder.

    See ``level_files`` for the formats. The id of a level is its file's path below the folder (for one file its name), a colon, and
    its number in the file from 0. Its split is the first part of that path that is ``train``, ``valid`` or ``test`` (as in
    Boxoban's folders), else ``test``.

    Args:
        path: the file or folder.
        option: name of the option in error messages.
        skip_bad: skip unplayable levels; ``left_out`` of the result tells how many and why.

    Raises:
        UnknownOption: the path is empty.
        MissingData: the path does not exist or has no level.
        BadData: some levels are unplayable; all are listed, with file and line.
    """
    check_skip_bad(skip_bad)
    endings = " or ".join(LEVEL_SUFFIXES)
    root = existing(path, option, f"an XSB or Boxoban text file, or a folder of files that end in {endings}")
    files = find_files(root, LEVEL_SUFFIXES) if root.is_dir() else [root]
    if not files:
        raise MissingData(
            f"{option}={os.fspath(path)!r}: no XSB or Boxoban file in this folder, none ends in {endings}"
        )
    return _read_files(root, stamped(files), skip_bad)


@lru_cache(maxsize=4)
def _read_files(root: Path, files: Stamped, skip_bad: bool) -> LoadedTasks[Task]:
    """Read level files."""
    rows = []
    solved = []
    faults = Faults(skip_bad)
    for file, *_ in files:
        parts = file.relative_to(root).parts or (file.name,)
        split = next((part for part in parts if part in SPLITS), "test")
        with faults.collect(file):
            for number, found in enumerate(_levels_in(file)):
                if found.fault:
                    faults.add(f"{file}, line {found.fault_line}", found.fault)
                    continue
                where = f"{file}, line {found.line}"
                with faults.collect(where):
                    room, state = parse_level(found.text, where)  # report errors now, not during a run
                    task_id = f"{'/'.join(parts)}:{number}"
                    rows.append((task_id, split, found.text, "", where))
                    if is_solved(room, state):
                        solved.append(task_id)
    left_out = faults.settle(len(rows), "levels")
    if not rows:
        raise MissingData(
            f"{str(root)!r}: no level in it; levels are rows of # $ . * @ + and spaces (XSB, Boxoban)"
        )
    return replace(task_set(str(root), "path", rows), solved=tuple(solved), left_out=left_out)


def _levels_in(file: Path) -> Iterator[FoundLevel]:
    """Read the levels of a file."""
    from tstar_envs.envs.sokoban.level_files import is_collection, read_collection, split_levels

    data = read_bytes(file)
    if is_collection(data):
        return read_collection(data, str(file))
    # Latin-1, for authors' names in old collections.
    text = decode(data, file, fallback="latin-1")
    LEVEL_LINES.check(text.count("\n"), file)
    return split_levels(io.StringIO(text, newline=None))
