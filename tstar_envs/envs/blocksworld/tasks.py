"""Tasks of Blocksworld: the shipped ones, and problems in PDDL by path."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import NOTHING_LEFT_OUT, Faults, LeftOut, check_skip_bad
from tstar_envs.data.files import find_files, read_text
from tstar_envs.data.limits import PROBLEM_BYTES
from tstar_envs.envs.blocksworld import pddl
from tstar_envs.envs.blocksworld.notation import read_problem
from tstar_envs.envs.blocksworld.problem import Problem
from tstar_envs.errors import MissingData
from tstar_envs.tier import PathLike, Stamped, existing, stamped

VARIANTS = ("stack", "unstack")
DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class BlocksTask:
    """One task.

    Attributes:
        id: unique in its set.
        split: train, valid or test.
        problem: start and goal.
        optimal_length: operators of a shortest plan, None where it is not stored.
    """

    id: str
    split: str
    problem: Problem
    optimal_length: int | None = None

    def __hash__(self) -> int:
        return hash(
            self.id
        )  # of all its parts it would cost more than a step, and a board is looked up in every reset


@dataclass(frozen=True)
class TaskSet:
    """The tasks of an environment.

    Attributes:
        tier: ``mini`` (shipped), ``practice`` or ``path``.
        tasks: task id -> task.
        by_split: split -> task ids in order.
        solved: task ids of problems whose goal holds at the start.
        left_out: what could not be used.
    """

    tier: str
    tasks: Mapping[str, BlocksTask]
    by_split: dict[str, tuple[str, ...]]
    solved: tuple[str, ...] = ()
    left_out: LeftOut = NOTHING_LEFT_OUT

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        return self  # never changed after loading, so copies of an environment share it


class ShippedTasks(Mapping[str, BlocksTask]):
    """Tasks that are read from their lines when they are first asked for.

    A few episodes need a few tasks; all of them would be a hundred thousand objects for the garbage collector to walk over, which
    takes as long as ten thousand steps.

    Args:
        lines: task id -> its split and its line (``task_line``).
    """

    def __init__(self, lines: dict[str, tuple[str, str]]) -> None:
        self._lines = lines
        self._read: dict[str, BlocksTask] = {}

    def __getitem__(self, task_id: str) -> BlocksTask:
        found = self._read.get(task_id)
        if found is None:
            split, line = self._lines[task_id]
            length, start, goal = line.split("\t")
            found = self._read[task_id] = BlocksTask(task_id, split, read_problem(start, goal), int(length))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def task_set(tier: str, tasks: Iterable[BlocksTask]) -> TaskSet:
    """A set of tasks in memory."""
    by_id = {task.id: task for task in tasks}
    by_split = {split: tuple(task.id for task in by_id.values() if task.split == split) for split in SPLITS}
    return TaskSet(tier, by_id, by_split)


def task_line(length: int, start: str, goal: str) -> str:
    """A task as a line of the shipped files: optimal length, start and goal in compact notation, separated by tabs."""
    return f"{length}\t{start}\t{goal}\n"


def shipped_file(variant: str, split: str) -> str:
    """Name of a shipped file, without ``.gz``."""
    return f"{variant}.{split}.txt"


@lru_cache(maxsize=len(VARIANTS))
def load_shipped(variant: str) -> TaskSet:
    """The shipped tasks of a variant."""
    lines: dict[str, tuple[str, str]] = {}
    by_split: dict[str, tuple[str, ...]] = {}
    for split in SPLITS:
        text = gzip.decompress((DATA / f"{shipped_file(variant, split)}.gz").read_bytes()).decode()
        of_split = {
            f"blocksworld-{variant}-mini-{split}-{number:04d}": (split, line)
            for number, line in enumerate(text.splitlines())
        }
        by_split[split] = tuple(of_split)
        lines |= of_split
    return TaskSet("mini", ShippedTasks(lines), by_split)


def load_path(path: PathLike, option: str = "problems", skip_bad: bool = False) -> TaskSet:
    """Problems in PDDL by path.

    Args:
        path: a problem file, or a folder whose ``*.pddl`` files, at any depth, are problems (domain files are passed over). The
            task id is the file's name, or its path in the folder with ``/``; the split is the first folder of that path
            where it is train, valid or test, else test.
        option: what error messages call the path.
        skip_bad: leave files out that are no such problem; ``left_out`` of what comes back says how many and why.

    Raises:
        MissingData: there is no such file or folder, or no problem in it.
        BadData: files that are no such problem; all are named.
    """
    check_skip_bad(skip_bad)
    root = existing(path, option, "a PDDL problem file or a folder of them")
    files = (
        sorted(find_files(root, (".pddl",)), key=lambda file: file.relative_to(root).as_posix())
        if root.is_dir()
        else [root]
    )
    return _read_files(root, stamped(files), skip_bad)


@lru_cache(maxsize=16)
def _read_files(root: Path, files: Stamped, skip_bad: bool) -> TaskSet:
    """Read problem files."""
    whole_folder = root.is_dir()
    tasks = []
    faults = Faults(skip_bad)
    for file, *_ in files:
        with faults.collect(file):
            text = read_text(file, PROBLEM_BYTES, fallback="latin-1")  # names of authors in comments
            if whole_folder and pddl.is_domain(text):
                continue
            problem, _ = pddl.read_problem(text, str(file))
            name = file.relative_to(root).as_posix() if whole_folder else file.name
            first = name.partition("/")[0]
            tasks.append(BlocksTask(name, first if first in SPLITS else "test", problem))
    left_out = faults.settle(len(tasks), "problems")
    if not tasks:
        raise MissingData(f"{str(root)!r}: no *.pddl problem in this folder")
    solved = tuple(task.id for task in tasks if task.problem.goal.holds(task.problem.start))
    return replace(task_set("path", tasks), solved=solved, left_out=left_out)
