"""The kinds of receptacles and objects: what goes where, what can be done with what.

Facts of ALFRED's household world (which kinds exist, what fits where), written down in this project's own form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

OPENABLE = frozenset({"Fridge", "Cabinet", "Microwave", "Drawer", "Safe"})
# Basins are called by what they are part of, with the basin at the end of the id.
BASINS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}
_GROUPS = {
    "tables": ("CounterTop", "DiningTable", "CoffeeTable", "SideTable"),
    "seats": ("Sofa", "ArmChair", "Ottoman"),
    "stands": ("Desk", "Dresser"),
}
# kind | what can be done with it | rooms, with how many of ten have it | where it can be
_OBJECTS = """
AlarmClock||B10|tables stands Shelf
Apple|clean heat cool slice|K10|tables Fridge GarbageCan Microwave SinkBasin
BaseballBat||B4|tables Bed
BasketBall||B4|tables seats stands Bed
Book||K1 L3 B10|tables seats stands Bed Cabinet Drawer Shelf
Bowl|clean cool holder|K10 L1 B4|tables stands Cabinet Fridge Microwave Shelf SinkBasin
Box|holder|L9 B4|tables seats stands Cabinet Shelf
Bread|heat cool slice|K10|tables Fridge GarbageCan Microwave
ButterKnife|clean|K9|tables Drawer SinkBasin
CD||B10|tables stands Cabinet Drawer GarbageCan Safe Shelf
Candle||L1 W10|tables stands Cabinet Cart Drawer Shelf Toilet
CellPhone||K2 L3 B10|tables seats stands Bed Drawer Safe Shelf
Cloth|clean|B2 W10|tables seats stands BathtubBasin Cabinet Cart Drawer GarbageCan LaundryHamper Shelf SinkBasin Toilet
CreditCard||K1 L10 B10|tables seats stands Drawer Safe Shelf
Cup|clean heat cool holder|K10|tables stands Cabinet Fridge Microwave Shelf SinkBasin
DishSponge|clean|K10 W2|tables BathtubBasin Cabinet Cart Drawer GarbageCan Shelf SinkBasin Toilet
Egg|clean heat cool slice|K10|tables Fridge GarbageCan Microwave SinkBasin
Fork|clean|K10|tables Drawer SinkBasin
Glassbottle||K3|tables stands Cabinet Fridge Microwave Shelf SinkBasin
HandTowel||W10|tables BathtubBasin Cabinet Cart Drawer GarbageCan HandTowelHolder Shelf SinkBasin Toilet
Kettle|clean|K5|tables Cabinet Shelf SinkBasin StoveBurner
KeyChain||L10 B10|tables seats stands Drawer Safe Shelf
Knife|clean|K10|tables Drawer SinkBasin
Ladle|clean|K4|tables Cabinet Drawer SinkBasin
Laptop||L10 B10|tables seats stands Bed
Lettuce|clean cool slice|K10|tables Fridge GarbageCan SinkBasin
Mug|clean heat cool holder|K10 B5|tables stands Cabinet Cart CoffeeMachine Fridge Microwave Shelf SinkBasin
Newspaper||L6|tables seats stands Bed Cabinet Drawer GarbageCan Shelf Toilet
Pan|clean cool holder|K10|tables Cabinet Fridge SinkBasin StoveBurner
Pen||K1 L2 B10|tables stands Drawer GarbageCan Shelf
Pencil||K1 L2 B10|tables stands Drawer GarbageCan Shelf
PepperShaker||K10|tables Cabinet Drawer Shelf
Pillow||L10 B10|seats Bed
Plate|clean heat cool holder|K10 L3|tables stands Cabinet Fridge Microwave Shelf SinkBasin
Plunger||W9|Cabinet Cart
Pot|clean cool holder|K10|tables Cabinet Fridge Shelf SinkBasin StoveBurner
Potato|clean heat cool slice|K10|tables Fridge GarbageCan Microwave SinkBasin
RemoteControl||L10 B1|tables seats stands Drawer Shelf
SaltShaker||K10|tables Cabinet Drawer Shelf
SoapBar|clean|W10|tables BathtubBasin Cabinet Cart Drawer GarbageCan Shelf SinkBasin Toilet
SoapBottle||K10 W10|tables Cabinet Cart Desk Drawer GarbageCan Shelf Toilet
Spatula|clean|K10|tables Drawer SinkBasin
Spoon|clean|K10|tables Drawer SinkBasin
SprayBottle||K1 W10|tables stands Cabinet Cart Drawer GarbageCan Shelf Toilet
Statue||K1 L9 B1|tables stands Cart Safe Shelf
TennisRacket||B3|tables stands Bed
TissueBox||L3 B1 W3|tables stands Cabinet Cart Drawer GarbageCan Shelf TVStand Toilet
ToiletPaper||W10|tables stands Cabinet Cart Drawer GarbageCan Shelf Toilet ToiletPaperHanger
Tomato|clean heat cool slice|K10|tables Fridge GarbageCan Microwave SinkBasin
Towel||W10|TowelHolder
Vase||K1 L6 B1|tables stands Cabinet Cart Safe Shelf
Watch||L5 B1|tables stands Drawer Safe Shelf
WateringCan||L4|tables stands Cabinet Drawer Shelf
WineBottle|cool|K3|tables stands Cabinet Fridge GarbageCan Shelf
DeskLamp|fixed lamp||SideTable Desk Dresser Shelf
HousePlant|fixed|K4 L8 B3 W1|tables stands Shelf TVStand
PaperTowelRoll|fixed|K4 W1|CounterTop SideTable Toilet
TeddyBear|fixed|B3|Bed ArmChair
Television|fixed|L8 B1|TVStand Dresser SideTable
"""
_ABILITIES = {
    "clean": "cleanable",
    "heat": "heatable",
    "cool": "coolable",
    "slice": "sliceable",
    "holder": "isreceptacleobject",
    "lamp": "toggleable",
}


@dataclass(frozen=True)
class ObjectKind:
    """A kind of object.

    Attributes:
        name: in ALFRED's spelling, ``SoapBar``.
        abilities: predicates of the domain, ``cleanable`` and so on.
        rooms: letter of a room (``House.room``) -> share of such rooms that have the kind.
        places: kinds of receptacles that it can be in.
    """

    name: str
    abilities: frozenset[str]
    rooms: dict[str, float]
    places: frozenset[str]

    @property
    def fixed(self) -> bool:
        """Whether it stays where it is."""
        return "pickupable" not in self.abilities


@lru_cache(maxsize=1)
def object_kinds() -> dict[str, ObjectKind]:
    """Every kind of object by name."""
    kinds = {}
    for line in _OBJECTS.strip().splitlines():
        name, abilities, rooms, places = line.split("|")
        words = abilities.split()
        able = frozenset(
            [_ABILITIES[word] for word in words if word != "fixed"]
            + ([] if "fixed" in words else ["pickupable"])
        )
        shares = {room[0]: int(room[1:]) / 10 for room in rooms.split()}
        kinds[name] = ObjectKind(
            name, able, shares, frozenset(p for word in places.split() for p in _GROUPS.get(word, (word,)))
        )
    return kinds


@lru_cache(maxsize=1)
def receptacle_kinds() -> frozenset[str]:
    """Every kind of receptacle."""
    return frozenset(place for kind in object_kinds().values() for place in kind.places) | {"Toaster"}


@lru_cache(maxsize=1)
def spelling() -> dict[str, str]:
    """Kind in lower case -> as ALFRED spells it."""
    return {name.lower(): name for name in (*object_kinds(), *receptacle_kinds())}
