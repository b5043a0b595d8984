"""Task sets of ALFWorld: the shipped games, the published ones where they are, or a folder with ``game.tw-pddl`` files."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tstar_envs.data.faults import check_skip_bad
from tstar_envs.data.files import read_text
from tstar_envs.data.locate import PathLike, Stamped, choose_tier, existing, with_mini_named
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.game.scene import scene_game
from tstar_envs.envs.alfworld.published.folders import (
    GAME_FILE,
    game_files,
    published_folder,
    published_folders,
    published_games,
    read_tasks,
)
from tstar_envs.envs.alfworld.published.game_file import read_game
from tstar_envs.envs.alfworld.shipped import scene_of, shipped_tasks
from tstar_envs.envs.alfworld.task import Task, task_set
from tstar_envs.errors import MissingData
from tstar_envs.stable_random import StableRandom

# Of the 3,553 published train games as many are held out as leaves the paper's 3,321.
HELD_OUT, PUBLISHED_TRAIN = 232, 3553


@lru_cache(maxsize=256)
def load_game(task: Task) -> Game:
    """The game of a task; the latest are remembered.

    Raises:
        BadData: the file of a public game cannot be used.
    """
    scene = scene_of(task)
    return (
        scene_game(scene) if scene is not None else read_game(read_text(str(task.source)), str(task.source))
    )


@lru_cache(maxsize=256)
def load_game_with_put(task: Task) -> Game:
    """Load a game as ``load_game`` does, with ``put`` for ``move`` (``Wording.before_0_4``)."""
    game = load_game(task)
    return replace(game, wording=game.wording.before_0_4())


def load_tasks(variant: str, data: PathLike, skip_bad: bool = False) -> LoadedTasks[Task]:
    """The tasks of an environment.

    Args:
        variant: a key of ``TASK_TYPES``, or "all".
        data: ``mini`` (shipped), ``full`` (published games, see ``published_folders``), ``auto`` (full if it is there, else mini), or
            a folder: all its ``game.tw-pddl`` files are tasks, with their path in the folder as id, and the first folder of
            that path as split where it names one; where no folder names one, all are test tasks.
        skip_bad: leave games out that cannot be used; ``left_out`` of what comes back says how many and why.

    Raises:
        UnknownOption: an empty path.
        MissingData: the folder, or every game in it, is not there.
        BadData: games that cannot be used; all are named.
    """
    check_skip_bad(skip_bad)
    tier = choose_tier(data, lambda: published_games().found is not None)
    if tier == "mini":
        return _shipped_set(variant)
    if tier == "full":
        found = published_folder()
        if found is not None:
            with with_mini_named(tier):
                return _published_set(*game_files(found, splits_only=True), variant, skip_bad)
        looked = ", ".join(map(str, published_folders()))
        raise MissingData(
            f"data='full': the published games are in none of {looked}; fetch them with scripts/fetch_data alfworld, or set "
            "$ALFWORLD_DATA to the folder that holds json_2.1.1; data='mini' works without any files"
        )
    root = existing(data, "data", f"a folder with {GAME_FILE} files")
    if not root.is_dir():
        raise MissingData(
            f"data={os.fspath(data)!r}: a file, not a folder; give a folder with {GAME_FILE} files, or mini, full or auto"
        )
    return _folder_set(*game_files(root), variant, skip_bad)


@lru_cache(maxsize=8)
def _shipped_set(variant: str) -> LoadedTasks[Task]:
    return task_set("mini", shipped_tasks(), variant)


@lru_cache(maxsize=16)
def _folder_set(root: Path, files: Stamped, variant: str, skip_bad: bool) -> LoadedTasks[Task]:
    tasks, left_out = read_tasks(root, files, skip_bad)
    return task_set("path", tasks, variant, left_out)


@lru_cache(maxsize=16)
def _published_set(root: Path, files: Stamped, variant: str, skip_bad: bool) -> LoadedTasks[Task]:
    tasks, left_out = read_tasks(root, files, skip_bad)
    train = [task for task in tasks if task.split == "train"]
    held_out = set(
        StableRandom("alfworld/held-out").shuffled(train)[: round(len(train) * HELD_OUT / PUBLISHED_TRAIN)]
    )
    divided = [replace(task, split="valid") if task in held_out else task for task in tasks]
    return task_set("full", divided, variant, left_out)
