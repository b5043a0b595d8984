"""Houses: 120 rooms under ALFRED's numbers (1-30 kitchens, 201-230 living rooms, 301-330 bedrooms, 401-430 bathrooms).

The furniture of each room and where it stands is drawn by this project; only how often a kind of furniture occurs follows the
public household world. Some neighbours share the point that the agent looks at them from, as happens there too.
"""

from __future__ import annotations

from tstar_envs.envs.alfworld.rooms import House, Receptacle
from tstar_envs.utils import StableRandom

# Numbers of the scenes: K kitchens, L living rooms, B bedrooms, W bathrooms.
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


def draw_house(scene: int, seed: int) -> House:
    """The room of a number, the same for the same seed."""
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
            if not (copy and rng.chance(_SHARED_VIEW)):  # else it shares the view of its neighbour
                views.append(_view(rng, views))
            receptacles.append(Receptacle(kind, position, len(views) - 1))
    lamps = 1 + rng.below(2) if scene in UNSEEN or rng.chance(_LAMPS.get(room, 0.0)) else 0
    return House(scene, room, lamps if room in _LAMPS else 0, tuple(views), tuple(receptacles))


def _position(rng: StableRandom, taken: set[tuple[int, int, int]]) -> tuple[int, int, int]:
    while True:
        # Even centimetres far apart: objects stand around the middle of what they are in, and no two at one point.
        position = rng.below(20) * 40 - 400, 10 + rng.below(8) * 20, rng.below(20) * 40 - 400
        if position not in taken:
            taken.add(position)
            return position


def _view(rng: StableRandom, views: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    while True:
        view = rng.below(33) - 16, rng.below(33) - 16, rng.below(4), 15 * rng.below(5)
        if view not in views:
            return view
