"""Rules of the household: pure functions (game, household, command) -> household, equal to those of the PDDL domain ``alfred``.

They keep its peculiarities: heating, cooling and cleaning need the appliance at hand but not open; receptacles never fill up; an
object can be examined only while it is held; a lamp once turned on counts as on for good; slicing asks for the object to lie at the
agent's location, in whatever it is. Texts are the business of ``text``.
"""

from __future__ import annotations

from tstar_envs.envs.alfworld.game.commands import (
    CLEAN,
    CLOSE,
    COOL,
    GO,
    HEAT,
    MOVE,
    OPEN,
    SLICE,
    TAKE,
    USE,
    Command,
)
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.state import NOTHING, Household


def transition(game: Game, household: Household, command: Command) -> Household:
    """The household after a command that it allows; the same object if nothing changes."""
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
        # The domain also flips a mark "isOn", which nothing reads: using a lamp again changes nothing that can be seen.
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
    """What a command changed, in words: the same for the same change, whichever knife or appliance made it."""
    verb, thing, other = command
    if verb in (GO, OPEN, CLOSE):
        return f"{verb} {game.receptacle_names[thing]}"
    if verb in (TAKE, MOVE):
        return f"{verb} {game.object_names[thing]} {'from' if verb == TAKE else 'to'} {game.receptacle_names[other]}"
    return f"{verb} {game.object_names[thing]}"


def fingerprint(game: Game, household: Household) -> str:
    """Text that is equal exactly for equal households of one game: what differs from its start."""
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
