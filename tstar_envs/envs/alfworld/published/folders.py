"""Where the published games lie, and the tasks of a folder of them."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from tstar_envs.data.faults import Faults, LeftOut
from tstar_envs.data.files import find_files, read_text
from tstar_envs.data.locate import Published, Stamped, data_home, stamped
from tstar_envs.envs.alfworld.published.game_file import read_game
from tstar_envs.envs.alfworld.task import Task
from tstar_envs.envs.alfworld.task_types import TASK_TYPES
from tstar_envs.errors import BadData, MissingData

GAME_FILE = "game.tw-pddl"
PUBLISHED = "json_2.1.1"
_NAMED_SPLIT = {
    "train": "train",
    "valid": "valid",
    "test": "test",
    "valid_seen": "test",
    "valid_unseen": "valid_unseen",
    "valid_train": "valid_train",
}
# Names that mean a split somewhere; of one that is none of ALFWorld's nobody can know which tasks it holds.
_LIKE_A_SPLIT = re.compile(
    r"(?:^|[^a-z])(?:train|valid|validation|val|dev|test|eval|seen|unseen)(?:$|[^a-z])"
)
_FOLDER_TYPE = re.compile(rf"(?:^|/)({'|'.join(TASK_TYPES.values())})-[^/]*/")
_UNSOLVABLE = re.compile(r'"solvable"\s*:\s*false')


def published_folders() -> list[Path]:
    """Where the published games are looked for: ``$ALFWORLD_DATA``, ``$TSTAR_DATA/alfworld``, ALFWorld's own cache."""
    own = os.environ.get("ALFWORLD_DATA")
    roots = [*([Path(own)] if own else []), data_home() / "alfworld", Path("~/.cache/alfworld")]
    return [root.expanduser() / PUBLISHED for root in roots]


def published_folder() -> Path | None:
    """The first of them that holds a game of a split."""
    return next((folder for folder in published_folders() if has_games(folder)), None)


def published_games() -> Published:
    """ALFWorld's published games, which ``auto`` takes when they are there."""
    return Published(
        "ALFWorld's published games",
        published_folder(),
        tuple(published_folders()),
        "scripts/fetch_data alfworld",
        lambda folder: read_tasks(*game_files(folder, splits_only=True), False),
    )


def has_games(folder: Path) -> bool:
    """Whether a folder of published games has one."""
    return any(next((folder / split).rglob(GAME_FILE), None) is not None for split in _NAMED_SPLIT)


def game_files(root: Path, splits_only: bool = False) -> tuple[Path, Stamped]:
    """A folder and its game files, in the order of their paths, without those that ALFWorld's own loader passes over by name.

    Args:
        root: the folder.
        splits_only: pass over what lies in no folder of a split.
    """
    names = {
        file.relative_to(root).as_posix(): file
        for file in find_files(root, (GAME_FILE,))
        if file.name == GAME_FILE and (not splits_only or file.relative_to(root).parts[0] in _NAMED_SPLIT)
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
    divided = any(_split_folder(file.relative_to(root)) in _NAMED_SPLIT for file, *_ in files)
    for file, *stamp in files:
        name = file.relative_to(root).as_posix()
        with faults.collect(file):
            split = _split_of(file.relative_to(root), str(file), divided)
            text = read_text(file)
            if _UNSOLVABLE.search(text):
                continue
            goal = read_game(text, str(file)).goal
            named = _FOLDER_TYPE.search(f"{file.parent.as_posix()}/")
            tasks.append(Task(name, split, named[1] if named else goal.task_type, file, (stamp[0], stamp[1])))
    left_out = faults.settle(len(tasks), "games")
    if not tasks:  # raised here, so that the next look at the folder is a new one
        raise MissingData(
            f"{root}: no {GAME_FILE} file that can be solved in this folder or below it; scripts/fetch_data alfworld fetches the published "
            "games, and data='mini' works without any files"
        )
    return tuple(tasks), left_out


def _split_folder(path: Path) -> str:
    """The folder of a game's path that names its split; where none does, the first, or "" if there is none."""
    named = next((part for part in path.parts[:-1] if part in _NAMED_SPLIT), None)
    parts = [part for part in path.parts[:-1] if not part.startswith("json_")]
    return named or (parts[0] if parts else "")


def _split_of(path: Path, where: str, divided: bool) -> str:
    """The split of a game: what its folder names, and ``test`` in a folder of games that is not divided.

    Raises:
        BadData: the folder's name is no split's, but looks like one or stands beside those of splits.
    """
    folder = _split_folder(path)
    if folder in _NAMED_SPLIT:
        return _NAMED_SPLIT[folder]
    if divided or _LIKE_A_SPLIT.search(folder.lower()):
        named = (
            f"the folder {folder!r:.80} names no split" if folder else "the game lies in no folder of a split"
        )
        raise BadData(
            f"{where}: {named}; known are {', '.join(_NAMED_SPLIT)}. Rename it, or give the "
            "folder itself as data: games in a folder without splits are test tasks"
        )
    return "test"
