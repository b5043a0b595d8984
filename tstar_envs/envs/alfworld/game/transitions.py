"""Rules of the household: pure functions (game, state, command) -> state, equal to those of the PDDL domain ``alfred``.

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
from tstar_envs.envs.alfworld.state import NOTHING, State


def transition(game: Game, state: State, command: Command) -> State:
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
