"""Where the published games lie, and the tasks of a folder of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tstar_envs.data.faults import Faults, LeftOut
from tstar_envs.data.files import find_files, read_text
from tstar_envs.data.locate import Published, Stamped, data_home, stamped
from tstar_envs.envs.alfworld.published.game_file import read_game
from tstar_envs.envs.alfworld.task import Task
from tstar_envs.envs.alfworld.task_types import TASK_TYPES
from tstar_envs.errors import MissingData

GAME_FILE = "game.tw-pddl"
PUBLISHED = "json_2.1.1"
_NAMED_SPLIT = {
    "train": "train",
    "valid": "valid",
    "test": "test",
    "valid_seen": "test",
    "valid_unseen": "valid_unseen",
}
_FOLDER_TYPE = re.compile(rf"(?:^|/)({'|'.join(TASK_TYPES.values())})-[^/]*/")
_UNSOLVABLE = re.compile(r'"solvable"\s*:\s*false')


def published_folders() -> list[Path]:
    """Where the published games are looked for: ``$ALFWORLD_DATA``, ``$TSTAR_DATA/alfworld``, ALFWorld's own cache."""
    own = os.environ.get("ALFWORLD_DATA")
    roots = [*([Path(own)] if own else []), data_home() / "alfworld", Path("~/.cache/alfworld")]
    return [root.expanduser() / PUBLISHED for root in roots]


def published_folder() -> Path | None:
    """The first of them that is there."""
    return next((folder for folder in published_folders() if (folder / "train").is_dir()), None)


def published_games() -> Published:
    """ALFWorld's published games, which ``auto`` takes when they are there."""
    found = published_folder()
    there = found if found is not None and has_games(found) else None
    return Published(
        "ALFWorld's published games", there, tuple(published_folders()), "scripts/fetch_data alfworld"
    )


def has_games(folder: Path) -> bool:
    """Whether a folder of published games has one to train on."""
    return next((folder / "train").rglob(GAME_FILE), None) is not None


def game_files(root: Path) -> tuple[Path, Stamped]:
    """A folder and its game files, in the order of their paths, without those that ALFWorld's own loader passes over by name."""
    names = {
        file.relative_to(root).as_posix(): file
        for file in find_files(root, (GAME_FILE,))
        if file.name == GAME_FILE
    }
    return root, stamped(
        names[name] for name in sorted(names) if "movable" not in name and "Sliced" not in name
    )


@lru_cache(maxsize=4)
def read_tasks(root: Path, files: Stamped, skip_bad: bool) -> tuple[tuple[Task, ...], LeftOut]:
    """Every game that ALFWorld's own loader would play; each is read now, so that a bad one is named before a run and not within it.

    Raises:
        MissingData: there is none.
        BadData: games that cannot be used.
    """
    tasks = []
    faults = Faults(skip_bad)
    for file, *stamp in files:
        name = file.relative_to(root).as_posix()
        with faults.collect(file):
            text = read_text(file)
            if _UNSOLVABLE.search(text):
                continue
            goal = read_game(text, str(file)).goal
            named = _FOLDER_TYPE.search(f"{file.parent.as_posix()}/")
            tasks.append(
                Task(name, _split_of(name), named[1] if named else goal.task_type, file, (stamp[0], stamp[1]))
            )
    left_out = faults.settle(len(tasks), "games")
    if not tasks:  # raised here, so that the next look at the folder is a new one
        raise MissingData(
            f"{root}: no {GAME_FILE} file that can be solved in this folder or below it; scripts/fetch_data alfworld fetches the published "
            "games, and data='mini' works without any files"
        )
    return tuple(tasks), left_out


def _split_of(name: str) -> str:
    parts: Sequence[str] = name.split("/")[:-1]
    first = parts[1] if len(parts) > 1 and parts[0].startswith("json_") else parts[0] if parts else ""
    return _NAMED_SPLIT.get(first, "test")
