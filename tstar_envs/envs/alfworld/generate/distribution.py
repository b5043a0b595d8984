"""Which tasks there are and how often: counts of (room, task, object, receptacle), derived from the names of the public games.

A public game's folder is called ``task-Object-None-Receptacle-Scene``; only counts of these are kept, in ``data/distribution.json``.
``python -m tstar_envs.envs.alfworld.generate.distribution --paths FILE --out FOLDER`` derives them anew from a JSON list of such paths.
That list lacks all objects whose names begin with A or B, 404 games going by the published totals; ``ESTIMATED`` fills them in.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tstar_envs.envs.alfworld.generate.houses import SCENES, UNSEEN
from tstar_envs.envs.alfworld.rooms import CLEAN, COOL, HEAT, LOOK, PICK, TASK_TYPES

FILE = Path(__file__).parents[1] / "data" / "distribution.json"
_PATH = re.compile(r"(?<![a-z_])([a-z_]++)-([A-Za-z]+)-None-([A-Za-z]+)-(\d+)")
# task -> lines of room, object, and receptacles with their counts
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
    """What a game is about: the room, the object, and the receptacle it goes to (or the lamp)."""

    room: str
    object: str
    receptacle: str


def derive(paths: Iterable[str]) -> dict[str, Counter[TaskParameters]]:
    """Counts of parameters by task type, of games in the training rooms."""
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


def write(counts: dict[str, Counter[TaskParameters]]) -> str:
    """The table as the shipped file has it."""
    lines = [
        f" {json.dumps(task)}: "
        + json.dumps({" ".join(parameters): count for parameters, count in sorted(table.items())})
        for task, table in counts.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


@lru_cache(maxsize=1)
def load() -> dict[str, tuple[tuple[TaskParameters, int], ...]]:
    """The shipped table: task type -> parameters with their counts."""
    table = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        task: tuple((TaskParameters(*key.split()), count) for key, count in counts.items())
        for task, counts in table.items()
    }


def main() -> None:
    """Command line."""
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
    (arguments.out / FILE.name).write_text(write(counts), encoding="utf-8")
    print({task: sum(table.values()) for task, table in counts.items()})


if __name__ == "__main__":
    main()
