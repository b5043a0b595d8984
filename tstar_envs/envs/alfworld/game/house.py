"""A room with its furniture: the compact form in which houses ship, and the raw ids of what is in them."""

from __future__ import annotations

from dataclasses import dataclass

from tstar_envs.envs.alfworld.game.kinds import BASINS


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
        room: its letter: K kitchen, L living room, B bedroom, W bathroom.
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
