"""A compact scene: a house, what is where in it, and a task; from it come the facts, the game, and the files of the public format."""

from __future__ import annotations

from dataclasses import dataclass

from tstar_envs.envs.alfworld.game.building import build_game
from tstar_envs.envs.alfworld.game.facts import Facts, Goal
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.game.house import House, object_id, receptacle_id, view_id
from tstar_envs.envs.alfworld.game.kinds import OPENABLE, object_kinds
from tstar_envs.envs.alfworld.game.wording import Wording
from tstar_envs.envs.alfworld.task_types import CLEAN, COOL, HEAT, LOOK, PICK, PICK_TWO

# As ALFWorld words the tasks: two sentences for each type.
SENTENCES = {
    PICK: ("put a {object} in {receptacle}", "put some {object} on {receptacle}"),
    LOOK: ("look at {object} under the {receptacle}", "examine the {object} with the {receptacle}"),
    CLEAN: ("put a clean {object} in {receptacle}", "clean some {object} and put it in {receptacle}"),
    HEAT: ("put a hot {object} in {receptacle}", "heat some {object} and put it in {receptacle}"),
    COOL: ("put a cool {object} in {receptacle}", "cool some {object} and put it in {receptacle}"),
    PICK_TWO: ("put two {object} in {receptacle}", "find two {object} and put them in {receptacle}"),
}
_MARK = {CLEAN: "isclean", HEAT: "ishot", COOL: "iscool"}
_START = "loc_bar_99_bar_99_bar_0_bar_30"  # in the middle of the room, where no furniture is looked at from
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
    """One game in compact form.

    Attributes:
        house: the room.
        task: ALFRED's name of the task type.
        object: kind of the object that the task is about.
        receptacle: kind of the receptacle it goes to, or of the lamp.
        sentence: which of the two sentences of its task type words it.
        contents: for each receptacle of the house the kinds of the objects in it.
    """

    house: House
    task: str
    object: str
    receptacle: str
    sentence: int
    contents: tuple[tuple[str, ...], ...]

    @property
    def goal(self) -> Goal:
        """When it is won."""
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
        """The task in words, without the full stop."""
        return SENTENCES[self.task][self.sentence].format(
            object=self.object.lower(), receptacle=self.receptacle.lower()
        )


def scene_facts(scene: Scene) -> Facts:
    """What is true at the start of a scene."""
    facts = Facts(agent_location=_START)
    kinds = object_kinds()
    receptacles = scene.house.receptacles
    for receptacle, inside in zip(receptacles, scene.contents, strict=True):
        raw, view = receptacle_id(receptacle), view_id(scene.house.views[receptacle.view])
        facts.receptacle_kinds[raw] = receptacle.kind.lower()
        facts.receptacle_location[raw] = view
        if receptacle.kind in OPENABLE:
            facts.openable.add(raw)
        for number, kind in enumerate(inside):
            thing = object_id(kind, receptacle, number)
            facts.object_kinds[thing] = kind.lower()
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
    """The game of a scene."""
    return build_game(scene_facts(scene), scene.goal, f"Your task is to: {scene.description}.", WORDING)


def write_scene(scene: Scene) -> str:
    """A scene as a line of the shipped files."""
    contents = ";".join(" ".join(inside) for inside in scene.contents)
    return f"{scene.house.scene}\t{scene.task}\t{scene.object}\t{scene.receptacle}\t{scene.sentence}\t{contents}\n"


def read_scene(line: str, houses: dict[int, House]) -> Scene:
    """The inverse of ``write_scene``."""
    number, task, object_, receptacle, sentence, contents = line.rstrip("\n").split("\t")
    inside = tuple(tuple(place.split()) for place in contents.split(";"))
    return Scene(houses[int(number)], task, object_, receptacle, int(sentence), inside)
