"""Expert policies: an optimal planner that knows the household, and one that searches like an agent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from tstar_envs.envs.alfworld.commands import (
    CLEAN,
    COOL,
    EXAMINE_RECEPTACLE,
    GO,
    HEAT,
    HELP,
    MOVE,
    OPEN,
    TAKE,
    USE,
    Command,
    situation,
    transition,
)
from tstar_envs.envs.alfworld.game import NOTHING, Game, Household, Seen, marked_objects
from tstar_envs.utils import StableRandom

_TREATMENT = {"isclean": CLEAN, "ishot": HEAT, "iscool": COOL}


class Errand(NamedTuple):
    """Stop of a plan.

    Its fields are the location, whether the receptacle must be open, the verb ("" for only going there) and the object.
    """

    receptacle: int
    needs_open: bool
    verb: str
    thing: int


Errands = tuple[Errand, ...]


@lru_cache(maxsize=8192)
def plan(game: Game, household: Household) -> Errands | None:
    """Plan the errands of a shortest solution.

    Empty if the game is won, None if it cannot be won.
    """
    if game.won(household):
        return ()
    best: Errands | None = None
    best_price = 1 << 30
    for errands in _ways(game, household):
        paid = price(game, household, errands)
        if paid < best_price:
            best, best_price = errands, paid
    return best


def price(game: Game, household: Household, errands: Errands) -> int:
    """Count the steps of errands from the current state."""
    steps, location, opened = 0, household.location, set(household.opened)
    for receptacle, needs_open, verb, _ in errands:
        there = game.location_of[receptacle]
        if there != location:
            steps, location = steps + 1, there
        if needs_open and receptacle in game.openable and receptacle not in opened:
            steps += 1
            opened.add(receptacle)
        steps += verb != ""
    return steps


def distance(game: Game, household: Household) -> int | None:
    """Count the steps of a shortest solution; None if there is none."""
    errands = plan(game, household)
    return None if errands is None else price(game, household, errands)


def first_command(game: Game, household: Household, errands: Errands) -> tuple[Command, str]:
    """Get the first command of errands, parsed and as text."""
    receptacle, needs_open, verb, thing = errands[0]
    if game.location_of[receptacle] != household.location:
        command = Command(GO, receptacle)
    elif needs_open and not game.accessible(household, receptacle):
        command = Command(OPEN, receptacle)
    else:
        command = Command(verb, thing) if verb == USE else Command(verb, thing, receptacle)
    return command, text_of(game, household, command)


def text_of(game: Game, household: Household, command: Command) -> str:
    """Get the text of an admissible command."""
    return next(text for text, other in situation(game, household).commands.items() if other == command)


def _ways(game: Game, household: Household) -> Iterator[Errands]:
    """Generate candidate plans that include a shortest solution."""
    for errands in _looking(game, household) if game.goal.lamp_kind else _placing(game, household):
        yield from with_free_hand(game, household, errands)


def with_free_hand(game: Game, household: Household, errands: Errands) -> Iterator[Errands]:
    """Put down the held object first, unless the plan moves it before taking anything else."""
    handled = next((errand.verb for errand in errands if errand.verb in (TAKE, MOVE)), MOVE)
    if household.held == NOTHING or handled == MOVE:
        yield errands
    else:
        for receptacle in _places_to_drop(game, household, errands):
            yield (Errand(receptacle, True, MOVE, household.held), *errands)


def _fetching(game: Game, household: Household, thing: int) -> Iterator[Errands]:
    """Generate errands that take an object with an empty hand."""
    if thing == household.held:
        yield ()
    elif thing in game.pickupable:
        for receptacle in game.reachable:
            if thing in household.contents[receptacle]:
                yield (Errand(receptacle, True, TAKE, thing),)


def _placing(game: Game, household: Household) -> Iterator[Errands]:
    goal = game.goal
    marks = {mark: marked_objects(household, mark) for mark in goal.marks}
    bringing: dict[int, list[Errands]] = {}
    for thing in game.targets:
        ways: list[Errands] = list(_fetching(game, household, thing))
        for mark, marked in marks.items():
            if thing not in marked:
                verb = _TREATMENT[mark]
                tools = [r for r in reversed(game.reachable) if r in game.appliances[verb]]
                ways = [(*way, Errand(tool, False, verb, thing)) for way in ways for tool in tools]
        bringing[thing] = ways
    for destination in reversed(game.destinations):
        if game.location_of[destination] == NOTHING:
            continue
        ready = [
            o
            for o in game.targets
            if o in household.contents[destination] and all(o in marked for marked in marks.values())
        ]
        movable = [o for o in game.targets if o not in ready and destination in game.fitting[o]]
        for chosen in permutations(movable, goal.count - len(ready)):
            if household.held in chosen[1:]:
                continue  # the held object comes first
            tours: list[Errands] = [()]
            for thing in chosen:
                end = Errand(destination, True, MOVE, thing)
                tours = [(*tour, *way, end) for tour in tours for way in bringing[thing]]
            yield from tours


def _looking(game: Game, household: Household) -> Iterator[Errands]:
    for lamp in reversed(game.destinations):
        for receptacle in game.reachable:
            if lamp in household.contents[receptacle]:
                lit = Errand(receptacle, False, "" if lamp in household.toggled else USE, lamp)
                for thing in game.targets:
                    for way in _fetching(game, household, thing):
                        yield (*way, lit)


def _places_to_drop(game: Game, household: Household, errands: Errands) -> list[int]:
    """List places to put down the held object.

    These are every stop, and the cheapest place here, at the next stop and elsewhere.
    """
    found: dict[tuple[bool, bool], int] = {}
    next_stop = game.location_of[errands[0].receptacle]
    takers = game.fitting[household.held]
    for receptacle in sorted(takers, key=lambda r: (not game.accessible(household, r), -r)):
        location = game.location_of[receptacle]
        if location != NOTHING:
            found.setdefault((location == household.location, location == next_stop), receptacle)
    stops = [errand.receptacle for errand in errands if errand.receptacle in takers]
    return list(dict.fromkeys([*found.values(), *stops]))


WORDINGS = 4
_SENTENCE = re.compile(r"(?:^|(?<=\. ))[a-z]")
# {x}: the object, {k}: its type, {r}: the receptacle, {v}: the verb, {n}: "a" or "another"
_THOUGHTS: dict[str, tuple[str, str, str, str]] = {
    # The object is named before its place, so that a policy can check the name against what it sees.
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
    game: Game, household: Household, errands: tuple[Errand, ...], command: Command, paraphrase: int
) -> str:
    """Word the thought before the first command of errands."""
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
    text = _THOUGHTS[key][paraphrase].format(
        x=f"the {game.object_names[thing]}",
        k=goal.object_kind,
        r=f"the {game.receptacle_names[errand.receptacle]}",
        v=errand.verb,
        n="another" if again else "an" if goal.object_kind[0] in "aeiou" else "a",
        l=goal.lamp_kind,
    )
    return _SENTENCE.sub(lambda start: start[0].upper(), text)


_TRIES = 12
_SEEING_WHAT_IS_NOT_THERE = 0.15
_LOOKING_ELSEWHERE = 0.75
_MISTAKES = ("I try this: {a}.", "Perhaps it helps to {a}.", "Next I {a}.", "It seems right to {a} now.")


@lru_cache(maxsize=4096)
def next_step(game: Game, household: Household, paraphrase: int = 0) -> tuple[str, str] | None:
    """Choose the expert's thought and action; None if the game is won or lost.

    ``paraphrase`` counts modulo 4.
    """
    errands = plan(game, household)
    if not errands:
        return None
    command, text = first_command(game, household, errands)
    return thought(game, household, errands, command, paraphrase % WORDINGS), text


def mistake(game: Game, household: Household, rng: StableRandom) -> tuple[str, str]:
    """Choose a command that makes no progress.

    While searching, it is mostly a look into a wrong place, as by an agent that cannot know where things are. Sometimes it takes
    an object that is not there, the only such command that is invalid.
    """
    errands = plan(game, household)
    if errands and errands[0].verb == TAKE:
        if household.location != NOTHING and rng.chance(_SEEING_WHAT_IS_NOT_THERE):
            imagined = _imagined(game, household, errands[0], rng)
            if imagined is not None:
                return imagined
        if rng.chance(_LOOKING_ELSEWHERE):
            for command, text in _elsewhere(game, household, rng):
                if _leads_nowhere(game, household, command):
                    aside = errands[0]._replace(receptacle=command.thing)
                    return thought(game, household, (aside,), command, rng.below(WORDINGS)), text
    commands = situation(game, household).commands
    texts = rng.shuffled([text for text, command in commands.items() if command.verb != HELP])
    for text in texts[:_TRIES]:
        if _leads_nowhere(game, household, commands[text]):
            return _say_mistake(text, rng), text
    return _say_mistake("look", rng), "look"  # never makes progress


def _leads_nowhere(game: Game, household: Household, command: Command) -> bool:
    now, after = distance(game, household), distance(game, transition(game, household, command))
    return now is None or after is None or after >= now


def _imagined(game: Game, household: Household, errand: Errand, rng: StableRandom) -> tuple[str, str] | None:
    """Take the object from a nearby place where it is not, an invalid command."""
    near = [
        r
        for r in game.reachable
        if game.location_of[r] == household.location and errand.thing not in household.contents[r]
    ]
    if not near:
        return None
    aside = errand._replace(receptacle=rng.choice(near))
    text = f"take {game.object_names[errand.thing]} from {game.receptacle_names[aside.receptacle]}"
    return thought(
        game, household, (aside,), Command(TAKE, errand.thing, aside.receptacle), rng.below(WORDINGS)
    ), text


def _elsewhere(game: Game, household: Household, rng: StableRandom) -> list[tuple[Command, str]]:
    """List wrong places to search, in order: closed receptacles here, then other places that fit the object."""
    right = {game.location_of[r] for r in game.reachable if set(game.targets) & set(household.contents[r])}
    likely = frozenset[int]().union(*(game.fitting[thing] for thing in game.targets))
    wrong = [
        (command, text)
        for text, command in situation(game, household).commands.items()
        if command.verb in (OPEN, GO)
        and command.thing in likely
        and game.location_of[command.thing] not in right
    ]
    return sorted(rng.shuffled(wrong), key=lambda pair: pair[0].verb != OPEN)


def _say_mistake(text: str, rng: StableRandom) -> str:
    return rng.choice(_MISTAKES).format(a=text)


@lru_cache(maxsize=4096)
def next_search_step(
    game: Game, household: Household, seen: Seen, paraphrase: int = 0
) -> tuple[str, str] | None:
    """Choose thought and action of the searching expert.

    None if the game is won or cannot be won.

    Args:
        game: the game.
        household: current state; only its seen part is used.
        seen: receptacles whose contents were seen.
        paraphrase: how the thought is put, counted modulo 4.
    """
    if game.won(household):
        return None
    believed = _believed(game, household, seen)
    errands = plan(game, believed) or _partial(game, believed)
    if errands:
        command, text = first_command(game, household, errands)
        return thought(game, believed, errands, command, paraphrase % WORDINGS), text
    found = _look_around(game, household, seen)
    if found is None:
        return None
    errand, command = found
    return thought(game, believed, (errand,), command, paraphrase % WORDINGS), text_of(
        game, household, command
    )


def _believed(game: Game, household: Household, seen: Seen) -> Household:
    """Hide the unseen part of the household.

    Objects that the agent itself put down are known.
    """
    start = game.start
    contents = tuple(
        [
            inside if r in seen else tuple([o for o in inside if o not in start.contents[r]])
            for r, inside in enumerate(household.contents)
        ]
    )
    return household._replace(
        contents=contents,
        opened=frozenset([r for r in household.opened if r in seen or r not in start.opened]),
    )


def _partial(game: Game, believed: Household) -> Errands:
    """Plan what is possible while an object is missing.

    The expert takes the object to look at, or places the first of two.
    """
    if game.goal.lamp_kind:
        taking = [
            way
            for r in game.reachable
            for thing in game.targets
            if thing in believed.contents[r]
            and thing in game.pickupable
            and believed.held not in game.targets
            for way in with_free_hand(game, believed, (Errand(r, True, TAKE, thing),))
        ]
        return min(taking, key=lambda way: price(game, believed, way), default=())
    if game.goal.count == 1 or any(set(game.targets) & set(believed.contents[r]) for r in game.destinations):
        return ()
    return plan(_single(game), believed) or ()


@lru_cache(maxsize=1024)
def _single(game: Game) -> Game:
    """Reduce the goal from two objects to one."""
    return replace(game, goal=replace(game.goal, count=1))


def _look_around(game: Game, household: Household, seen: Seen) -> tuple[Errand, Command] | None:
    """Choose where to search next; None if everything was seen.

    It searches for the object, or for a lamp once the object is held. The order is: receptacles that fit the object, rare
    receptacle types, open ones. If an object is as likely in either type,
    looking into the only fridge tells more than looking into one of ten cabinets.
    """
    lamp = bool(game.goal.lamp_kind) and household.held in game.targets
    wanted = game.destinations if lamp else game.targets
    unseen = [r for r in game.reachable if r not in seen]
    if not wanted or not unseen:
        return None
    likely = frozenset[int]().union(*(game.fitting[thing] for thing in wanted))
    many = Counter(game.receptacle_types[r] for r in game.reachable)

    def order(r: int) -> tuple[bool, bool, int, int]:
        steps = 1 + (r in game.openable)
        return (
            r not in likely,
            game.location_of[r] != household.location,
            steps * many[game.receptacle_types[r]],
            -r,
        )

    place = min(unseen, key=order)
    errand = Errand(place, True, USE if lamp else TAKE, wanted[0])
    if game.location_of[place] != household.location:
        return errand, Command(GO, place)
    return errand, Command(EXAMINE_RECEPTACLE if game.accessible(household, place) else OPEN, place)
