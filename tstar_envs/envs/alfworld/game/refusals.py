"""Why a well-formed command cannot be done."""

from __future__ import annotations

from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.state import NOTHING, Household

_ABLE = {"clean": "cleaned", "heat": "heated", "cool": "cooled"}


def refusal(game: Game, household: Household, verb: str, *names: str) -> str:
    """Why a well-formed command cannot be done."""
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
    return _refusal_here(game, household, verb, names, things[0][1], place, held)


def _refusal_here(
    game: Game, household: Household, verb: str, names: tuple[str, ...], thing: int, place: int, held: str
) -> str:
    """The reason for a refusal where the things are of the right sorts and a receptacle is at hand."""
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
        here = {game.receptacle_kinds[receptacle] for receptacle in game.appliances[verb]}
        wanted = " or ".join(sorted(here or game.tools[verb]))
        return f"to {verb} something you need a {wanted}, and {names[1]} is none"
    return f"{names[0]} cannot be {_ABLE[verb]}"
