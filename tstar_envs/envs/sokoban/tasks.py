"""Sets of levels: the shipped ones, and public XSB or Boxoban files by path."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.choices import SPLITS
from tstar_envs.envs.sokoban.levels import Level, level_rows, parse_level, read_level, split_levels
from tstar_envs.envs.sokoban.rules import is_solved
from tstar_envs.errors import BadData, MissingData, UnknownTask
from tstar_envs.tier import PathLike, Stamped, existing, stamped

MINI_FOLDER = Path(__file__).parent / "data"
LEVEL_SUFFIXES = (".txt", ".xsb", ".sok")


@dataclass(frozen=True, eq=False)
class LevelSet:
    """Levels of one kind; a level is read when it is first asked for.

    Attributes:
        name: for error messages.
        tier: ``mini`` (shipped), ``practice`` or ``path``.
        by_split: task ids of each split.
        texts: task id -> (split, XSB text, solution or "", where it stands).
        read: the levels that were asked for.
    """

    name: str
    tier: str
    by_split: dict[str, tuple[str, ...]]
    texts: dict[str, tuple[str, str, str, str]]
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
            raise UnknownTask(f"no task {task_id!r} in {self.name} ({self.tier}); see env.unwrapped.task_ids(split)") from None
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
    return json.dumps({"split": level.split, "level": text, "optimal": len(level.moves), "moves": level.moves})


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


def load_path(path: PathLike, option: str = "levels") -> LevelSet:
    """Read a public level file, or every ``.txt``, ``.xsb`` and ``.sok`` file below a folder; rows may be run-length encoded.

    The id of a level is its file's path below the folder (for one file its name), a colon, and its number in the file from
    0. Its split is the first part of that path that is ``train``, ``valid`` or ``test`` (as in Boxoban's folders), else ``test``.

    Args:
        path: the file or folder.
        option: what error messages call it.

    Raises:
        UnknownOption: an empty path.
        MissingData: nothing there, or no level in it.
        BadData: a level that cannot be played; file and line are named.
    """
    endings = " or ".join(LEVEL_SUFFIXES)
    root = existing(path, option, f"an XSB or Boxoban text file, or a folder of files that end in {endings}")
    files = sorted(p for p in root.rglob("*") if p.suffix.lower() in LEVEL_SUFFIXES and p.is_file()) if root.is_dir() else [root]
    if not files:
        raise MissingData(f"{option}={os.fspath(path)!r}: no XSB or Boxoban file in this folder, none ends in {endings}")
    return _read_files(root, stamped(files))


@lru_cache(maxsize=4)
def _read_files(root: Path, files: Stamped) -> LevelSet:
    """Read level files."""
    rows = []
    for file, *_ in files:
        parts = file.relative_to(root).parts or (file.name,)
        split = next((part for part in parts if part in SPLITS), "test")
        for number, (line, text) in enumerate(split_levels(_read_text(file).splitlines(), str(file))):
            where = f"{file}, line {line}"
            room, state = parse_level(text, where)  # a bad level is named now, not in the middle of a run
            if is_solved(room, state):
                raise BadData(f"{where}: every box is on a target already, so there is nothing to play; take this level out of the file")
            rows.append((f"{'/'.join(parts)}:{number}", split, text, "", where))
    if not rows:
        raise MissingData(f"{str(root)!r}: no level in it; levels are rows of # $ . * @ + and spaces (XSB, Boxoban)")
    return level_set(str(root), "path", rows)


def _read_text(file: Path) -> str:
    """UTF-8, or else Latin-1, in which the authors' names of many old collections are written."""
    data = file.read_bytes()
    if b"\0" in data:
        raise BadData(f"{file}: not a text file, it holds bytes of value 0")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")
