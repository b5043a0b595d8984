"""Houses and scenes: rooms, object types and placements, in the compact shipped format."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tstar_envs.envs.alfworld.game import Facts, Game, Goal, Wording, build_game

PICK, LOOK, PICK_TWO = "pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"
CLEAN, HEAT, COOL = (
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
)
# Short names in the ids, in the order of ALFWorld's task numbers.
TASK_TYPES = {"pick": PICK, "look": LOOK, "clean": CLEAN, "heat": HEAT, "cool": COOL, "pick2": PICK_TWO}


OPENABLE = frozenset({"Fridge", "Cabinet", "Microwave", "Drawer", "Safe"})
# Basins are named after the furniture they belong to, with the basin at the end of the id.
BASINS = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}
_GROUPS = {
    "tables": ("CounterTop", "DiningTable", "CoffeeTable", "SideTable"),
    "seats": ("Sofa", "ArmChair", "Ottoman"),
    "stands": ("Desk", "Dresser"),
}
# type | abilities | rooms, with the share in tenths | places
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
class ObjectType:
    """Object type.

    Attributes:
        name: ALFRED's spelling, such as ``SoapBar``.
        abilities: predicates of the domain, such as ``cleanable``.
        rooms: room letter (``House.room``) -> share of such rooms with this type.
        places: receptacle types that it can be in.
    """

    name: str
    abilities: frozenset[str]
    rooms: dict[str, float]
    places: frozenset[str]

    @property
    def fixed(self) -> bool:
        """True if it cannot be moved."""
        return "pickupable" not in self.abilities


@lru_cache(maxsize=1)
def object_types() -> dict[str, ObjectType]:
    """List all object types by name."""
    kinds = {}
    for line in _OBJECTS.strip().splitlines():
        name, abilities, rooms, places = line.split("|")
        words = abilities.split()
        able = frozenset(
            [_ABILITIES[word] for word in words if word != "fixed"]
            + ([] if "fixed" in words else ["pickupable"])
        )
        shares = {room[0]: int(room[1:]) / 10 for room in rooms.split()}
        kinds[name] = ObjectType(
            name, able, shares, frozenset(p for word in places.split() for p in _GROUPS.get(word, (word,)))
        )
    return kinds


@lru_cache(maxsize=1)
def receptacle_types() -> frozenset[str]:
    """List all receptacle types."""
    return frozenset(place for kind in object_types().values() for place in kind.places) | {"Toaster"}


@lru_cache(maxsize=1)
def spelling() -> dict[str, str]:
    """Map lower-case types to ALFRED's spelling."""
    return {name.lower(): name for name in (*object_types(), *receptacle_types())}


@dataclass(frozen=True)
class Receptacle:
    """Receptacle, a piece of furniture.

    Attributes:
        kind: type, such as ``Cabinet``.
        position: x, y, z in centimetres.
        view: number of the location from which it is reached.
    """

    kind: str
    position: tuple[int, int, int]
    view: int


@dataclass(frozen=True)
class House:
    """House of one room.

    Attributes:
        scene: scene number.
        room: room letter: K kitchen, L living room, B bedroom, W bathroom.
        lamps: number of desk lamps.
        views: locations in ALFRED's format: x and z in steps of 25 cm, quarter turns, camera angle in degrees.
        receptacles: furniture of the room.
    """

    scene: int
    room: str
    lamps: int
    views: tuple[tuple[int, int, int, int], ...]
    receptacles: tuple[Receptacle, ...]

    def of_kind(self, kind: str) -> list[int]:
        """List the numbers of the receptacles of a type."""
        return [number for number, receptacle in enumerate(self.receptacles) if receptacle.kind == kind]


def receptacle_id(receptacle: Receptacle) -> str:
    """Create the raw PDDL id of a receptacle, in lower case."""
    kind = receptacle.kind
    stem = f"{BASINS.get(kind, kind)}{_coordinates(receptacle.position)}"
    return (f"{stem}_bar_{kind}" if kind in BASINS else stem).lower()


def object_id(kind: str, receptacle: Receptacle, number: int) -> str:
    """Create the raw id of the ``number``-th object in a receptacle.

    At most 400 have a place.
    """
    x, y, z = receptacle.position
    return f"{kind}{_coordinates((x - 20 + number % 20 * 2, y + 5, z - 20 + number // 20 * 2))}".lower()


def view_id(view: tuple[int, int, int, int]) -> str:
    """Create the raw id of a location."""
    return "loc" + "".join(f"_bar_{'_minus_' if part < 0 else ''}{abs(part)}" for part in view)


def _coordinates(position: tuple[int, int, int]) -> str:
    return "".join(
        f"_bar__{'minus' if part < 0 else 'plus'}_{abs(part) // 100:02d}_dot_{abs(part) % 100:02d}"
        for part in position
    )


def write_house(house: House) -> str:
    """Serialize a house as a line of the shipped file."""
    views = ";".join(",".join(map(str, view)) for view in house.views)
    furniture = ";".join(f"{r.kind},{','.join(map(str, r.position))},{r.view}" for r in house.receptacles)
    return f"{house.scene}\t{house.room}\t{house.lamps}\t{views}\t{furniture}\n"


def read_house(line: str) -> House:
    """Parse a line written by ``write_house``."""
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


# ALFWorld's task descriptions: two sentences per type.
SENTENCES = {
    PICK: ("put a {object} in {receptacle}", "put some {object} on {receptacle}"),
    LOOK: ("look at {object} under the {receptacle}", "examine the {object} with the {receptacle}"),
    CLEAN: ("put a clean {object} in {receptacle}", "clean some {object} and put it in {receptacle}"),
    HEAT: ("put a hot {object} in {receptacle}", "heat some {object} and put it in {receptacle}"),
    COOL: ("put a cool {object} in {receptacle}", "cool some {object} and put it in {receptacle}"),
    PICK_TWO: ("put two {object} in {receptacle}", "find two {object} and put them in {receptacle}"),
}
_MARK = {CLEAN: "isclean", HEAT: "ishot", COOL: "iscool"}
_START = "loc_bar_99_bar_99_bar_0_bar_30"  # the middle of the room, which no receptacle is reached from
HELP = "\n".join(
    (
        "Available commands:",
        "  look:                             look around your current location",
        "  inventory:                        check your current inventory",
        "  go to (receptacle):               move to a receptacle",
        "  open (receptacle):                open a receptacle",
        "  close (receptacle):               close a receptacle",
        "  take (object) from (receptacle):  take an object from a receptacle",
        "  move (object) to (receptacle):  place an object in or on a receptacle",
        "  examine (something):              examine a receptacle or an object",
        "  use (object):                     use an object",
        "  heat (object) with (receptacle):  heat an object using a receptacle",
        "  clean (object) with (receptacle): clean an object using a receptacle",
        "  cool (object) with (receptacle):  cool an object using a receptacle",
        "  slice (object) with (object):     slice an object using a sharp object",
        "",
    )
)
WORDING = Wording(help=HELP)


@dataclass(frozen=True)
class Scene:
    """Game in compact form.

    Attributes:
        house: the room.
        task: ALFRED's name of the task type.
        object: type of the task's object.
        receptacle: type of the target receptacle, or of the lamp.
        sentence: index of the task description, 0 or 1.
        contents: for each receptacle of the house the types of its objects.
    """

    house: House
    task: str
    object: str
    receptacle: str
    sentence: int
    contents: tuple[tuple[str, ...], ...]

    @property
    def goal(self) -> Goal:
        """Winning condition."""
        kind = self.object.lower()
        if self.task == LOOK:
            return Goal(kind, "", self.receptacle.lower())
        mark = _MARK.get(self.task)
        return Goal(
            kind,
            self.receptacle.lower(),
            "",
            2 if self.task == PICK_TWO else 1,
            frozenset([mark] if mark else []),
        )

    @property
    def description(self) -> str:
        """Task description without the full stop."""
        return SENTENCES[self.task][self.sentence].format(
            object=self.object.lower(), receptacle=self.receptacle.lower()
        )


def scene_facts(scene: Scene) -> Facts:
    """Create the initial facts of a scene."""
    facts = Facts(agent_location=_START)
    kinds = object_types()
    receptacles = scene.house.receptacles
    for receptacle, inside in zip(receptacles, scene.contents, strict=True):
        raw, view = receptacle_id(receptacle), view_id(scene.house.views[receptacle.view])
        facts.receptacle_types[raw] = receptacle.kind.lower()
        facts.receptacle_location[raw] = view
        if receptacle.kind in OPENABLE:
            facts.openable.add(raw)
        for number, kind in enumerate(inside):
            thing = object_id(kind, receptacle, number)
            facts.object_types[thing] = kind.lower()
            facts.inside.add((thing, raw))
            facts.object_locations.add((thing, view))
            for ability in kinds[kind].abilities:
                facts.abilities[ability].add(thing)
    furniture = {receptacle.kind for receptacle in receptacles}
    facts.fits = {
        (place.lower(), kind.lower())
        for kind in {kind for inside in scene.contents for kind in inside}
        if not kinds[kind].fixed
        for place in kinds[kind].places & furniture
    }
    return facts


def scene_game(scene: Scene) -> Game:
    """Build the game of a scene."""
    return build_game(scene_facts(scene), scene.goal, f"Your task is to: {scene.description}.", WORDING)


def write_scene(scene: Scene) -> str:
    """Serialize a scene as a line of the shipped files."""
    contents = ";".join(" ".join(inside) for inside in scene.contents)
    return f"{scene.house.scene}\t{scene.task}\t{scene.object}\t{scene.receptacle}\t{scene.sentence}\t{contents}\n"


def read_scene(line: str, houses: dict[int, House]) -> Scene:
    """Parse a line written by ``write_scene``."""
    number, task, object_, receptacle, sentence, contents = line.rstrip("\n").split("\t")
    inside = tuple(tuple(place.split()) for place in contents.split(";"))
    return Scene(houses[int(number)], task, object_, receptacle, int(sentence), inside)
