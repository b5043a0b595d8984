"""Houses: 120 rooms under ALFRED's numbers (1-30 kitchens, 201-230 living rooms, 301-330 bedrooms, 401-430 bathrooms).

The furniture of each room and where it stands is drawn by this project; only how often a kind of furniture occurs follows the
public household world. Some neighbours share the point that the agent looks at them from, as happens there too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tstar_envs.envs.alfworld.catalogue import BASINS
from tstar_envs.stable_random import StableRandom

SCENES = {"K": range(1, 31), "L": range(201, 231), "B": range(301, 331), "W": range(401, 431)}
# The rooms of the unseen validation set of ALFWorld; nobody trains in them.
UNSEEN = frozenset({10, 219, 308, 424})
# room -> kind of receptacle -> the numbers of them that occur, each equally often.
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
# Of how many rooms in ten there is a lamp to look at things under.
_LAMPS = {"B": 0.7, "L": 0.35}
# The unseen rooms are few, so they are furnished with what their tasks need.
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


@dataclass(frozen=True)
class Receptacle:
    """A piece of furniture.

    Attributes:
        kind: ``Cabinet`` and so on.
        position: x, y, z in centimetres.
        view: number of the location that it is reached from.
    """

    kind: str
    position: tuple[int, int, int]
    view: int


@dataclass(frozen=True)
class House:
    """One room.

    Attributes:
        scene: its number.
        room: letter of ``catalogue.ROOMS``.
        lamps: number of desk lamps.
        views: locations as ALFRED writes them: x and z in steps of 25 cm, quarter turns, and the angle of view in degrees.
        receptacles: its furniture.
    """

    scene: int
    room: str
    lamps: int
    views: tuple[tuple[int, int, int, int], ...]
    receptacles: tuple[Receptacle, ...]

    def of_kind(self, kind: str) -> list[int]:
        """Numbers of the receptacles of a kind."""
        return [number for number, receptacle in enumerate(self.receptacles) if receptacle.kind == kind]


def draw_house(scene: int, seed: int) -> House:
    """The room of a number, the same for the same seed."""
    room = next(letter for letter, numbers in SCENES.items() if scene in numbers)
    draw = StableRandom(f"alfworld/house/{seed}/{scene}")
    certain = _CERTAIN.get(scene, {})
    views: list[tuple[int, int, int, int]] = []
    receptacles: list[Receptacle] = []
    taken: set[tuple[int, int, int]] = set()
    for kind, numbers in _FURNITURE[room].items():
        drawn = draw.choice(numbers)
        for copy in range(certain.get(kind, drawn)):
            position = _position(draw, taken)
            if not (copy and draw.chance(_SHARED_VIEW)):  # else it shares the view of its neighbour
                views.append(_view(draw, views))
            receptacles.append(Receptacle(kind, position, len(views) - 1))
    lamps = 1 + draw.below(2) if scene in UNSEEN or draw.chance(_LAMPS.get(room, 0.0)) else 0
    return House(scene, room, lamps if room in _LAMPS else 0, tuple(views), tuple(receptacles))


def _position(draw: StableRandom, taken: set[tuple[int, int, int]]) -> tuple[int, int, int]:
    while True:
        # Even centimetres far apart: objects stand around the middle of what they are in, and no two at one point.
        position = draw.below(20) * 40 - 400, 10 + draw.below(8) * 20, draw.below(20) * 40 - 400
        if position not in taken:
            taken.add(position)
            return position


def _view(draw: StableRandom, views: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    while True:
        view = draw.below(33) - 16, draw.below(33) - 16, draw.below(4), 15 * draw.below(5)
        if view not in views:
            return view


def receptacle_id(receptacle: Receptacle) -> str:
    """Raw id of a receptacle, in the form that PDDL files have, in lower case."""
    kind = receptacle.kind
    stem = f"{BASINS.get(kind, kind)}{_coordinates(receptacle.position)}"
    return (f"{stem}_bar_{kind}" if kind in BASINS else stem).lower()


def object_id(kind: str, receptacle: Receptacle, number: int) -> str:
    """Raw id of the object that is the ``number``-th in a receptacle; at most 400 have a place around it."""
    x, y, z = receptacle.position
    return f"{kind}{_coordinates((x - 20 + number % 20 * 2, y + 5, z - 20 + number // 20 * 2))}".lower()


def view_id(view: tuple[int, int, int, int]) -> str:
    """Raw id of a location."""
    return "loc" + "".join(f"_bar_{'_minus_' if part < 0 else ''}{abs(part)}" for part in view)


def _coordinates(position: tuple[int, int, int]) -> str:
    return "".join(
        f"_bar__{'minus' if part < 0 else 'plus'}_{abs(part) // 100:02d}_dot_{abs(part) % 100:02d}"
        for part in position
    )


def write_house(house: House) -> str:
    """A house as a line of the shipped file."""
    views = ";".join(",".join(map(str, view)) for view in house.views)
    furniture = ";".join(f"{r.kind},{','.join(map(str, r.position))},{r.view}" for r in house.receptacles)
    return f"{house.scene}\t{house.room}\t{house.lamps}\t{views}\t{furniture}\n"


def read_house(line: str) -> House:
    """The inverse of ``write_house``."""
    scene, room, lamps, views, furniture = line.rstrip("\n").split("\t")
    receptacles = []
    for entry in furniture.split(";"):
        kind, x, y, z, view = entry.split(",")
        receptacles.append(Receptacle(kind, (int(x), int(y), int(z)), int(view)))
    seen = []
    for entry in views.split(";"):
        place_x, place_z, rotation, angle = map(int, entry.split(","))
        seen.append((place_x, place_z, rotation, angle))
    return House(int(scene), room, int(lamps), tuple(seen), tuple(receptacles))
