"""Chooses the commands of a lock-step comparison.

It pursues errands that bring up the rarer verbs (heat, slice, close, ...), strays from them at random, and now and then types
something that is no command. Games go on after they are won.
"""

from __future__ import annotations

from collections import Counter

from tstar_envs.envs.alfworld import commands
from tstar_envs.envs.alfworld.commands import situation
from tstar_envs.envs.alfworld.expert import Errand
from tstar_envs.envs.alfworld.game import NOTHING, Game, Household
from tstar_envs.utils import StableRandom

INVALID = "invalid"
HARD_TO_REACH = (commands.CLEAN, commands.HEAT, commands.COOL, commands.SLICE, commands.CLOSE, commands.USE)
_ASTRAY, _JUNK = 0.18, 0.04


class Explorer:
    """Chooses commands for one game.

    Args:
        game: what is played.
        rng: decides.
        verbs: how often each verb was played so far.
        eager: chance of playing at once the rarest of ``HARD_TO_REACH`` that the household allows, also where it changes nothing any more.
    """

    def __init__(self, game: Game, rng: StableRandom, verbs: Counter[str], eager: float = 0.0) -> None:
        self._game, self._rng, self._verbs, self._eager = game, rng, verbs, eager
        self._errands: list[Errand] = []

    def next_command(self, household: Household) -> str:
        """What to type next."""
        rng, commands = self._rng, situation(self._game, household).commands
        texts = sorted(commands)
        if self._eager and rng.chance(self._eager):
            within = [text for text in texts if commands[text].verb in HARD_TO_REACH]
            if within:
                least = min(self._verbs[commands[text].verb] for text in within)
                return rng.choice([text for text in within if self._verbs[commands[text].verb] == least])
        if rng.chance(_JUNK):
            return mutate(rng.choice(texts), rng)
        if rng.chance(_ASTRAY):
            rare = sorted(texts, key=lambda text: (self._verbs[commands[text].verb], text))
            return rng.choice(rare[:3] if rng.chance(0.5) else texts)
        if not self._errands:
            self._errands = self._aim(household)
        while self._errands:
            command = self._towards(household, self._errands[0])
            text = next((text for text, known in commands.items() if known == command), None)
            if text is None or command[:2] == (self._errands[0].verb, self._errands[0].thing):
                self._errands.pop(0)
            if text is not None:
                return text
        return rng.choice(texts)

    def _towards(self, household: Household, errand: Errand) -> commands.Command:
        if self._game.location_of[errand.receptacle] != household.location:
            return commands.Command(commands.GO, errand.receptacle)
        if errand.needs_open and not self._game.accessible(household, errand.receptacle):
            return commands.Command(commands.OPEN, errand.receptacle)
        if errand.verb in (commands.USE, commands.CLOSE, commands.EXAMINE_OBJECT):
            return commands.Command(errand.verb, errand.thing)
        return commands.Command(
            errand.verb, errand.thing, errand.receptacle if errand.verb != commands.SLICE else household.held
        )

    def _aim(self, household: Household) -> list[Errand]:
        """Errands for a verb that was rare so far, among those that the game has at all."""
        game, rng = self._game, self._rng
        able = {commands.CLEAN: game.cleanable, commands.HEAT: game.heatable, commands.COOL: game.coolable}
        aims: list[tuple[int, list[Errand]]] = []
        for verb, members in able.items():
            tools = [r for r in game.reachable if r in game.appliances[verb]]
            if tools and members:
                thing = rng.choice(sorted(members))
                treat = Errand(rng.choice(tools), False, verb, thing)
                aims.append(
                    (
                        self._verbs[verb],
                        [
                            *self._fetch(household, thing),
                            treat,
                            Errand(treat.receptacle, False, commands.EXAMINE_OBJECT, thing),
                        ],
                    )
                )
        if game.knives and game.sliceable:
            thing, knife = rng.choice(sorted(game.sliceable)), rng.choice(sorted(game.knives))
            places = self._places(household, thing)
            if places:
                cut = Errand(places[0], False, commands.SLICE, thing)
                look = Errand(places[0], False, commands.EXAMINE_OBJECT, thing)
                aims.append(
                    (
                        self._verbs[commands.SLICE],
                        [
                            *self._fetch(household, knife),
                            cut,
                            *self._put_away(knife),
                            *self._fetch(household, thing),
                            look,
                        ],
                    )
                )
        lamps = [lamp for lamp in sorted(game.toggleable) if self._places(household, lamp)]
        if lamps:
            lamp = rng.choice(lamps)
            aims.append(
                (
                    self._verbs[commands.USE],
                    [Errand(self._places(household, lamp)[0], False, commands.USE, lamp)],
                )
            )
        doors = [r for r in game.reachable if r in game.openable]
        if doors:
            door = rng.choice(doors)
            aims.append((self._verbs[commands.CLOSE], [Errand(door, True, commands.CLOSE, door)]))
        movable = sorted(game.pickupable)
        if movable:
            thing = rng.choice(movable)
            aims.append(
                (self._verbs[commands.MOVE], [*self._fetch(household, thing), *self._put_away(thing)])
            )
        return min(aims, key=lambda aim: aim[0] * (0.5 + rng.below(100) / 100))[1] if aims else []

    def _places(self, household: Household, thing: int) -> list[int]:
        return [r for r in self._game.reachable if thing in household.contents[r]]

    def _fetch(self, household: Household, thing: int) -> list[Errand]:
        if household.held == thing:
            return []
        away = self._put_away(household.held) if household.held != NOTHING else []
        return [
            *away,
            *(Errand(place, True, commands.TAKE, thing) for place in self._places(household, thing)[:1]),
        ]

    def _put_away(self, thing: int) -> list[Errand]:
        places = sorted(r for r in self._game.fitting[thing] if self._game.location_of[r] != NOTHING)
        return [Errand(self._rng.choice(places), True, commands.MOVE, thing)] if places else []


def mutate(text: str, rng: StableRandom) -> str:
    """A command with a small accident: mostly no command any more."""
    cut = rng.below(len(text) + 1)
    words = text.split()
    return rng.choice(
        (
            text[:cut] + text[cut + 1 :],
            text[:cut] + rng.choice("abc 123\t.") + text[cut:],
            text.upper(),
            f"  {text} ",
            f"{text}.",
            text[:cut],
            " ".join(rng.shuffled(words)),
            " ".join(words[1:]),
            text.replace("1", "2"),
            text.replace("move", "put").replace(" to ", " in/on "),
        )
    )
