"""Rules of the household: pure functions (game, state, command) -> state, equal to those of the PDDL domain ``alfred``.

They keep its peculiarities: heating, cooling and cleaning need the appliance at hand but not open; receptacles never fill up; an
object can be examined only while it is held; a lamp once turned on counts as on for good; slicing asks for the object to lie at the
agent's location, in whatever it is. Texts are the business of ``feedback``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from tstar_envs.envs.alfworld.game import NOTHING, Game, State

GO, OPEN, CLOSE, TAKE, MOVE, USE = "go", "open", "close", "take", "move", "use"
CLEAN, HEAT, COOL, SLICE = "clean", "heat", "cool", "slice"
EXAMINE_RECEPTACLE, EXAMINE_OBJECT, LOOK, INVENTORY, HELP = (
    "examine receptacle",
    "examine object",
    "look",
    "inventory",
    "help",
)
# What can change the world or the agent's place in it; the others only tell.
CHANGING = frozenset({GO, OPEN, CLOSE, TAKE, MOVE, USE, CLEAN, HEAT, COOL, SLICE})
APPLIANCES = {CLEAN: "sinkbasin", HEAT: "microwave", COOL: "fridge"}
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
    """What a state allows: every command by its text, and the texts in order (without ``help``)."""

    commands: dict[str, Command]
    admissible: tuple[str, ...]


@lru_cache(maxsize=MOST_SITUATIONS)
def situation(game: Game, state: State) -> Situation:
    """The commands that a state allows. The game sorts them as texts."""
    receptacle_names, object_names = game.receptacle_names, game.object_names
    held, here = state.held, game.receptacles_at[state.location]
    found = {text: Command(GO, receptacle) for text, receptacle in game.go_to[state.location]}
    found["look"] = Command(LOOK)
    found["inventory"] = Command(INVENTORY)
    if held != NOTHING:
        held_name, fitting = object_names[held], game.fitting[held]
        found[f"examine {held_name}"] = Command(EXAMINE_OBJECT, held)
    for receptacle in here:
        name, inside = receptacle_names[receptacle], state.contents[receptacle]
        accessible = game.accessible(state, receptacle)
        found[f"examine {name}"] = Command(EXAMINE_RECEPTACLE, receptacle)
        if receptacle in game.openable:
            verb = CLOSE if receptacle in state.opened else OPEN
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
                found[game.wording.move.said({"o": held_name, "r": name})] = Command(MOVE, held, receptacle)
            kind = game.receptacle_kinds[receptacle]
            if kind == "sinkbasin" and held in game.cleanable:
                found[f"clean {held_name} with {name}"] = Command(CLEAN, held, receptacle)
            elif kind == "microwave" and held in game.heatable:
                found[f"heat {held_name} with {name}"] = Command(HEAT, held, receptacle)
            elif kind == "fridge" and held in game.coolable:
                found[f"cool {held_name} with {name}"] = Command(COOL, held, receptacle)
    if held in game.knives:
        for object_ in game.sliceable:
            if state.location in state.lying[object_]:
                found[f"slice {object_names[object_]} with {held_name}"] = Command(SLICE, object_, held)
    admissible = tuple(sorted(found))
    if game.wording.help:
        found["help"] = Command(HELP)
    return Situation(found, admissible)


def apply(game: Game, state: State, command: Command) -> State:
    """The state after a command that the state allows; the same object if nothing changes."""
    verb, thing, other = command
    if verb == GO:
        return state._replace(location=game.location_of[thing])
    if verb == OPEN:
        return state._replace(opened=state.opened | {thing})
    if verb == CLOSE:
        return state._replace(opened=state.opened - {thing})
    if verb == TAKE:
        return state._replace(
            held=thing,
            contents=_replaced(
                state.contents, other, tuple([o for o in state.contents[other] if o != thing])
            ),
            lying=_replaced(
                state.lying, thing, tuple([place for place in state.lying[thing] if place != state.location])
            ),
            left=state.left | {(thing, other)},
        )
    if verb == MOVE:
        return state._replace(
            held=NOTHING,
            contents=_replaced(state.contents, other, tuple(sorted({*state.contents[other], thing}))),
            lying=_replaced(state.lying, thing, tuple(sorted({*state.lying[thing], state.location}))),
            left=state.left - {(thing, other)},
        )
    if verb == CLEAN:
        return state if thing in state.clean else state._replace(clean=state.clean | {thing})
    if verb == HEAT:
        return (
            state
            if thing in state.hot and thing not in state.cool
            else state._replace(hot=state.hot | {thing}, cool=state.cool - {thing})
        )
    if verb == COOL:
        return (
            state
            if thing in state.cool and thing not in state.hot
            else state._replace(cool=state.cool | {thing}, hot=state.hot - {thing})
        )
    if verb == USE:
        # The domain also flips a mark "isOn", which nothing reads: using a lamp again changes nothing that can be seen.
        return state if thing in state.toggled else state._replace(toggled=state.toggled | {thing})
    if verb == SLICE:
        return state if thing in state.sliced else state._replace(sliced=state.sliced | {thing})
    return state


def _replaced(
    rows: tuple[tuple[int, ...], ...], number: int, row: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    return (*rows[:number], row, *rows[number + 1 :])


def effect_key(game: Game, command: Command) -> str:
    """What a command changed, in words: the same for the same change, whichever knife or appliance made it."""
    verb, thing, other = command
    if verb in (GO, OPEN, CLOSE):
        return f"{verb} {game.receptacle_names[thing]}"
    if verb in (TAKE, MOVE):
        return f"{verb} {game.object_names[thing]} {'from' if verb == TAKE else 'to'} {game.receptacle_names[other]}"
    return f"{verb} {game.object_names[thing]}"


def fingerprint(game: Game, state: State) -> str:
    """Text that is equal exactly for equal states of one game: what differs from its start."""
    start = game.start
    contents = [
        (r, now)
        for r, (now, then) in enumerate(zip(state.contents, start.contents, strict=True))
        if now is not then and now != then
    ]
    lying = [
        (o, now)
        for o, (now, then) in enumerate(zip(state.lying, start.lying, strict=True))
        if now is not then and now != then
    ]
    marks = [sorted(mark) for mark in state[4:]]
    return f"{state.location} {state.held} {contents} {lying} {marks}"
