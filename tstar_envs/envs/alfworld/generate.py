"""Game generator: houses, task distribution, scenes, files of the mini tier, and practice sets.

``python -m tstar_envs.envs.alfworld.generate --out FOLDER`` writes the shipped files. The task distribution is that of the
published games, whose folders are named ``task-Object-None-Receptacle-Scene``. ``--paths FILE --out FOLDER`` derives it from a
JSON list of such paths. Objects with names starting with A or B are missing in that list, 404 games by the published totals;
``ESTIMATED`` fills them in.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

from tstar_envs.data.generator_command import generator_command
from tstar_envs.data.shipped import write_shipped
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.alfworld.rooms import (
    CLEAN,
    COOL,
    HEAT,
    LOOK,
    OPENABLE,
    PICK,
    PICK_TWO,
    TASK_TYPES,
    House,
    ObjectType,
    Receptacle,
    Scene,
    object_types,
    write_house,
    write_scene,
)
from tstar_envs.envs.alfworld.tasks import Task, load_tasks, task_set
from tstar_envs.utils import StableRandom

# Scene numbers: K kitchens, L living rooms, B bedrooms, W bathrooms.
SCENES = {"K": range(1, 31), "L": range(201, 231), "B": range(301, 331), "W": range(401, 431)}
# Rooms of ALFWorld's unseen validation set, never used for training.
UNSEEN = frozenset({10, 219, 308, 424})
# room -> receptacle type -> possible counts, equally likely
_FURNITURE: dict[str, dict[str, tuple[int, ...]]] = {
    "K": {
        "Cabinet": (3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 9, 11, 13, 13, 15, 18, 20, 26),
        "CoffeeMachine": (1,),
        "CounterTop": (1, 1, 2, 2, 2, 3, 3),
        "DiningTable": (0, 0, 0, 1, 1, 1, 2),
        "Drawer": (1, 2, 3, 3, 3, 4, 4, 5, 6, 8, 11),
        "Fridge": (1,),
        "GarbageCan": (1,),
        "Microwave": (1,),
        "Shelf": (0, 0, 0, 2, 3),
        "SideTable": (0, 0, 0, 0, 1),
        "SinkBasin": (1,),
        "StoveBurner": (4,),
        "Toaster": (1,),
    },
    "L": {
        "ArmChair": (0, 1, 1, 1, 2, 2, 3),
        "Cabinet": (0, 0, 0, 0, 0, 4, 8),
        "CoffeeTable": (0, 1, 1, 1, 2),
        "Desk": (0, 0, 0, 0, 0, 0, 0, 1),
        "DiningTable": (0, 0, 1, 1, 2),
        "Drawer": (0, 1, 2, 3, 4, 4, 5, 6, 7, 12),
        "Dresser": (0, 0, 1),
        "GarbageCan": (1,),
        "Ottoman": (0, 0, 0, 1),
        "Safe": (0, 0, 0, 0, 0, 1),
        "Shelf": (0, 0, 0, 2, 4, 6, 8),
        "SideTable": (0, 1, 1, 2, 2, 3, 4),
        "Sofa": (1, 1, 1, 2),
        "TVStand": (0, 1, 1),
    },
    "B": {
        "ArmChair": (0, 0, 0, 0, 1, 2),
        "Bed": (1, 1, 1, 1, 2),
        "Cabinet": (0, 0, 0, 0, 0, 2, 4),
        "CoffeeTable": (0,) * 9 + (1,),
        "Desk": (0, 1, 1, 1, 2),
        "DiningTable": (0, 0, 0, 0, 1),
        "Drawer": (1, 2, 2, 3, 3, 4, 5, 6, 7, 10, 13),
        "Dresser": (0, 0, 1, 1),
        "GarbageCan": (1,),
        "LaundryHamper": (0, 0, 1),
        "Safe": (0, 0, 0, 0, 1),
        "Shelf": (0, 0, 1, 2, 2, 3, 5, 6, 10),
        "SideTable": (0, 1, 1, 1, 2),
    },
    "W": {
        "BathtubBasin": (0, 1, 1),
        "Cabinet": (0, 0, 2, 3, 4, 4, 4, 5, 9),
        "Cart": (0, 0, 0, 0, 0, 1),
        "CounterTop": (0, 1, 1, 1, 1, 2),
        "Drawer": (0, 0, 0, 1, 2, 4, 6, 8),
        "Dresser": (0,) * 9 + (1,),
        "GarbageCan": (1,),
        "HandTowelHolder": (1, 1, 2),
        "Shelf": (0, 0, 0, 1, 2, 3),
        "SideTable": (0,) * 7 + (1,),
        "SinkBasin": (1, 1, 2),
        "Toilet": (1,),
        "ToiletPaperHanger": (1,),
        "TowelHolder": (1, 1, 2),
    },
}
# Share of rooms with a desk lamp, in tenths.
_LAMPS = {"B": 0.7, "L": 0.35}
# The few unseen rooms are furnished with what their tasks need.
_CERTAIN = {
    10: {"Cabinet": 6, "CounterTop": 3, "Drawer": 3, "Shelf": 3, "DiningTable": 0, "SideTable": 0},
    219: {
        "ArmChair": 2,
        "CoffeeTable": 1,
        "Drawer": 4,
        "Dresser": 1,
        "Safe": 1,
        "Shelf": 4,
        "SideTable": 2,
        "Sofa": 1,
        "DiningTable": 1,
    },
    308: {"Bed": 1, "Desk": 2, "Drawer": 6, "Shelf": 6, "SideTable": 2, "Safe": 1, "Dresser": 1},
    424: {
        "Cabinet": 4,
        "CounterTop": 1,
        "BathtubBasin": 0,
        "Shelf": 1,
        "Drawer": 2,
        "SinkBasin": 1,
        "Cart": 1,
    },
}
_SHARED_VIEW = 0.12


def draw_house(scene: int, seed: int) -> House:
    """Draw the room of a scene number, reproducible from the seed."""
    room = next(letter for letter, numbers in SCENES.items() if scene in numbers)
    rng = StableRandom(f"alfworld/house/{seed}/{scene}")
    certain = _CERTAIN.get(scene, {})
    views: list[tuple[int, int, int, int]] = []
    receptacles: list[Receptacle] = []
    taken: set[tuple[int, int, int]] = set()
    for kind, numbers in _FURNITURE[room].items():
        drawn = rng.choice(numbers)
        for copy in range(certain.get(kind, drawn)):
            position = _position(rng, taken)
            if not (copy and rng.chance(_SHARED_VIEW)):  # else it shares its neighbour's view
                views.append(_view(rng, views))
            receptacles.append(Receptacle(kind, position, len(views) - 1))
    lamps = 1 + rng.below(2) if scene in UNSEEN or rng.chance(_LAMPS.get(room, 0.0)) else 0
    return House(scene, room, lamps if room in _LAMPS else 0, tuple(views), tuple(receptacles))


def _position(rng: StableRandom, taken: set[tuple[int, int, int]]) -> tuple[int, int, int]:
    while True:
        # Positions are even and far apart, so that objects, placed around the middle of their receptacle, never coincide.
        position = rng.below(20) * 40 - 400, 10 + rng.below(8) * 20, rng.below(20) * 40 - 400
        if position not in taken:
            taken.add(position)
            return position


def _view(rng: StableRandom, views: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    while True:
        view = rng.below(33) - 16, rng.below(33) - 16, rng.below(4), 15 * rng.below(5)
        if view not in views:
            return view


FILE = Path(__file__).parent / "data" / "distribution.json"
_PATH = re.compile(r"(?<![a-z_])([a-z_]++)-([A-Za-z]+)-None-([A-Za-z]+)-(\d+)")
# task -> lines with room, object, and receptacles with their counts
ESTIMATED = {
    PICK: (
        "B AlarmClock Desk 5 Dresser 4 Shelf 3 SideTable 4",
        "B Book Bed 5 Desk 5 Drawer 3 SideTable 3",
        "L Book Sofa 4 ArmChair 2 CoffeeTable 2",
        "L Box Sofa 3 ArmChair 3 CoffeeTable 3",
        "K ButterKnife Drawer 4 DiningTable 2",
        "K Apple Fridge 2 SinkBasin 2",
        "K Bowl Cabinet 3",
    ),
    LOOK: (
        "B AlarmClock DeskLamp 26",
        "B Book DeskLamp 34",
        "L Book DeskLamp 6",
        "B Bowl DeskLamp 20",
        "L Box DeskLamp 12",
        "B BasketBall DeskLamp 9",
        "B BaseballBat DeskLamp 10",
    ),
    CLEAN: (
        "K Apple Fridge 6 Microwave 5 DiningTable 5 CounterTop 4 SideTable 3",
        "K Bowl Cabinet 8 Fridge 6 Microwave 5 Shelf 5 DiningTable 5",
        "K ButterKnife CounterTop 6 DiningTable 6 Drawer 5",
    ),
    HEAT: (
        "K Apple Fridge 20 DiningTable 12 GarbageCan 12 SinkBasin 10 SideTable 8 CounterTop 9",
        "K Bread Fridge 8 CounterTop 6 DiningTable 6",
    ),
    COOL: (
        "K Apple Microwave 10 SinkBasin 8 CounterTop 6 DiningTable 5 GarbageCan 4",
        "K Bowl Cabinet 6 DiningTable 5 CounterTop 5 Microwave 3 Shelf 2",
        "K Bread CounterTop 4 DiningTable 4 Microwave 3",
    ),
}


class TaskParameters(NamedTuple):
    """Parameters of a game: room, object, and target receptacle (or lamp)."""

    room: str
    object: str
    receptacle: str


def derive(paths: Iterable[str]) -> dict[str, Counter[TaskParameters]]:
    """Count the parameters of games in the training rooms, by task type."""
    counts: dict[str, Counter[TaskParameters]] = {task: Counter() for task in TASK_TYPES.values()}
    for path in paths:
        for task, object_, receptacle, scene in _PATH.findall(path):
            room = next((letter for letter, scenes in SCENES.items() if int(scene) in scenes), "")
            if task in counts and room and int(scene) not in UNSEEN and not object_.endswith("Sliced"):
                counts[task][TaskParameters(room, object_, receptacle)] += 1
    for task, lines in ESTIMATED.items():
        for line in lines:
            room, object_, *places = line.split()
            for receptacle, count in zip(places[::2], places[1::2], strict=True):
                counts[task][TaskParameters(room, object_, receptacle)] += int(count)
    return counts


def write_counts(counts: dict[str, Counter[TaskParameters]]) -> str:
    """Serialize the table for the shipped file."""
    lines = [
        f" {json.dumps(task)}: "
        + json.dumps({" ".join(parameters): count for parameters, count in sorted(table.items())})
        for task, table in counts.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


@lru_cache(maxsize=1)
def load_counts() -> dict[str, tuple[tuple[TaskParameters, int], ...]]:
    """Load the shipped table: task type -> parameters with counts."""
    table = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        task: tuple((TaskParameters(*key.split()), count) for key, count in counts.items())
        for task, counts in table.items()
    }


def derive_command() -> None:
    """Run the command line that derives the distribution."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--paths",
        type=Path,
        required=True,
        help="JSON file: a list of paths, or an object whose values are such lists.",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="Folder that distribution.json is written to."
    )
    arguments = parser.parse_args()
    data = json.loads(arguments.paths.read_text(encoding="utf-8"))
    lists = data.values() if isinstance(data, dict) else [data]
    counts = derive(path for paths in lists for path in paths)
    (arguments.out / FILE.name).write_text(write_counts(counts), encoding="utf-8")
    print({task: sum(table.values()) for task, table in counts.items()})


if __name__ == "__main__":
    derive_command()


SEED = 20260101
# Share of suitable rooms that contain an object type, number of copies, and preference for open places.
_PRESENT = 0.85
_COPIES = (1, 1, 1, 2, 2, 2, 2, 3, 3, 3)
_OPEN_WEIGHT = 3


def draw_houses(seed: int = SEED) -> dict[int, House]:
    """Draw all rooms."""
    return {scene: draw_house(scene, seed) for scenes in SCENES.values() for scene in scenes}


def possible(task: str, parameters: TaskParameters, house: House) -> bool:
    """Check whether a house has what a game needs."""
    if house.room != parameters.room:
        return False
    if task == LOOK:
        return house.lamps > 0 and bool(_spots(object_types()[parameters.object], house))
    if not house.of_kind(parameters.receptacle):
        return False
    return any(
        house.receptacles[spot].kind != parameters.receptacle
        for spot in _spots(object_types()[parameters.object], house)
    )


def _spots(kind: ObjectType, house: House) -> list[int]:
    """List the places for an object of a type; open places occur several times."""
    return [
        number
        for number, receptacle in enumerate(house.receptacles)
        if receptacle.kind in kind.places
        for _ in range(1 if receptacle.kind in OPENABLE else _OPEN_WEIGHT)
    ]


class SceneMaker:
    """Generator of games in given houses.

    Args:
        houses: candidate houses.
    """

    def __init__(self, houses: Sequence[House]) -> None:
        self._choices: dict[
            str, tuple[list[TaskParameters], list[int], dict[TaskParameters, list[House]]]
        ] = {}
        for task in TASK_TYPES.values():
            fitting = {
                parameters: [house for house in houses if possible(task, parameters, house)]
                for parameters, _ in load_counts()[task]
            }
            choices = [
                (parameters, count) for parameters, count in load_counts()[task] if fitting[parameters]
            ]
            self._choices[task] = (
                [parameters for parameters, _ in choices],
                list(accumulate(count for _, count in choices)),
                fitting,
            )
        self._spots: dict[tuple[int, str], list[int]] = {}

    def draw(self, task: str, rng: StableRandom) -> Scene:
        """Draw a game of a task type.

        The parameters follow the published distribution; the house is uniform among the suitable ones.
        """
        choices, sums, fitting = self._choices[task]
        parameters = choices[bisect(sums, rng.below(sums[-1]))]
        house = rng.choice(fitting[parameters])
        contents: list[list[str]] = [[] for _ in house.receptacles]
        for kind in object_types().values():
            spots = self._spots_of(kind, house)
            wanted = kind.name == parameters.object
            if wanted and task in (PICK, PICK_TWO):
                spots = [spot for spot in spots if house.receptacles[spot].kind != parameters.receptacle]
            elif not wanted and not (spots and rng.chance(_PRESENT * kind.rooms.get(house.room, 0.0))):
                continue
            copies = 1 if kind.fixed else rng.choice(_COPIES)
            for _ in range(max(copies, 2) if wanted and task == PICK_TWO else copies):
                contents[rng.choice(spots)].append(kind.name)
        lamp_spots = self._spots_of(object_types()["DeskLamp"], house) or [
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

    def _spots_of(self, kind: ObjectType, house: House) -> list[int]:
        key = house.scene, kind.name
        if key not in self._spots:
            self._spots[key] = _spots(kind, house)
        return self._spots[key]


@lru_cache(maxsize=2)
def maker_for(unseen: bool, seed: int = SEED) -> SceneMaker:
    """Create a generator for the four unseen rooms, or for all others."""
    return SceneMaker([house for house in draw_houses(seed).values() if (house.scene in UNSEEN) == unseen])


def fresh_scenes(
    seed: int | str, tasks: Sequence[str] = tuple(TASK_TYPES.values()), unseen: bool = False
) -> Iterator[Scene]:
    """Generate games endlessly, cycling through the task types.

    Args:
        seed: the same seed gives the same games.
        tasks: ALFRED's names of the task types.
        unseen: in the four unseen rooms instead of the training rooms.
    """
    rng, maker = StableRandom(f"alfworld/fresh/{seed}"), maker_for(unseen)
    while True:
        for task in tasks:
            yield maker.draw(task, rng)


# split -> games per task type, in the order of TASK_TYPES; the published 3,553 train games are split into train and valid
SIZES = {
    "train": (738, 288, 608, 429, 498, 760),
    "valid": (52, 20, 42, 30, 35, 53),
    "test": (35, 13, 27, 16, 25, 24),
    "valid_unseen": (24, 18, 31, 23, 21, 17),
}


def build(seed: int = SEED) -> dict[str, bytes]:
    """Build the shipped files as name (without ``.gz``) -> bytes. No game occurs twice."""
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


TASKS = 160


@lru_cache(maxsize=1)
def held_out_lines() -> frozenset[str]:
    """Collect the shipped games of all splits except train, as lines of their files."""
    return frozenset(
        f"{str(task.source).rstrip()}"
        for task in load_tasks("all", "mini").tasks.values()
        if task.split != "train"
    )


def practice_set(
    seed: int | str, variants: Sequence[str] = tuple(TASK_TYPES), size: int = TASKS
) -> LoadedTasks[Task]:
    """Generate new train tasks, cycling through the task types."""
    held_out = held_out_lines()
    scenes = fresh_scenes(f"practice/{seed}", [TASK_TYPES[variant] for variant in variants])
    kept = islice((scene for scene in scenes if write_scene(scene).rstrip() not in held_out), size)
    return task_set(
        "practice",
        [Task(f"practice-{seed}-{n:04d}", "train", scene.task, scene) for n, scene in enumerate(kept)],
    )


def main() -> None:
    """Run the command line of the generator."""
    out, seed = generator_command(__doc__, SEED)
    files = build(seed)
    write(out, files, seed)
    print(
        ", ".join(f"{len(data.splitlines())} lines in {name}" for name, data in files.items()) + f" in {out}"
    )


if __name__ == "__main__":
    derive_command() if "--paths" in sys.argv else main()
