"""Texts that agents see: ALFWorld's answers word for word, and the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from tstar_envs.envs.alfworld.commands import (
    EXAMINE_OBJECT,
    EXAMINE_RECEPTACLE,
    HELP,
    LOOK,
    SLICE,
    USE,
    Command,
)
from tstar_envs.envs.alfworld.game import NOTHING, Game, Household

NOTHING_HAPPENS = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
MIDDLE = "You are in the middle of a room. Looking quickly around you, you see {}."


def listed(names: Sequence[str]) -> str:
    """Format a list like the game.

    Examples are "nothing", "a mug 1", "a mug 2, and a mug 1", always with the article "a".
    """
    if not names:
        return "nothing"
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def intro(game: Game) -> str:
    """Word the first observation: welcome, surroundings, task."""
    if game.here(game.start):
        surroundings = _look(game, game.start)
    else:
        surroundings = MIDDLE.format(listed([f"a {game.receptacle_names[r]}" for r in game.reachable]))
    return f"{WELCOME}\n\n{surroundings}\n\n{game.task}"


def render(game: Game, household: Household, command: Command) -> str:
    """Word the answer to a command; ``household`` is the state after it."""
    verb, thing, _ = command
    if verb in game.wording.answers:
        return _answer(game, household, command)
    if verb == EXAMINE_RECEPTACLE:
        return _see(game, household, thing)
    if verb == USE:
        return f"You turn on the {game.object_names[thing]}."
    if verb == EXAMINE_OBJECT:
        return _examine(game, household, thing)
    if verb == LOOK:
        return _look(game, household)
    if verb == HELP:
        return game.wording.help
    return (
        f"You are carrying: a {game.object_names[household.held]}."
        if household.held != NOTHING
        else "You are not carrying anything."
    )


def _answer(game: Game, household: Household, command: Command) -> str:
    """Word the answer to an action, with the contents of the receptacle if the game shows them."""
    verb, thing, other = command
    answer = game.wording.answers[verb]
    if verb == SLICE:
        return answer.fill({"o": game.object_names[thing], "k": game.object_names[other]})
    receptacle = thing if other == NOTHING else other
    names = {"r": game.receptacle_names[receptacle], "l": game.location_names[household.location]}
    if other != NOTHING:
        names["o"] = game.object_names[thing]
    sentence = answer.fill(names)
    return f"{sentence} {_see(game, household, receptacle)}" if answer.contents else sentence


def _objects(game: Game, objects: Iterable[int]) -> str:
    return listed([f"a {game.object_names[o]}" for o in objects])


def _see(game: Game, household: Household, receptacle: int) -> str:
    name = game.receptacle_names[receptacle]
    if receptacle not in game.openable:
        return f"On the {name}, you see {_objects(game, household.contents[receptacle])}."
    if receptacle not in household.opened:
        return f"The {name} is closed."
    return f"The {name} is open. In it, you see {_objects(game, household.contents[receptacle])}."


def _look(game: Game, household: Household) -> str:
    here = game.here(household)
    if not here:
        # Only the intro lists the receptacles: later the game looks for those at the agent's location.
        return MIDDLE.format("nothing")
    beside = [
        o
        for o, places in enumerate(household.lying)
        if household.location in places
        for r in here
        if (o, r) in household.left
    ]
    return f"You are facing the {listed([game.receptacle_names[r] for r in here])}. Next to it, you see {_objects(game, beside)}."


def _examine(game: Game, household: Household, object_: int) -> str:
    name = game.object_names[object_]
    if object_ in game.holders:
        return f"This is a normal {name}. In it, you see {_objects(game, game.nested.get(object_, ()))}."
    clean, hot, cool, sliced = (
        object_ in mark for mark in (household.clean, household.hot, household.cool, household.sliced)
    )
    if sliced and (clean or hot or cool):
        marks = (
            "hot and clean"
            if clean and hot
            else "cool and clean"
            if clean and cool
            else "clean"
            if clean
            else "hot"
            if hot
            else "cool"
        )
        return f"This is a {marks} sliced {name}."
    if clean or hot or cool:
        marks = (
            "hot and clean"
            if clean and hot
            else "cool and clean"
            if clean and cool
            else "hot"
            if hot
            else "clean"
            if clean
            else "cold"
        )
        return f"This is a {marks} {name}."
    if object_ in game.toggleable and object_ in household.toggled:
        return f"This {name} is on."
    if object_ in game.sliceable and sliced:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


_TASK = (
    "You are in a room of a house and carry out a household task by commands. Receptacles (cabinets, tables, a fridge, ...) hold objects; "
    "you hold at most one object. What is in a closed receptacle shows only after you open it."
)
_COMMANDS = (
    "go to R: walk to receptacle R; you see what is in or on it",
    "open R, close R: a receptacle at hand",
    "take O from R: object O, from an open receptacle at hand, with an empty hand",
    "move O to R: put the object that you hold in or on R (the same as: put O in/on R)",
    "clean O with sinkbasin N, heat O with microwave N, cool O with fridge N: an object that you hold, at that receptacle",
    "slice O with K: an object at hand with a knife K that you hold",
    "use O: turn on a lamp at hand",
    "examine X, look, inventory: look at things again; they change nothing",
)
_MOVE, _PUT = _COMMANDS[3], "put O in/on R: the object that you hold"
_FORMS = {
    "react": "In each turn write one thought and one action:\nThought: what you know and what you do next\nAction: one of\n{commands}",
    "tags": "In each turn reason inside <think> and </think>, then write one action inside <action> and </action>:\n{commands}",
}


@lru_cache(maxsize=16)
def prompt(style: str, horizon: int, put: bool = False) -> str:
    """Write the prompt: rules and action grammar; ``put`` uses the wording of old games."""
    commands = "\n".join(f"  {_PUT if put and line is _MOVE else line}" for line in _COMMANDS)
    end = (
        'Things are called by kind and number: mug 2, cabinet 1. A command that is not possible is answered by "Nothing happens." and '
        f"costs a turn. You have {horizon} turns."
    )
    return f"{_TASK}\n{_FORMS[style].format(commands=commands)}\n{end}"
