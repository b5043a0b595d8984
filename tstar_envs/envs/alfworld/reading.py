"""From what an agent types to a command: exact texts, old forms of them, and why a command is refused."""

from __future__ import annotations

import re
from typing import NamedTuple

from tstar_envs.envs.alfworld.game import NOTHING, Game, State
from tstar_envs.envs.alfworld.rules import APPLIANCES, CHANGING, Command, situation

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
_LONGEST = 200  # characters; the longest command has some 50
_ABLE = {"clean": "cleaned", "heat": "heated", "cool": "cooled"}


class Reading(NamedTuple):
    """What was typed, understood: the command, None if it cannot be done; its canonical text, "" if there is none; and why not."""

    command: Command | None
    text: str
    refusal: str


def read_command(game: Game, state: State, typed: str, strict: bool = False) -> Reading:
    """Understand a command.

    Args:
        game: in which game.
        state: where the agent stands.
        typed: any string.
        strict: only exact commands count, as in the original; otherwise case and white space do not matter, and ``put O in/on R`` is
            the same as ``move O to R``, whichever the game says.
    """
    commands = situation(game, state).commands
    exact = typed.strip()
    if exact in commands:
        return Reading(commands[exact], exact, "")
    plain = " ".join(exact.lower().split()) if len(exact) <= _LONGEST else ""
    form = _form(plain)
    if form is None:
        usage = USAGE.format(move=game.wording.move.said({"o": "O", "r": "R"}))
        return Reading(None, "", f"{exact!a:.80} is no command; there are: {usage}")
    verb, *arguments = form
    canonical = game.wording.move.said({"o": arguments[0], "r": arguments[1]}) if verb == "move" else plain
    if canonical in commands:
        if not strict:
            return Reading(commands[canonical], canonical, "")
        return Reading(None, "", f"{exact!a:.80} is not written exactly as the game wants it: {canonical}")
    return Reading(None, canonical, _refusal(game, state, verb, *arguments))


def _form(plain: str) -> tuple[str, ...] | None:
    for verb, pattern in _FORMS:
        match = pattern.fullmatch(plain)
        if match is not None:
            return verb, *(argument for argument in match.groups() if argument)
    return None


def can_change(action: str) -> bool:
    """Whether a command of this form can change anything."""
    form = _form(" ".join(action.lower().split()) if len(action) <= _LONGEST else "")
    return form is not None and form[0] in CHANGING


def _refusal(game: Game, state: State, verb: str, *names: str) -> str:
    """Why a well-formed command cannot be done."""
    for name in names:
        if name not in game.numbers:
            return f"there is no {name!a:.60} here"
    things = [game.numbers[name] for name in names]
    if verb in ("help", "look", "inventory"):
        return f"this game does not know {verb}"
    held = game.object_names[state.held] if state.held != NOTHING else ""
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
            if game.location_of[place] == state.location
            else f"{names[0]} cannot be reached"
        )
    if place != NOTHING and place not in game.here(state):
        return f"you are not at {game.receptacle_names[place]}; go there first"
    return _refusal_here(game, state, verb, names, things[0][1], place, held)


def _refusal_here(
    game: Game, state: State, verb: str, names: tuple[str, ...], thing: int, place: int, held: str
) -> str:
    """The same, for things of the right sorts and a receptacle at hand."""
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
        if not game.accessible(state, place):
            return f"{names[1]} is closed; open it first"
        return (
            f"{names[0]} is not in or on {names[1]}"
            if thing not in state.contents[place]
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
            if not game.accessible(state, place)
            else f"{names[1]} does not take {names[0]}"
        )
    if game.receptacle_kinds[place] != APPLIANCES[verb]:
        return f"to {verb} something you need a {APPLIANCES[verb]}, and {names[1]} is none"
    return f"{names[0]} cannot be {_ABLE[verb]}"
