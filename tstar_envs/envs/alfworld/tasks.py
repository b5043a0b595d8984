"""Tasks of ALFWorld: the shipped scenes, the published games where they are, and any folder with ``game.tw-pddl`` files."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.data.faults import NOTHING_LEFT_OUT, Faults, LeftOut, check_skip_bad
from tstar_envs.data.files import find_files, parse_json, read_text
from tstar_envs.data.home import Published, data_home
from tstar_envs.envs.alfworld.distribution import TASK_TYPES
from tstar_envs.envs.alfworld.game import Game
from tstar_envs.envs.alfworld.houses import House, read_house
from tstar_envs.envs.alfworld.pddl import read_game
from tstar_envs.envs.alfworld.scene import Scene, read_scene, scene_game
from tstar_envs.errors import MissingData
from tstar_envs.stable_random import StableRandom
from tstar_envs.tier import PathLike, Stamped, existing, stamped

# As the field reports it, the test split is ALFWorld's valid_seen; both names are accepted wherever a split is asked for.
SPLITS = ("train", "valid", "test", "valid_unseen")
SPLIT_ALIASES = {"valid_seen": "test"}
DATA = Path(__file__).parent / "data"
GAME_FILE = "game.tw-pddl"
PUBLISHED = "json_2.1.1"
# Of the 3,553 published train games as many are held out as leaves the paper's 3,321.
HELD_OUT, PUBLISHED_TRAIN = 232, 3553
_NAMED_SPLIT = {
    "train": "train",
    "valid": "valid",
    "test": "test",
    "valid_seen": "test",
    "valid_unseen": "valid_unseen",
}
_FOLDER_TYPE = re.compile(rf"(?:^|/)({'|'.join(TASK_TYPES.values())})-[^/]*/")
_UNSOLVABLE = re.compile(r'"solvable"\s*:\s*false')


@dataclass(frozen=True)
class HouseTask:
    """One task.

    Attributes:
        id: unique in its set.
        split: one of ``SPLITS``.
        task_type: ALFRED's name of the type.
        source: a scene, a line of the shipped files, or the path of a ``game.tw-pddl`` file.
        stamp: time and size of that file when the task was found, so that a changed one is read anew.
    """

    id: str
    split: str
    task_type: str
    source: Scene | str | Path
    stamp: tuple[int, int] = (0, 0)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def scene(self) -> Scene | None:
        """The compact scene, None for a game of the public format."""
        if isinstance(self.source, Path):
            return None
        return read_scene(self.source, shipped_houses()) if isinstance(self.source, str) else self.source


@dataclass(frozen=True)
class TaskSet:
    """The tasks of an environment.

    Attributes:
        tier: ``mini`` (shipped), ``full`` (published), ``path`` or ``practice``.
        tasks: task id -> task.
        by_split: split -> task ids in order.
        left_out: games that cannot be used.
    """

    tier: str
    tasks: dict[str, HouseTask]
    by_split: dict[str, tuple[str, ...]]
    left_out: LeftOut = NOTHING_LEFT_OUT

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        return self  # never changed after loading, so copies of an environment share it


def task_set(
    tier: str, tasks: Iterable[HouseTask], variant: str = "all", left_out: LeftOut = NOTHING_LEFT_OUT
) -> TaskSet:
    """A set of tasks; ``variant`` keeps one task type (a key of ``TASK_TYPES``), "all" keeps all."""
    by_id = {task.id: task for task in tasks if variant == "all" or task.task_type == TASK_TYPES[variant]}
    by_split = {split: tuple(task.id for task in by_id.values() if task.split == split) for split in SPLITS}
    return TaskSet(tier, by_id, by_split, left_out)


@lru_cache(maxsize=256)
def load_game(task: HouseTask) -> Game:
    """The game of a task; the latest are remembered.

    Raises:
        BadData: the file of a public game cannot be used.
    """
    scene = task.scene
    return (
        scene_game(scene) if scene is not None else read_game(read_text(str(task.source)), str(task.source))
    )


@lru_cache(maxsize=256)
def load_old_game(task: HouseTask) -> Game:
    """The same, with ``put`` for ``move`` (``Wording.before_0_4``)."""
    game = load_game(task)
    return replace(game, wording=game.wording.before_0_4())


@lru_cache(maxsize=1)
def shipped_houses() -> dict[int, House]:
    """The houses of the mini tier by scene number."""
    text = gzip.decompress((DATA / "houses.txt.gz").read_bytes()).decode()
    return {house.scene: house for house in map(read_house, text.splitlines())}


@lru_cache(maxsize=1)
def _shipped_tasks() -> tuple[HouseTask, ...]:
    tasks = []
    for split in SPLITS:
        text = gzip.decompress((DATA / f"{split}.txt.gz").read_bytes()).decode()
        for number, line in enumerate(text.splitlines()):
            tasks.append(
                HouseTask(f"alfworld-mini-{split}-{number:04d}", split, line.split("\t", 2)[1], line)
            )
    return tuple(tasks)


def published_folders() -> list[Path]:
    """Where the published games are looked for: ``$ALFWORLD_DATA``, ``$TSTAR_DATA/alfworld``, ALFWorld's own cache."""
    own = os.environ.get("ALFWORLD_DATA")
    roots = [*([Path(own)] if own else []), data_home() / "alfworld", Path("~/.cache/alfworld")]
    return [root.expanduser() / PUBLISHED for root in roots]


def _published_folder() -> Path | None:
    return next((folder for folder in published_folders() if (folder / "train").is_dir()), None)


def published_games() -> Published:
    """ALFWorld's published games, which ``auto`` takes when they are there."""
    found = _published_folder()
    there = found if found is not None and _has_games(found) else None
    return Published(
        "ALFWorld's published games", there, tuple(published_folders()), "scripts/fetch_data alfworld"
    )


def load_tasks(variant: str, data: PathLike, skip_bad: bool = False) -> TaskSet:
    """The tasks of an environment.

    Args:
        variant: a key of ``TASK_TYPES``, or "all".
        data: ``mini`` (shipped), ``full`` (published games, see ``published_folders``), ``auto`` (full if it is there, else mini), or
            a folder: all its ``game.tw-pddl`` files are tasks, with their path in the folder as id, and the first folder of
            that path as split where it names one (else test).
        skip_bad: leave games out that cannot be used; ``left_out`` of what comes back says how many and why.

    Raises:
        UnknownOption: an empty path.
        MissingData: the folder, or every game in it, is not there.
        BadData: games that cannot be used; all are named.
    """
    check_skip_bad(skip_bad)
    if data == "mini":
        return _shipped_set(variant)
    if data in ("full", "auto"):
        found = _published_folder()
        if found is not None and (data == "full" or _has_games(found)):
            return _published_set(*_games_in(found), variant, skip_bad)
        if data == "auto":
            return _shipped_set(variant)
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
    return _folder_set(*_games_in(root), variant, skip_bad)


def _has_games(folder: Path) -> bool:
    return next((folder / "train").rglob(GAME_FILE), None) is not None


def _games_in(root: Path) -> tuple[Path, Stamped]:
    """A folder and its game files, in the order of their paths, without those that ALFWorld's own loader passes over by name."""
    names = {
        file.relative_to(root).as_posix(): file
        for file in find_files(root, (GAME_FILE,))
        if file.name == GAME_FILE
    }
    return root, stamped(
        names[name] for name in sorted(names) if "movable" not in name and "Sliced" not in name
    )


@lru_cache(maxsize=8)
def _shipped_set(variant: str) -> TaskSet:
    return task_set("mini", _shipped_tasks(), variant)


@lru_cache(maxsize=16)
def _folder_set(root: Path, files: Stamped, variant: str, skip_bad: bool) -> TaskSet:
    tasks, left_out = _scan(root, files, skip_bad)
    return task_set("path", tasks, variant, left_out)


@lru_cache(maxsize=16)
def _published_set(root: Path, files: Stamped, variant: str, skip_bad: bool) -> TaskSet:
    tasks, left_out = _scan(root, files, skip_bad)
    train = [task for task in tasks if task.split == "train"]
    held_out = set(
        StableRandom("alfworld/held-out").shuffled(train)[: round(len(train) * HELD_OUT / PUBLISHED_TRAIN)]
    )
    divided = [replace(task, split="valid") if task in held_out else task for task in tasks]
    return task_set("full", divided, variant, left_out)


@lru_cache(maxsize=4)
def _scan(root: Path, files: Stamped, skip_bad: bool) -> tuple[tuple[HouseTask, ...], LeftOut]:
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
                HouseTask(
                    name, _split_of(name), named[1] if named else goal.task_type, file, (stamp[0], stamp[1])
                )
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


def task_data(task: HouseTask, feature: str) -> dict[str, Any]:
    """The contents of a task's ``game.tw-pddl`` file, made from its scene where it has none.

    Raises:
        MissingExtra: it has none, and the package ``alfworld`` with domain and grammar is not installed.
    """
    from tstar_envs.envs.alfworld.export import game_data

    scene = task.scene
    if scene is not None:
        return game_data(scene, task.id, feature)
    data: dict[str, Any] = parse_json(read_text(str(task.source)), task.source)
    return data
