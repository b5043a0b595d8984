"""Tasks from PDDL problem files, by path."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tstar_envs.choices import SPLITS
from tstar_envs.data.faults import Faults, check_skip_bad
from tstar_envs.data.files import find_files, read_text
from tstar_envs.data.limits import PROBLEM_BYTES
from tstar_envs.data.locate import PathLike, Stamped, existing, stamped
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.blocksworld.pddl.reader import read_problem
from tstar_envs.envs.blocksworld.pddl.sections import is_domain
from tstar_envs.envs.blocksworld.task import Task
from tstar_envs.envs.blocksworld.tasks import task_set
from tstar_envs.errors import MissingData


def load_path(path: PathLike, option: str = "problems", skip_bad: bool = False) -> LoadedTasks[Task]:
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
    files = [root]
    if root.is_dir():
        files = sorted(find_files(root, (".pddl",)), key=lambda file: file.relative_to(root).as_posix())
    return _read_files(root, stamped(files), skip_bad)


@lru_cache(maxsize=16)
def _read_files(root: Path, files: Stamped, skip_bad: bool) -> LoadedTasks[Task]:
    """Read problem files."""
    whole_folder = root.is_dir()
    tasks = []
    faults = Faults(skip_bad)
    for file, *_ in files:
        with faults.collect(file):
            text = read_text(file, PROBLEM_BYTES, fallback="latin-1")  # names of authors in comments
            if whole_folder and is_domain(text):
                continue
            problem, _ = read_problem(text, str(file))
            name = file.relative_to(root).as_posix() if whole_folder else file.name
            first = name.partition("/")[0]
            tasks.append(Task(name, first if first in SPLITS else "test", problem))
    left_out = faults.settle(len(tasks), "problems")
    if not tasks:
        raise MissingData(f"{str(root)!r}: no *.pddl problem in this folder")
    solved = tuple(task.id for task in tasks if task.problem.goal.holds(task.problem.start))
    return replace(task_set("path", tasks), solved=solved, left_out=left_out)
