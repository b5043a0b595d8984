"""Shortest ways to win: every order of errands that can win is priced, and the cheapest is taken.

To win, objects of the goal's kind are fetched, treated and brought to a receptacle (or under a lamp), one at a time, and what else
is in the hand is put away first. An errand is a stop at a receptacle: going there costs a step unless the agent is at its location,
opening one where it must be open and is not, and the act itself one. Tests compare the prices with breadth-first search.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from tstar_envs.envs.alfworld.game.commands import (
    CLEAN,
    COOL,
    GO,
    HEAT,
    MOVE,
    OPEN,
    TAKE,
    USE,
    Command,
    situation,
)
from tstar_envs.envs.alfworld.game.game import Game, marked_objects
from tstar_envs.envs.alfworld.state import NOTHING, Household

_TREATMENT = {"isclean": CLEAN, "ishot": HEAT, "iscool": COOL}


class Errand(NamedTuple):
    """A stop: where, whether the receptacle must be open, what is done there ("" for being there) and with which object."""

    receptacle: int
    needs_open: bool
    verb: str
    thing: int


Errands = tuple[Errand, ...]


@lru_cache(maxsize=8192)
def plan(game: Game, household: Household) -> Errands | None:
    """The errands of a shortest way to win, empty if it is won, None if it cannot be."""
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
    """Steps that errands take from where the household stands."""
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
    """Steps of a shortest way to win, None if there is none."""
    errands = plan(game, household)
    return None if errands is None else price(game, household, errands)


def first_command(game: Game, household: Household, errands: Errands) -> tuple[Command, str]:
    """The command that errands begin with, as the rules see it and as text."""
    receptacle, needs_open, verb, thing = errands[0]
    if game.location_of[receptacle] != household.location:
        command = Command(GO, receptacle)
    elif needs_open and not game.accessible(household, receptacle):
        command = Command(OPEN, receptacle)
    else:
        command = Command(verb, thing) if verb == USE else Command(verb, thing, receptacle)
    return command, text_of(game, household, command)


def text_of(game: Game, household: Household, command: Command) -> str:
    """How a command that the household allows is written."""
    return next(text for text, other in situation(game, household).commands.items() if other == command)


def _ways(game: Game, household: Household) -> Iterator[Errands]:
    """Orders of errands that win; what they leave out cannot be shorter."""
    for errands in _looking(game, household) if game.goal.lamp_kind else _placing(game, household):
        yield from with_free_hand(game, household, errands)


def with_free_hand(game: Game, household: Household, errands: Errands) -> Iterator[Errands]:
    """Errands that begin with putting away what is held, unless it is moved to its place before anything else is taken."""
    handled = next((errand.verb for errand in errands if errand.verb in (TAKE, MOVE)), MOVE)
    if household.held == NOTHING or handled == MOVE:
        yield errands
    else:
        for receptacle in _places_to_drop(game, household, errands):
            yield (Errand(receptacle, True, MOVE, household.held), *errands)


def _fetching(game: Game, household: Household, thing: int) -> Iterator[Errands]:
    """How a thing gets into the (empty) hand."""
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
                continue  # what is in the hand comes first
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
    """Where to put away what is held: of the places at hand, at the next stop, and elsewhere the cheapest, and every stop."""
    found: dict[tuple[bool, bool], int] = {}
    next_stop = game.location_of[errands[0].receptacle]
    takers = game.fitting[household.held]
    for receptacle in sorted(takers, key=lambda r: (not game.accessible(household, r), -r)):
        location = game.location_of[receptacle]
        if location != NOTHING:
            found.setdefault((location == household.location, location == next_stop), receptacle)
    stops = [errand.receptacle for errand in errands if errand.receptacle in takers]
    return list(dict.fromkeys([*found.values(), *stops]))
