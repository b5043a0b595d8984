"""Tasks from public level files, XSB or Boxoban text and XML collections, by path."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import Faults, check_skip_bad
from tstar_envs.data.files import decode, find_files, read_bytes
from tstar_envs.data.limits import LEVEL_LINES
from tstar_envs.data.locate import PathLike, Stamped, existing, stamped
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.sokoban.level_files.slc import is_collection, read_collection
from tstar_envs.envs.sokoban.level_files.text_file import FoundLevel, split_levels
from tstar_envs.envs.sokoban.level_files.xsb import parse_level
from tstar_envs.envs.sokoban.moves import is_solved
from tstar_envs.envs.sokoban.task import Task
from tstar_envs.envs.sokoban.tasks import task_set
from tstar_envs.errors import MissingData

LEVEL_SUFFIXES = (".txt", ".xsb", ".sok", ".slc", ".ssx")


def load_path(path: PathLike, option: str = "levels", skip_bad: bool = False) -> LoadedTasks[Task]:
    """Read a public level file, or every ``.txt``, ``.xsb``, ``.sok``, ``.slc`` and ``.ssx`` file below a folder; forms: ``level_files``.

    The id of a level is its file's path below the folder (for one file its name), a colon, and its number in the file from
    0. Its split is the first part of that path that is ``train``, ``valid`` or ``test`` (as in Boxoban's folders), else ``test``.

    Args:
        path: the file or folder.
        option: what error messages call it.
        skip_bad: leave levels out that cannot be played; ``left_out`` of what comes back says how many and why.

    Raises:
        UnknownOption: an empty path.
        MissingData: nothing there, or no level in it.
        BadData: levels that cannot be played; all are named, with file and line.
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
                    room, state = parse_level(found.text, where)  # faults are named now, not during a run
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
    """What stands in a level file."""
    data = read_bytes(file)
    if is_collection(data):
        return read_collection(data, str(file))
    # Latin-1: the authors' names of many old collections are written in it.
    text = decode(data, file, fallback="latin-1")
    LEVEL_LINES.check(text.count("\n"), file)
    return split_levels(io.StringIO(text, newline=None))
