"""Sets of levels: the shipped ones, and public XSB or Boxoban files by path."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import NOTHING_LEFT_OUT, Faults, LeftOut, check_skip_bad
from tstar_envs.data.files import decode, find_files, read_bytes
from tstar_envs.data.limits import LEVEL_LINES
from tstar_envs.envs.sokoban.level_files import FoundLevel, split_levels
from tstar_envs.envs.sokoban.levels import Level, level_rows, parse_level, read_level
from tstar_envs.envs.sokoban.rules import is_solved
from tstar_envs.envs.sokoban.slc import is_collection, read_collection
from tstar_envs.errors import MissingData, UnknownTask
from tstar_envs.tier import PathLike, Stamped, existing, stamped

MINI_FOLDER = Path(__file__).parent / "data"
LEVEL_SUFFIXES = (".txt", ".xsb", ".sok", ".slc")


@dataclass(frozen=True, eq=False)
class LevelSet:
    """Levels of one kind; a level is read when it is first asked for.

    Attributes:
        name: for error messages.
        tier: ``mini`` (shipped), ``practice`` or ``path``.
        by_split: task ids of each split.
        texts: task id -> (split, XSB text, solution or "", where it stands).
        solved: task ids of levels that are solved at the start.
        left_out: what could not be used.
        read: the levels that were asked for.
    """

    name: str
    tier: str
    by_split: dict[str, tuple[str, ...]]
    texts: dict[str, tuple[str, str, str, str]]
    solved: tuple[str, ...] = ()
    left_out: LeftOut = NOTHING_LEFT_OUT
    read: dict[str, Level] = field(default_factory=dict, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> LevelSet:
        return self  # never changed after loading, so copies of an environment share it

    def level(self, task_id: str) -> Level:
        """One level by id.

        Raises:
            UnknownTask: there is none of that id.
        """
        if task_id in self.read:
            return self.read[task_id]
        try:
            split, text, moves, where = self.texts[task_id]
        except KeyError:
            raise UnknownTask(
                f"no task {task_id!r} in {self.name} ({self.tier}); see env.unwrapped.task_ids(split)"
            ) from None
        # Only a text by path may be anything but what print_level writes.
        room, start = parse_level(text, where) if self.tier == "path" else read_level(text)
        level = self.read[task_id] = Level(task_id, split, room, start, moves)
        return level


def level_set(name: str, tier: str, levels: Iterable[tuple[str, str, str, str, str]]) -> LevelSet:
    """From (id, split, XSB text, solution, where it stands)."""
    texts: dict[str, tuple[str, str, str, str]] = {}
    by_split: dict[str, list[str]] = {split: [] for split in SPLITS}
    for task_id, split, *rest in levels:
        texts[task_id] = (split, rest[0], rest[1], rest[2])
        by_split[split].append(task_id)
    return LevelSet(name, tier, {split: tuple(ids) for split, ids in by_split.items()}, texts)


def level_to_line(level: Level) -> str:
    """A level as a line of the shipped files."""
    text = "\n".join(level_rows(level.room, level.start))
    return json.dumps(
        {"split": level.split, "level": text, "optimal": len(level.moves), "moves": level.moves}
    )


@lru_cache(maxsize=8)
def load_mini(difficulty: str) -> LevelSet:
    """The shipped levels of a difficulty."""
    path = MINI_FOLDER / f"{difficulty}.jsonl.gz"
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode("ascii").splitlines()]
    counts = dict.fromkeys(SPLITS, 0)
    rows = []
    for number, record in enumerate(records, start=1):
        split = record["split"]
        task_id = f"sokoban-{difficulty}-mini-{split}-{counts[split]:04d}"
        counts[split] += 1
        rows.append((task_id, split, record["level"], record["moves"], f"{path}, line {number}"))
    return level_set(f"Sokoban-{difficulty}", "mini", rows)


def load_path(path: PathLike, option: str = "levels", skip_bad: bool = False) -> LevelSet:
    """Read a public level file, or every ``.txt``, ``.xsb``, ``.sok`` and ``.slc`` file below a folder; forms: ``level_files``, ``slc``.

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
def _read_files(root: Path, files: Stamped, skip_bad: bool) -> LevelSet:
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
                    room, state = parse_level(
                        found.text, where
                    )  # a bad level is named now, not in the middle of a run
                    task_id = f"{'/'.join(parts)}:{number}"
                    rows.append((task_id, split, found.text, "", where))
                    if is_solved(room, state):
                        solved.append(task_id)
    left_out = faults.settle(len(rows), "levels")
    if not rows:
        raise MissingData(
            f"{str(root)!r}: no level in it; levels are rows of # $ . * @ + and spaces (XSB, Boxoban)"
        )
    return replace(level_set(str(root), "path", rows), solved=tuple(solved), left_out=left_out)


def _levels_in(file: Path) -> Iterator[FoundLevel]:
    """What stands in a level file."""
    data = read_bytes(file)
    if is_collection(data):
        return read_collection(data, str(file))
    # Latin-1: the authors' names of many old collections are written in it.
    text = decode(data, file, fallback="latin-1")
    LEVEL_LINES.check(text.count("\n"), file)
    return split_levels(io.StringIO(text, newline=None))
