"""Task sets: shipped games, published games, or a folder of game files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tstar_envs.data.faults import NOTHING_LEFT_OUT, Faults, LeftOut, check_skip_bad
from tstar_envs.data.files import find_files, read_text
from tstar_envs.data.locate import (
    PathLike,
    Published,
    Stamped,
    choose_tier,
    data_home,
    existing,
    stamped,
    with_mini_named,
)
from tstar_envs.data.shipped import read_shipped
from tstar_envs.data.tasks import LoadedTasks, ids_by_split
from tstar_envs.envs.alfworld.game import Game
from tstar_envs.envs.alfworld.rooms import TASK_TYPES, House, Scene, read_house, read_scene, scene_game
from tstar_envs.errors import BadData, MissingData
from tstar_envs.utils import StableRandom

# As in the literature, the test split is ALFWorld's valid_seen; both names are accepted.
SHIPPED_SPLITS = ("train", "valid", "test", "valid_unseen")
# ``valid_train`` is a folder of the download with 200 games out of train, not used for testing.
SPLITS = (*SHIPPED_SPLITS, "valid_train")
SPLIT_ALIASES = {"valid_seen": "test"}


@dataclass(frozen=True)
class Task:
    """One household task.

    Attributes:
        id: unique in its set.
        split: one of ``SPLITS``.
        task_type: ALFRED's name of the type.
        source: a scene, a line of the shipped files, or the path of a ``game.tw-pddl`` file.
        stamp: modification time and size of that file, so that a changed file is reread.
    """

    id: str
    split: str
    task_type: str
    source: Scene | str | Path
    stamp: tuple[int, int] = (0, 0)

    def __hash__(self) -> int:
        return hash(self.id)


def task_set(
    tier: str, tasks: Iterable[Task], variant: str = "all", left_out: LeftOut = NOTHING_LEFT_OUT
) -> LoadedTasks[Task]:
    """Create a set of tasks.

    ``variant`` selects a task type (a key of ``TASK_TYPES``), "all" keeps all.
    Its splits are the shipped ones, and ``valid_train`` if it has tasks.
    """
    tasks = tuple(tasks)
    further = [split for split in SPLITS[len(SHIPPED_SPLITS) :] if any(task.split == split for task in tasks)]
    by_id = {task.id: task for task in tasks if variant == "all" or task.task_type == TASK_TYPES[variant]}
    by_split = ids_by_split(((task.id, task.split) for task in by_id.values()), (*SHIPPED_SPLITS, *further))
    name = "ALFWorld" if variant == "all" else f"ALFWorld-{variant}"
    return LoadedTasks(name, tier, by_id, by_split, left_out=left_out)


class LoadedTask(NamedTuple):
    """Task with its game, loaded when the task is chosen."""

    task: Task
    game: Game


DATA = Path(__file__).parent / "data"


@lru_cache(maxsize=1)
def shipped_houses() -> dict[int, House]:
    """Load the houses of the mini tier by scene number."""
    return {house.scene: house for house in map(read_house, read_shipped(DATA / "houses.txt.gz"))}


@lru_cache(maxsize=1)
def shipped_tasks() -> tuple[Task, ...]:
    """Load the tasks of the mini tier, in the order of the splits."""
    tasks = []
    for split in SHIPPED_SPLITS:
        for number, line in enumerate(read_shipped(DATA / f"{split}.txt.gz")):
            tasks.append(Task(f"alfworld-mini-{split}-{number:04d}", split, line.split("\t", 2)[1], line))
    return tuple(tasks)


def scene_of(task: Task) -> Scene | None:
    """Get the compact scene of a task; None for a game in the published format."""
    if isinstance(task.source, Path):
        return None
    return read_scene(task.source, shipped_houses()) if isinstance(task.source, str) else task.source


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
# Common split names; one that ALFWorld does not use is ambiguous.
_LIKE_A_SPLIT = re.compile(
    r"(?:^|[^a-z])(?:train|valid|validation|val|dev|test|eval|seen|unseen)(?:$|[^a-z])"
)
_FOLDER_TYPE = re.compile(rf"(?:^|/)({'|'.join(TASK_TYPES.values())})-[^/]*/")
_UNSOLVABLE = re.compile(r'"solvable"\s*:\s*false')


def published_folders() -> list[Path]:
    """List the search folders of the published games: ``$ALFWORLD_DATA``, ``$TSTAR_DATA/alfworld``, ALFWorld's cache."""
    own = os.environ.get("ALFWORLD_DATA")
    roots = [*([Path(own)] if own else []), data_home() / "alfworld", Path("~/.cache/alfworld")]
    return [root.expanduser() / PUBLISHED for root in roots]


def published_folder() -> Path | None:
    """Find the first search folder with a game of a split."""
    return next((folder for folder in published_folders() if has_games(folder)), None)


def published_games() -> Published:
    """Describe ALFWorld's published games; ``auto`` uses them if they exist."""
    return Published(
        "ALFWorld's published games",
        published_folder(),
        tuple(published_folders()),
        "scripts/fetch_data alfworld",
        lambda folder: read_tasks(*game_files(folder, splits_only=True), False),
    )


def has_games(folder: Path) -> bool:
    """Check whether a folder has a published game."""
    return any(next((folder / split).rglob(GAME_FILE), None) is not None for split in _NAMED_SPLIT)


def game_files(root: Path, splits_only: bool = False) -> tuple[Path, Stamped]:
    """List the game files of a folder by path, without those that ALFWorld's loader skips by name.

    Args:
        root: the folder.
        splits_only: skip files outside the folders of splits.
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
    """Read every game that ALFWorld's loader would use.

    All are read now, so that bad ones are reported before a run.

    Raises:
        MissingData: there is no game.
        BadData: some games are unusable.
    """
    from tstar_envs.envs.alfworld.published import read_game  # lazy: shipped games do not need it

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
    if not tasks:  # raised here, so that the result is not cached
        raise MissingData(
            f"{root}: no {GAME_FILE} file that can be solved in this folder or below it; scripts/fetch_data alfworld fetches the published "
            "games, and data='mini' works without any files"
        )
    return tuple(tasks), left_out


def _split_folder(path: Path) -> str:
    """Find the folder of a game's path that names its split.

    Else the first folder, or "".
    """
    named = next((part for part in path.parts[:-1] if part in _NAMED_SPLIT), None)
    parts = [part for part in path.parts[:-1] if not part.startswith("json_")]
    return named or (parts[0] if parts else "")


def _split_of(path: Path, where: str, divided: bool) -> str:
    """Get the split of a game from its folder.

    ``test`` if the games are not divided into splits.

    Raises:
        BadData: the folder's name is not a split, but looks like one or is next to folders of splits.
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


# Held out of the 3,553 published train games, which leaves the paper's 3,321.
HELD_OUT, PUBLISHED_TRAIN = 232, 3553


@lru_cache(maxsize=256)
def load_game(task: Task) -> Game:
    """Load the game of a task; recent games are cached.

    Raises:
        BadData: the file of a published game is unusable.
    """
    scene = scene_of(task)
    if scene is not None:
        return scene_game(scene)
    from tstar_envs.envs.alfworld.published import read_game  # lazy: shipped games do not need it

    return read_game(read_text(str(task.source)), str(task.source))


@lru_cache(maxsize=256)
def load_game_with_put(task: Task) -> Game:
    """Load a game with ``put`` instead of ``move`` (``Wording.before_0_4``)."""
    game = load_game(task)
    return replace(game, wording=game.wording.before_0_4())


def load_tasks(variant: str, data: PathLike, skip_bad: bool = False) -> LoadedTasks[Task]:
    """Load the tasks of an environment.

    >>> tasks = load_tasks("pick", "mini")

    Args:
        variant: a key of ``TASK_TYPES``, or "all".
        data: ``mini`` (shipped), ``full`` (published games, see ``published_folders``), ``auto`` (full if it exists, else mini), or
            a folder. All ``game.tw-pddl`` files of a folder are tasks, with the path in the folder as id. The first folder of
            that path is the split if it names one; if no folder names a split, all are test tasks.
        skip_bad: skip unusable games; ``left_out`` of the result tells how many and why.

    Raises:
        UnknownOption: the path is empty.
        MissingData: the folder is missing or has no game.
        BadData: some games are unusable; all are listed.
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
