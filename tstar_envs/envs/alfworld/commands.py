"""Commands: admissible commands, parsing, transitions."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tstar_envs.envs.alfworld.game import NOTHING, Game, Household, Seen

GO, OPEN, CLOSE, TAKE, MOVE, USE = "go", "open", "close", "take", "move", "use"
CLEAN, HEAT, COOL, SLICE = "clean", "heat", "cool", "slice"
EXAMINE_RECEPTACLE, EXAMINE_OBJECT, LOOK, INVENTORY, HELP = (
    "examine receptacle",
    "examine object",
    "look",
    "inventory",
    "help",
)
# Verbs that can change the world or the agent's location; the others only inform.
CHANGING = frozenset({GO, OPEN, CLOSE, TAKE, MOVE, USE, CLEAN, HEAT, COOL, SLICE})
MOST_SITUATIONS = 4096  # cached per process


class Command(NamedTuple):
    """Parsed command.

    Attributes:
        verb: one of the constants of this module.
        thing: a receptacle for ``go``, ``open``, ``close`` and ``examine receptacle``, else an object.
        other: the source, target or appliance receptacle; the knife for ``slice``.
    """

    verb: str
    thing: int = NOTHING
    other: int = NOTHING


class Situation(NamedTuple):
    """Admissible commands of a household: by text, and as ordered texts (without ``help``)."""

    commands: dict[str, Command]
    admissible: tuple[str, ...]


@lru_cache(maxsize=MOST_SITUATIONS)
def situation(game: Game, household: Household) -> Situation:
    """List the admissible commands of a household, sorted by text like the game's."""
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


def transition(game: Game, household: Household, command: Command) -> Household:
    """Apply an admissible command; returns the same object if nothing changes."""
    verb, thing, other = command
    if verb == GO:
        return household._replace(location=game.location_of[thing])
    if verb == OPEN:
        return household._replace(opened=household.opened | {thing})
    if verb == CLOSE:
        return household._replace(opened=household.opened - {thing})
    if verb == TAKE:
        return household._replace(
            held=thing,
            contents=_replaced(
                household.contents, other, tuple([o for o in household.contents[other] if o != thing])
            ),
            lying=_replaced(
                household.lying,
                thing,
                tuple([place for place in household.lying[thing] if place != household.location]),
            ),
            left=household.left | {(thing, other)},
        )
    if verb == MOVE:
        return household._replace(
            held=NOTHING,
            contents=_replaced(household.contents, other, tuple(sorted({*household.contents[other], thing}))),
            lying=_replaced(
                household.lying, thing, tuple(sorted({*household.lying[thing], household.location}))
            ),
            left=household.left - {(thing, other)},
        )
    if verb == CLEAN:
        return household if thing in household.clean else household._replace(clean=household.clean | {thing})
    if verb == HEAT:
        return (
            household
            if thing in household.hot and thing not in household.cool
            else household._replace(hot=household.hot | {thing}, cool=household.cool - {thing})
        )
    if verb == COOL:
        return (
            household
            if thing in household.cool and thing not in household.hot
            else household._replace(cool=household.cool | {thing}, hot=household.hot - {thing})
        )
    if verb == USE:
        # The domain also toggles "isOn", which nothing reads: using a lamp again has no visible effect.
        return (
            household
            if thing in household.toggled
            else household._replace(toggled=household.toggled | {thing})
        )
    if verb == SLICE:
        return (
            household if thing in household.sliced else household._replace(sliced=household.sliced | {thing})
        )
    return household


def _replaced(
    rows: tuple[tuple[int, ...], ...], number: int, row: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    return (*rows[:number], row, *rows[number + 1 :])


def effect_key(game: Game, command: Command) -> str:
    """Describe the change of a command, independent of the knife or appliance used."""
    verb, thing, other = command
    if verb in (GO, OPEN, CLOSE):
        return f"{verb} {game.receptacle_names[thing]}"
    if verb in (TAKE, MOVE):
        return f"{verb} {game.object_names[thing]} {'from' if verb == TAKE else 'to'} {game.receptacle_names[other]}"
    return f"{verb} {game.object_names[thing]}"


def fingerprint(game: Game, household: Household) -> str:
    """Compute the state key of a household: its differences from the start of the game."""
    start = game.start
    contents = [
        (r, now)
        for r, (now, then) in enumerate(zip(household.contents, start.contents, strict=True))
        if now is not then and now != then
    ]
    lying = [
        (o, now)
        for o, (now, then) in enumerate(zip(household.lying, start.lying, strict=True))
        if now is not then and now != then
    ]
    marks = [sorted(mark) for mark in household[4:]]
    return f"{household.location} {household.held} {contents} {lying} {marks}"


_ABLE = {"clean": "cleaned", "heat": "heated", "cool": "cooled"}


def invalid_reason(game: Game, household: Household, verb: str, *names: str) -> str:
    """Explain why a well-formed command is not possible."""
    for name in names:
        if name not in game.numbers:
            return f"there is no {name!a:.60} here"
    things = [game.numbers[name] for name in names]
    if verb in ("help", "look", "inventory"):
        return f"this game does not know {verb}"
    held = game.object_names[household.held] if household.held != NOTHING else ""
    kinds = [kind for kind, _ in things]
    wanted = {
        "go": ["receptacle"],
        "open": ["receptacle"],
        "close": ["receptacle"],
        "use": ["object"],
        "slice": ["object", "object"],
        "examine": kinds,
    }.get(verb, ["object", "receptacle"])
    for name, kind, right in zip(names, kinds, wanted, strict=True):
        if kind != right:
            return f"{name} is {'a receptacle, not an object' if kind == 'receptacle' else 'an object, not a receptacle'}"
    place = next((number for kind, number in things if kind == "receptacle"), NOTHING)
    if verb == "go":
        return (
            f"you are at {names[0]} already"
            if game.location_of[place] == household.location
            else f"{names[0]} cannot be reached"
        )
    if place != NOTHING and place not in game.here(household):
        return f"you are not at {game.receptacle_names[place]}; go there first"
    return _invalid_reason_here(game, household, verb, names, things[0][1], place, held)


def _invalid_reason_here(
    game: Game, household: Household, verb: str, names: tuple[str, ...], thing: int, place: int, held: str
) -> str:
    """Explain an impossible command if all things have the right type and the receptacle is here."""
    if verb in ("open", "close"):
        if place not in game.openable:
            return f"{names[0]} cannot be opened or closed"
        return f"{names[0]} is {'open' if verb == 'open' else 'closed'} already"
    if verb == "examine":
        return f"you can examine an object only while you hold it; you hold {held or 'nothing'}"
    if verb == "use":
        if thing not in game.toggleable:
            return f"{names[0]} has no switch"
        return f"{names[0]} is not here"
    if verb == "take":
        if held:
            return f"your hand holds {held}; put it down first"
        if not game.accessible(household, place):
            return f"{names[1]} is closed; open it first"
        return (
            f"{names[0]} is not in or on {names[1]}"
            if thing not in household.contents[place]
            else f"{names[0]} cannot be picked up"
        )
    if verb == "slice":
        if names[1] != held:
            return f"you do not hold {names[1]}"
        if game.numbers[names[1]][1] not in game.knives:
            return f"{names[1]} is no knife"
        return (
            f"{names[0]} cannot be sliced" if thing not in game.sliceable else f"{names[0]} does not lie here"
        )
    if names[0] != held:
        return f"you do not hold {names[0]}; you hold {held or 'nothing'}"
    if verb == "move":
        return (
            f"{names[1]} is closed; open it first"
            if not game.accessible(household, place)
            else f"{names[1]} does not take {names[0]}"
        )
    if place not in game.appliances[verb]:
        here = {game.receptacle_types[receptacle] for receptacle in game.appliances[verb]}
        wanted = " or ".join(sorted(here or game.tools[verb]))
        return f"to {verb} something you need a {wanted}, and {names[1]} is none"
    return f"{names[0]} cannot be {_ABLE[verb]}"


USAGE = (
    "go to R, open R, close R, take O from R, {move}, examine X, use O, clean O with R, heat O with R, cool O with R, slice O with O, "
    "look, inventory, help"
)
_FORMS = (
    ("go", re.compile(r"go to (.+)")),
    ("open", re.compile(r"open (.+)")),
    ("close", re.compile(r"close (.+)")),
    ("take", re.compile(r"take (.+?) from (.+)")),
    ("move", re.compile(r"(?:put|move) (.+?) (?:in/on|into|onto|in|on|to) (.+)")),
    ("examine", re.compile(r"examine (.+)")),
    ("use", re.compile(r"use (.+)")),
    ("clean", re.compile(r"clean (.+?) with (.+)")),
    ("heat", re.compile(r"heat (.+?) with (.+)")),
    ("cool", re.compile(r"cool (.+?) with (.+)")),
    ("slice", re.compile(r"slice (.+?) with (.+)")),
    ("look", re.compile(r"look()")),
    ("inventory", re.compile(r"inventory()")),
    ("help", re.compile(r"help()")),
)
_LONGEST = 200  # characters; the longest command has about 50


class ParsedCommand(NamedTuple):
    """Parsed text of an agent.

    Attributes:
        command: the command, None if it is not possible.
        text: its canonical text, "" if it is not a command.
        invalid_reason: why it is not possible, "" if it is.
    """

    command: Command | None
    text: str
    invalid_reason: str


def parse_command(game: Game, household: Household, typed: str, strict: bool = False) -> ParsedCommand:
    """Parse a command.

    Args:
        game: the game.
        household: current state of the household.
        typed: any string.
        strict: True accepts only exact commands, as in the original; otherwise case and white space are ignored, and
            ``put O in/on R`` means the same as ``move O to R``.
    """
    commands = situation(game, household).commands
    exact = typed.strip()
    if exact in commands:
        return ParsedCommand(commands[exact], exact, "")
    plain = " ".join(exact.lower().split()) if len(exact) <= _LONGEST else ""
    form = _form(plain)
    if form is None:
        usage = USAGE.format(move=game.wording.move.fill({"o": "O", "r": "R"}))
        return ParsedCommand(None, "", f"{exact!a:.80} is no command; there are: {usage}")
    verb, *arguments = form
    canonical = game.wording.move.fill({"o": arguments[0], "r": arguments[1]}) if verb == "move" else plain
    if canonical in commands:
        if not strict:
            return ParsedCommand(commands[canonical], canonical, "")
        return ParsedCommand(
            None, "", f"{exact!a:.80} is not written exactly as the game wants it: {canonical}"
        )
    return ParsedCommand(None, canonical, invalid_reason(game, household, verb, *arguments))


def _form(plain: str) -> tuple[str, ...] | None:
    for verb, pattern in _FORMS:
        match = pattern.fullmatch(plain)
        if match is not None:
            return verb, *(argument for argument in match.groups() if argument)
    return None


def can_change(action: str) -> bool:
    """Check whether a command of this form can change the state."""
    form = _form(" ".join(action.lower().split()) if len(action) <= _LONGEST else "")
    return form is not None and form[0] in CHANGING


def seen_after(game: Game, household: Household, command: Command, seen: Seen) -> Seen:
    """Update the set of seen receptacles after a command; ``household`` is the state after it."""
    verb, receptacle, _ = command
    if (
        verb not in (GO, OPEN, EXAMINE_RECEPTACLE)
        or receptacle in seen
        or not game.accessible(household, receptacle)
    ):
        return seen
    return seen | {receptacle} if verb == EXAMINE_RECEPTACLE or game.wording.answers[verb].contents else seen
