"""The commands: their verbs, and which of them a household allows."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.state import NOTHING, Household

GO, OPEN, CLOSE, TAKE, MOVE, USE = "go", "open", "close", "take", "move", "use"
CLEAN, HEAT, COOL, SLICE = "clean", "heat", "cool", "slice"
EXAMINE_RECEPTACLE, EXAMINE_OBJECT, LOOK, INVENTORY, HELP = (
    "examine receptacle",
    "examine object",
    "look",
    "inventory",
    "help",
)
# What can change the world or the agent's place in it; the others only inform.
CHANGING = frozenset({GO, OPEN, CLOSE, TAKE, MOVE, USE, CLEAN, HEAT, COOL, SLICE})
MOST_SITUATIONS = 4096  # remembered in a process


class Command(NamedTuple):
    """A command as the rules see it.

    Attributes:
        verb: one of the constants of this module.
        thing: a receptacle for ``go``, ``open``, ``close`` and ``examine receptacle``, else an object.
        other: the receptacle it is taken from, moved to or treated with; the knife for ``slice``.
    """

    verb: str
    thing: int = NOTHING
    other: int = NOTHING


class Situation(NamedTuple):
    """What a household allows: every command by its text, and the texts in order (without ``help``)."""

    commands: dict[str, Command]
    admissible: tuple[str, ...]


@lru_cache(maxsize=MOST_SITUATIONS)
def situation(game: Game, household: Household) -> Situation:
    """The commands that a household allows. The game sorts them as texts."""
    receptacle_names, object_names = game.receptacle_names, game.object_names
    held, here = household.held, game.receptacles_at[household.location]
    found = {text: Command(GO, receptacle) for text, receptacle in game.go_to[household.location]}
    found["look"] = Command(LOOK)
    found["inventory"] = Command(INVENTORY)
    if held != NOTHING:
        held_name, fitting = object_names[held], game.fitting[held]
        found[f"examine {held_name}"] = Command(EXAMINE_OBJECT, held)
    for receptacle in here:
        name, inside = receptacle_names[receptacle], household.contents[receptacle]
        accessible = game.accessible(household, receptacle)
        found[f"examine {name}"] = Command(EXAMINE_RECEPTACLE, receptacle)
        if receptacle in game.openable:
            verb = CLOSE if receptacle in household.opened else OPEN
            found[f"{verb} {name}"] = Command(verb, receptacle)
        for object_ in inside:
            if object_ in game.toggleable:
                found[f"use {object_names[object_]}"] = Command(USE, object_)
        if held == NOTHING:
            if accessible:
                for object_ in inside:
                    if object_ in game.pickupable:
                        found[f"take {object_names[object_]} from {name}"] = Command(
                            TAKE, object_, receptacle
                        )
        else:
            if accessible and receptacle in fitting:
                found[game.wording.move.fill({"o": held_name, "r": name})] = Command(MOVE, held, receptacle)
            appliances = game.appliances
            if receptacle in appliances[CLEAN] and held in game.cleanable:
                found[f"clean {held_name} with {name}"] = Command(CLEAN, held, receptacle)
            if receptacle in appliances[HEAT] and held in game.heatable:
                found[f"heat {held_name} with {name}"] = Command(HEAT, held, receptacle)
            if receptacle in appliances[COOL] and held in game.coolable:
                found[f"cool {held_name} with {name}"] = Command(COOL, held, receptacle)
    if held in game.knives:
        for object_ in game.sliceable:
            if household.location in household.lying[object_]:
                found[f"slice {object_names[object_]} with {held_name}"] = Command(SLICE, object_, held)
    admissible = tuple(sorted(found))
    if game.wording.help:
        found["help"] = Command(HELP)
    return Situation(found, admissible)
