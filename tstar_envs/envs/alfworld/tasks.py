"""Tasks of ALFWorld: the shipped scenes, the published games where they are, and any folder with ``game.tw-pddl`` files."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.envs.alfworld.distribution import TASK_TYPES
from tstar_envs.envs.alfworld.game import Game
from tstar_envs.envs.alfworld.houses import House, read_house
from tstar_envs.envs.alfworld.pddl import read_game
from tstar_envs.envs.alfworld.scene import Scene, read_scene, scene_game
from tstar_envs.errors import BadData, MissingData
from tstar_envs.stable_random import StableRandom

# As the field reports it, the test split is ALFWorld's valid_seen; both names are accepted wherever a split is asked for.
SPLITS = ("train", "valid", "test", "valid_unseen")
SPLIT_ALIASES = {"valid_seen": "test"}
DATA = Path(__file__).parent / "data"
GAME_FILE = "game.tw-pddl"
PUBLISHED = "json_2.1.1"
# Of the 3,553 published train games as many are held out as leaves the paper's 3,321.
HELD_OUT, PUBLISHED_TRAIN = 232, 3553
_NAMED_SPLIT = {"train": "train", "valid": "valid", "test": "test", "valid_seen": "test", "valid_unseen": "valid_unseen"}
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
    """

    id: str
    split: str
    task_type: str
    source: Scene | str | Path

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
    """

    tier: str
    tasks: dict[str, HouseTask]
    by_split: dict[str, tuple[str, ...]]

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        return self  # never changed after loading, so copies of an environment share it


def task_set(tier: str, tasks: Iterable[HouseTask], variant: str = "all") -> TaskSet:
    """A set of tasks; ``variant`` keeps one task type (a key of ``TASK_TYPES``), "all" keeps all."""
    by_id = {task.id: task for task in tasks if variant == "all" or task.task_type == TASK_TYPES[variant]}
    by_split = {split: tuple(task.id for task in by_id.values() if task.split == split) for split in SPLITS}
    return TaskSet(tier, by_id, by_split)


@lru_cache(maxsize=256)
def load_game(task: HouseTask) -> Game:
    """The game of a task; the latest are remembered.

    Raises:
        BadData: the file of a public game cannot be used.
    """
    scene = task.scene
    return scene_game(scene) if scene is not None else read_game(read_text(task), str(task.source))


def read_text(task: HouseTask) -> str:
    """The text of a public game's file.

    Raises:
        BadData: it cannot be read, or is not in UTF-8.
    """
    try:
        return Path(str(task.source)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{task.source}: cannot be read ({error})") from error


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
            tasks.append(HouseTask(f"alfworld-mini-{split}-{number:04d}", split, line.split("\t", 2)[1], line))
    return tuple(tasks)


def published_folders() -> list[Path]:
    """Where the published games are looked for: ``$ALFWORLD_DATA``, ``$TSTAR_DATA/alfworld``, ALFWorld's own cache."""
    own = os.environ.get("ALFWORLD_DATA")
    roots = [*([Path(own)] if own else []), Path(os.environ.get("TSTAR_DATA", "~/.cache/tstar")) / "alfworld", Path("~/.cache/alfworld")]
    return [root.expanduser() / PUBLISHED for root in roots]


def load_tasks(variant: str, data: str) -> TaskSet:
    """The tasks of an environment.

    Args:
        variant: a key of ``TASK_TYPES``, or "all".
        data: ``mini`` (shipped), ``full`` (published games, see ``published_folders``), ``auto`` (full if it is there, else mini), or
            a folder: all its ``game.tw-pddl`` files are tasks, with their path in the folder as id, and the first folder of
            that path as split where it names one (else test).

    Raises:
        MissingData: the folder, or every game in it, is not there.
        BadData: a game cannot be used.
    """
    if data == "mini":
        return _shipped_set(variant)
    if data in ("full", "auto"):
        found = next((folder for folder in published_folders() if (folder / "train").is_dir()), None)
        if found is not None and (data == "full" or _has_games(found)):
            return _published_set(str(found), variant)
        if data == "auto":
            return _shipped_set(variant)
        looked = ", ".join(map(str, published_folders()))
        raise MissingData(
            f"data='full': the published games are in none of {looked}; fetch them with scripts/fetch_data alfworld, or set "
            "$ALFWORLD_DATA to the folder that holds json_2.1.1; data='mini' works without any files"
        )
    return _folder_set(data, variant)


def _has_games(folder: Path) -> bool:
    return next((folder / "train").rglob(GAME_FILE), None) is not None


@lru_cache(maxsize=8)
def _shipped_set(variant: str) -> TaskSet:
    return task_set("mini", _shipped_tasks(), variant)


@lru_cache(maxsize=16)
def _folder_set(folder: str, variant: str) -> TaskSet:
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise MissingData(f"data={folder!r}: there is no such folder; give one with {GAME_FILE} files, or mini, full or auto")
    return task_set("path", _scan(root), variant)


@lru_cache(maxsize=16)
def _published_set(folder: str, variant: str) -> TaskSet:
    tasks = _scan(Path(folder))
    train = [task for task in tasks if task.split == "train"]
    held_out = set(StableRandom("alfworld/held-out").shuffled(train)[: round(len(train) * HELD_OUT / PUBLISHED_TRAIN)])
    divided = [HouseTask(task.id, "valid", task.task_type, task.source) if task in held_out else task for task in tasks]
    return task_set("full", divided, variant)


@lru_cache(maxsize=4)
def _scan(root: Path) -> tuple[HouseTask, ...]:
    """Every game below a folder that ALFWorld's own loader would play, in the order of their paths.

    Raises:
        MissingData: there is none.
    """
    tasks = []
    for file in sorted(root.rglob(GAME_FILE), key=lambda path: path.relative_to(root).as_posix()):
        name = file.relative_to(root).as_posix()
        if "movable" in name or "Sliced" in name:  # tasks that ALFWorld passes over
            continue
        text = read_text(HouseTask(name, "test", "", file))
        if _UNSOLVABLE.search(text):
            continue
        named = _FOLDER_TYPE.search(f"{file.parent.as_posix()}/")
        task_type = named[1] if named else read_game(text, str(file)).goal.task_type
        tasks.append(HouseTask(name, _split_of(name), task_type, file))
    if not tasks:  # raised here, so that the next look at the folder is a new one
        raise MissingData(
            f"{root}: no {GAME_FILE} file that can be solved in this folder or below it; scripts/fetch_data alfworld fetches the published "
            "games, and data='mini' works without any files"
        )
    return tuple(tasks)


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
    data: dict[str, Any] = json.loads(read_text(task))
    return data
