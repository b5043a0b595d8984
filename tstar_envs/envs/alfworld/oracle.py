"""The expert: what it thinks before each step of a shortest way to win, and believable mistakes.

It knows where things are, but its thoughts say only what someone could think who looks for them in likely places.
"""

from __future__ import annotations

from functools import lru_cache

from tstar_envs.envs.alfworld.game.commands import GO, HELP, OPEN, TAKE, Command, situation
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.game.transitions import transition
from tstar_envs.envs.alfworld.planner import Errand, distance, first_command, plan
from tstar_envs.envs.alfworld.state import NOTHING, Household
from tstar_envs.envs.alfworld.thoughts import WORDINGS, thought
from tstar_envs.stable_random import StableRandom

_TRIES = 12
_SEEING_WHAT_IS_NOT_THERE = 0.15
_LOOKING_ELSEWHERE = 0.75
_MISTAKES = ("I try this: {a}.", "Perhaps it helps to {a}.", "Next I {a}.", "It seems right to {a} now.")


@lru_cache(maxsize=4096)
def next_step(game: Game, household: Household, wording: int = 0) -> tuple[str, str] | None:
    """The expert's thought and action; None if the game is won or lost. ``wording`` counts modulo 4."""
    errands = plan(game, household)
    if not errands:
        return None
    command, text = first_command(game, household, errands)
    return thought(game, household, errands, command, wording % WORDINGS), text


def mistake(game: Game, household: Household, rng: StableRandom) -> tuple[str, str]:
    """A command that does not lead nearer to the goal.

    Whoever looks for an object mostly looks in a wrong place, as one does who cannot know where things are, and now and then sees
    what is not there (the only mistake that the rules refuse).
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
    return _say_mistake("look", rng), "look"  # never leads anywhere


def _leads_nowhere(game: Game, household: Household, command: Command) -> bool:
    now, after = distance(game, household), distance(game, transition(game, household, command))
    return now is None or after is None or after >= now


def _imagined(game: Game, household: Household, errand: Errand, rng: StableRandom) -> tuple[str, str] | None:
    """Take the object from a place at hand where it is not: a command that does nothing."""
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
    """Where one could look for the object in vain, in order of trying: what is closed here, then other places that take its kind."""
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
