"""The experts' thoughts, each in four wordings."""

from __future__ import annotations

import re

from tstar_envs.envs.alfworld.game.commands import (
    CLEAN,
    COOL,
    EXAMINE_RECEPTACLE,
    GO,
    HEAT,
    MOVE,
    OPEN,
    TAKE,
    USE,
    Command,
)
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.planner import Errand
from tstar_envs.envs.alfworld.state import Household

WORDINGS = 4
_SENTENCE = re.compile(r"(?:^|(?<=\. ))[a-z]")
# {x}: the object, {k}: its kind, {r}: the receptacle, {v}: what is done with the object, {n}: "a" or "another"
_THOUGHTS: dict[str, tuple[str, str, str, str]] = {
    # What is wanted is named before anything is said of where it is: who reads on from the name finds it in what is seen, or does not.
    "go to look for it": (
        "I need {n} {k} and see none. {r} is a likely place for one, so I go there.",
        "I look for {n} {k}: none here. I try {r} next.",
        "{n} {k} is not in sight. It may well be in or on {r}: I go and see.",
        "To get {n} {k}, which is not here, I go to {r}.",
    ),
    "open to look for it": (
        "I need {n} {k} and {r} is closed. One may be in it: I open it.",
        "I look for {n} {k}: {r} is closed, so I open it.",
        "{n} {k} may be inside {r}, which is closed. I open it.",
        "To get {n} {k}, perhaps, I open {r}, which is closed.",
    ),
    "examine to look for it": (
        "I need {n} {k} and have not seen what {r} holds, which is here. I look at it.",
        "I look for {n} {k}: {r} is here as well, so I look at it.",
        "{n} {k} may be in or on {r}, which is here too. I look.",
        "To get {n} {k}, perhaps, I look at {r}, which is here.",
    ),
    TAKE: (
        "I need {n} {k} and here is {x}. I take it from {r}.",
        "I look for {n} {k}: {x} is here, so I take it.",
        "{n} {k} is here: {x}. I pick it up.",
        "To get {n} {k} I take {x}, which is here.",
    ),
    "go to treat it": (
        "I have {x}. To {v} it I go to {r}.",
        "{x} must be treated first: I go to {r} to {v} it.",
        "With {r} I can {v} {x}, so I go there.",
        "Next I {v} {x}, which needs {r}.",
    ),
    CLEAN: (
        "I am at {r}, so I clean {x}.",
        "{x} has to be clean: I use {r}.",
        "Now I clean {x}.",
        "With {r} at hand I clean {x}.",
    ),
    HEAT: (
        "I am at {r}, so I heat {x}.",
        "{x} has to be hot: I use {r}.",
        "Now I heat {x}.",
        "With {r} at hand I heat {x}.",
    ),
    COOL: (
        "I am at {r}, so I cool {x}.",
        "{x} has to be cool: I use {r}.",
        "Now I cool {x}.",
        "With {r} at hand I cool {x}.",
    ),
    "go to place it": (
        "{x} is ready, and it belongs to {r}. I go there.",
        "I bring {x} to {r}.",
        "Next, {r} is where {x} has to be.",
        "With {x} in my hand I go to {r}.",
    ),
    "open to place it": (
        "{r} is closed, so I open it before I put {x} there.",
        "To put {x} in {r} I open it.",
        "First {r} has to be open.",
        "I open {r} for {x}.",
    ),
    MOVE: (
        "{x} belongs to {r}: I put it there.",
        "I am at {r} and have {x}, so I put it down.",
        "This is the place for {x}.",
        "I put {x} to {r}.",
    ),
    "go to the light": (
        "I have {x} and need a {l}: none here. {r} may have one.",
        "To see {x} I need a {l}, which is not here. I go to {r}.",
        "{x} is in my hand. A {l} is not in sight, but {r} is a likely place for one.",
        "Next I need a {l} for {x} and see none: I try {r}.",
    ),
    "open to the light": (
        "I have {x} and need a {l}: none here. {r} is closed, so I open it.",
        "To see {x} I need a {l}. {r} is closed: I open it.",
        "{x} is in my hand. A {l} may be inside {r}, which is closed.",
        "Next I need a {l} for {x} and see none: I open {r}.",
    ),
    "examine to the light": (
        "I have {x} and need a {l}. {r} is here as well: I look at it.",
        "To see {x} I need a {l}, and I have not seen what {r} holds.",
        "{x} is in my hand. A {l} may be on {r}, which is here too.",
        "Next I need a {l} for {x}: I look at {r}.",
    ),
    USE: (
        "I have {x} and need a {l}: here is one. I turn it on.",
        "To see {x} I need a {l} and use the one here.",
        "{x} is in my hand. A {l} is here: I turn it on.",
        "Next I need a {l} for {x} and here is one: I use it.",
    ),
    "go to put it away": (
        "I do not need {x}. I go to {r} to put it away.",
        "{x} is of no use here: {r} can have it.",
        "My hand must be free, so I take {x} to {r}.",
        "{x} has to go, and {r} is a place for it.",
    ),
    "open to put it away": (
        "I do not need {x}, so I open {r} to put it away.",
        "{r} is closed; I open it to get rid of {x}.",
        "To put {x} away I open {r}.",
        "I open {r}, where {x} can go.",
    ),
    "put it away": (
        "I do not need {x}, so I put it to {r}.",
        "My hand must be free: {x} goes to {r}.",
        "I put {x} away.",
        "{x} is not what I need. I leave it here.",
    ),
}


def thought(
    game: Game, household: Household, errands: tuple[Errand, ...], command: Command, wording: int
) -> str:
    """What is thought before a command, the first of some errands."""
    errand = errands[0]
    going = {GO: "go to", OPEN: "open to", EXAMINE_RECEPTACLE: "examine to"}.get(command.verb, "")
    placing = (
        errand.thing in game.targets and not game.goal.lamp_kind and errand.receptacle in game.destinations
    )
    if errand.verb == MOVE and not placing:
        key = f"{going} put it away".strip()
    elif errand.verb in ("", USE):
        key = f"{going} the light" if going else USE
    elif not going:
        key = errand.verb
    else:
        key = (
            f"{going} {'look for' if errand.verb == TAKE else 'place' if errand.verb == MOVE else 'treat'} it"
        )
    goal = game.goal
    thing = errand.thing if errand.verb not in ("", USE) else household.held
    again = goal.count == 2 and any(set(game.targets) & set(household.contents[r]) for r in game.destinations)
    text = _THOUGHTS[key][wording].format(
        x=f"the {game.object_names[thing]}",
        k=goal.object_kind,
        r=f"the {game.receptacle_names[errand.receptacle]}",
        v=errand.verb,
        n="another" if again else "an" if goal.object_kind[0] in "aeiou" else "a",
        l=goal.lamp_kind,
    )
    return _SENTENCE.sub(lambda start: start[0].upper(), text)
