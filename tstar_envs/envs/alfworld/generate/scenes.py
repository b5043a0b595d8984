"""Scenes drawn by the distribution of the published games, and the shipped files made of them."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from tstar_envs.data.shipped import write_shipped
from tstar_envs.envs.alfworld.generate.distribution import TaskParameters, load
from tstar_envs.envs.alfworld.generate.houses import SCENES, UNSEEN, draw_house
from tstar_envs.envs.alfworld.rooms import (
    LOOK,
    OPENABLE,
    PICK,
    PICK_TWO,
    TASK_TYPES,
    House,
    ObjectKind,
    Scene,
    object_kinds,
    write_house,
    write_scene,
)
from tstar_envs.utils import StableRandom

SEED = 20260101
# Of how many rooms that can have a kind of object a game has it, how many copies there are, and how much likelier things lie open.
_PRESENT = 0.85
_COPIES = (1, 1, 1, 2, 2, 2, 2, 3, 3, 3)
_OPEN_WEIGHT = 3


def draw_houses(seed: int = SEED) -> dict[int, House]:
    """Draw every room."""
    return {scene: draw_house(scene, seed) for scenes in SCENES.values() for scene in scenes}


def possible(task: str, parameters: TaskParameters, house: House) -> bool:
    """Whether a house has what a game needs."""
    if house.room != parameters.room:
        return False
    if task == LOOK:
        return house.lamps > 0 and bool(_spots(object_kinds()[parameters.object], house))
    if not house.of_kind(parameters.receptacle):
        return False
    return any(
        house.receptacles[spot].kind != parameters.receptacle
        for spot in _spots(object_kinds()[parameters.object], house)
    )


def _spots(kind: ObjectKind, house: House) -> list[int]:
    """Where an object of a kind can be, places in the open several times."""
    return [
        number
        for number, receptacle in enumerate(house.receptacles)
        if receptacle.kind in kind.places
        for _ in range(1 if receptacle.kind in OPENABLE else _OPEN_WEIGHT)
    ]


class SceneMaker:
    """Draws games in given houses.

    Args:
        houses: to draw from.
    """

    def __init__(self, houses: Sequence[House]) -> None:
        self._choices: dict[
            str, tuple[list[TaskParameters], list[int], dict[TaskParameters, list[House]]]
        ] = {}
        for task in TASK_TYPES.values():
            fitting = {
                parameters: [house for house in houses if possible(task, parameters, house)]
                for parameters, _ in load()[task]
            }
            choices = [(parameters, count) for parameters, count in load()[task] if fitting[parameters]]
            self._choices[task] = (
                [parameters for parameters, _ in choices],
                list(accumulate(count for _, count in choices)),
                fitting,
            )
        self._spots: dict[tuple[int, str], list[int]] = {}

    def draw(self, task: str, rng: StableRandom) -> Scene:
        """A game of a task type: its parameters after the real distribution, its house uniformly among those that can have it."""
        choices, sums, fitting = self._choices[task]
        parameters = choices[bisect(sums, rng.below(sums[-1]))]
        house = rng.choice(fitting[parameters])
        contents: list[list[str]] = [[] for _ in house.receptacles]
        for kind in object_kinds().values():
            spots = self._spots_of(kind, house)
            wanted = kind.name == parameters.object
            if wanted and task in (PICK, PICK_TWO):
                spots = [spot for spot in spots if house.receptacles[spot].kind != parameters.receptacle]
            elif not wanted and not (spots and rng.chance(_PRESENT * kind.rooms.get(house.room, 0.0))):
                continue
            copies = 1 if kind.fixed else rng.choice(_COPIES)
            for _ in range(max(copies, 2) if wanted and task == PICK_TWO else copies):
                contents[rng.choice(spots)].append(kind.name)
        lamp_spots = self._spots_of(object_kinds()["DeskLamp"], house) or [
            number for number, receptacle in enumerate(house.receptacles) if receptacle.kind not in OPENABLE
        ]
        for _ in range(house.lamps):
            contents[rng.choice(lamp_spots)].append("DeskLamp")
        return Scene(
            house,
            task,
            parameters.object,
            parameters.receptacle,
            rng.below(2),
            tuple(tuple(inside) for inside in contents),
        )

    def _spots_of(self, kind: ObjectKind, house: House) -> list[int]:
        key = house.scene, kind.name
        if key not in self._spots:
            self._spots[key] = _spots(kind, house)
        return self._spots[key]


@lru_cache(maxsize=2)
def maker_for(unseen: bool, seed: int = SEED) -> SceneMaker:
    """Games in the four unseen rooms, or in all others."""
    return SceneMaker([house for house in draw_houses(seed).values() if (house.scene in UNSEEN) == unseen])


def fresh_scenes(
    seed: int | str, tasks: Sequence[str] = tuple(TASK_TYPES.values()), unseen: bool = False
) -> Iterator[Scene]:
    """Games without end, the task types in turn.

    Args:
        seed: the same seed gives the same games.
        tasks: ALFRED's names of the task types.
        unseen: in the four unseen rooms instead of the training rooms.
    """
    rng, maker = StableRandom(f"alfworld/fresh/{seed}"), maker_for(unseen)
    while True:
        for task in tasks:
            yield maker.draw(task, rng)


# Split -> games of each task type, in the order of TASK_TYPES; the published 3,553 train games are divided into train and valid.
SIZES = {
    "train": (738, 288, 608, 429, 498, 760),
    "valid": (52, 20, 42, 30, 35, 53),
    "test": (35, 13, 27, 16, 25, 24),
    "valid_unseen": (24, 18, 31, 23, 21, 17),
}


def build(seed: int = SEED) -> dict[str, bytes]:
    """The shipped files: name (without ``.gz``) -> bytes. No game occurs twice."""
    files = {"houses.txt": "".join(map(write_house, draw_houses(seed).values())).encode()}
    seen: set[str] = set()
    for split, sizes in SIZES.items():
        rng, maker = StableRandom(f"alfworld/{seed}/{split}"), maker_for(split == "valid_unseen", seed)
        lines: list[str] = []
        for task, size in zip(TASK_TYPES.values(), sizes, strict=True):
            wanted = len(lines) + size
            while len(lines) < wanted:
                line = write_scene(maker.draw(task, rng))
                if line not in seen:
                    seen.add(line)
                    lines.append(line)
        files[f"{split}.txt"] = "".join(rng.shuffled(lines)).encode()
    return files


def write(folder: Path, files: Mapping[str, bytes], seed: int) -> None:
    """Write the files and their manifest."""
    write_shipped(
        folder,
        files,
        "household games, generated by this project (Apache-2.0): houses, and games as lines of scene number, task type, object, "
        "receptacle, sentence, and contents of each receptacle",
        f"python -m tstar_envs.envs.alfworld.generate --seed {seed} --out FOLDER",
        distribution="distribution.json: counts of (room, task, object, receptacle) in the names of the public games (distribution.py)",
    )
