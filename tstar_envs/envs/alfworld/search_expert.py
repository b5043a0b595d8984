"""A second expert, which knows only what an agent could know: it looks for things, place by place, and often in vain.

The first observation names the receptacles; what is in or on one is known once it was seen, and nobody but the agent moves things.
With what is known the shortest way is taken (``planner``); what is not is looked for in the most promising place next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from tstar_envs.envs.alfworld.game.commands import EXAMINE_RECEPTACLE, GO, OPEN, TAKE, USE, Command
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.planner import (
    Errand,
    Errands,
    first_command,
    plan,
    price,
    text_of,
    with_free_hand,
)
from tstar_envs.envs.alfworld.state import Household, Seen
from tstar_envs.envs.alfworld.thoughts import WORDINGS, thought


def seen_after(game: Game, household: Household, command: Command, seen: Seen) -> Seen:
    """What was seen once a command was answered; ``household`` is the one after it."""
    verb, receptacle, _ = command
    if (
        verb not in (GO, OPEN, EXAMINE_RECEPTACLE)
        or receptacle in seen
        or not game.accessible(household, receptacle)
    ):
        return seen
    return seen | {receptacle} if verb == EXAMINE_RECEPTACLE or game.wording.answers[verb].contents else seen


@lru_cache(maxsize=4096)
def next_step(game: Game, household: Household, seen: Seen, wording: int = 0) -> tuple[str, str] | None:
    """Thought and action; None if the game is won, or cannot be won with what there is to be found.

    Args:
        game: the game.
        household: where it stands; of it only what was seen is looked at.
        seen: the receptacles whose contents were seen.
        wording: how the thought is put, counted modulo 4.
    """
    if game.won(household):
        return None
    believed = _believed(game, household, seen)
    errands = plan(game, believed) or _partial(game, believed)
    if errands:
        command, text = first_command(game, household, errands)
        return thought(game, believed, errands, command, wording % WORDINGS), text
    found = _look_around(game, household, seen)
    if found is None:
        return None
    errand, command = found
    return thought(game, believed, (errand,), command, wording % WORDINGS), text_of(game, household, command)


def _believed(game: Game, household: Household, seen: Seen) -> Household:
    """The household without what was not seen. What an agent put somewhere itself it knows."""
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
    """What can be done while something is still to be found: take what is to be looked at, or bring the first of two objects."""
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
    """The game of placing one object instead of two."""
    return replace(game, goal=replace(game.goal, count=1))


def _look_around(game: Game, household: Household, seen: Seen) -> tuple[Errand, Command] | None:
    """Where to look next for the object, or for a lamp once the object is in the hand; None if everything was seen.

    What may hold such a thing comes first, then kinds of receptacles of which there are few, then what need not be opened: of a
    thing that is as likely in either kind, one fridge says more than one of ten cabinets.
    """
    lamp = bool(game.goal.lamp_kind) and household.held in game.targets
    wanted = game.destinations if lamp else game.targets
    unseen = [r for r in game.reachable if r not in seen]
    if not wanted or not unseen:
        return None
    likely = frozenset[int]().union(*(game.fitting[thing] for thing in wanted))
    many = Counter(game.receptacle_kinds[r] for r in game.reachable)

    def order(r: int) -> tuple[bool, bool, int, int]:
        steps = 1 + (r in game.openable)
        return (
            r not in likely,
            game.location_of[r] != household.location,
            steps * many[game.receptacle_kinds[r]],
            -r,
        )

    place = min(unseen, key=order)
    errand = Errand(place, True, USE if lamp else TAKE, wanted[0])
    if game.location_of[place] != household.location:
        return errand, Command(GO, place)
    return errand, Command(EXAMINE_RECEPTACLE if game.accessible(household, place) else OPEN, place)
