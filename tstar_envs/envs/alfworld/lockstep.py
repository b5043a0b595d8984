"""Plays a game in this project's rules and in the original engine side by side and compares every answer.

An explorer chooses the commands: it pursues errands that bring up the rarer verbs (heat, slice, close, ...), strays from them at
random, and now and then types something that is no command. Games go on after they are won.
"""

from __future__ import annotations

import copy
import functools
import json
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from tstar_envs.envs.alfworld import feedback, rules
from tstar_envs.envs.alfworld.game import NOTHING, Game, State
from tstar_envs.envs.alfworld.pddl import read_game
from tstar_envs.envs.alfworld.planner import Errand
from tstar_envs.envs.alfworld.textworld_game import FEATURE, Answer, TextWorldGame
from tstar_envs.errors import MissingExtra
from tstar_envs.stable_random import StableRandom

INVALID = "invalid"
HARD_TO_REACH = (rules.CLEAN, rules.HEAT, rules.COOL, rules.SLICE, rules.CLOSE, rules.USE)
_ASTRAY, _JUNK = 0.18, 0.04


class Difference(NamedTuple):
    """Where both engines disagree: after which command, and what each says (feedback, admissible commands, won)."""

    game: str
    command: str
    ours: Answer
    theirs: Answer


def compare(
    data: Mapping[str, Any], name: str, steps: int, seed: int | str, verbs: Counter[str], eager: float = 0.0
) -> list[Difference]:
    """Play one game for a number of steps in both engines.

    Args:
        data: contents of a ``game.tw-pddl`` file.
        name: how differences call the game.
        steps: commands to give; the start is compared as well.
        seed: of the explorer.
        verbs: counts of the verbs played so far (``INVALID`` for what was no command); the explorer favours the rare ones.
        eager: see ``Explorer``.

    Raises:
        MissingExtra: the original engine is not installed.
    """
    game = read_game(json.dumps(data), name)
    original = TextWorldGame(data)
    explorer = Explorer(game, StableRandom(f"alfworld/lockstep/{name}/{seed}"), verbs, eager)
    state, text, differences = game.start, feedback.intro(game), []
    theirs, typed = original.reset(), ""
    for _ in range(steps + 1):
        # The original lists ``help`` with the others; here it is known but not listed.
        ours = Answer(text, tuple(sorted(rules.situation(game, state).commands)), game.won(state))
        if ours != theirs:
            differences.append(Difference(name, typed, ours, theirs))
        typed = explorer.next_command(state)
        command = rules.situation(game, state).commands.get(typed.strip())
        verbs[INVALID if command is None else command.verb] += 1
        theirs = original.step(typed)
        if command is None:
            text = feedback.NOTHING_HAPPENS
        else:
            state = rules.apply(game, state, command)
            text = feedback.tell(game, state, command)
    return differences


def memoise_original() -> None:
    """Make the original engine keep what it parses, which it does anew at every step. What it works out stays its own.

    Raises:
        MissingExtra: it is not installed.
    """
    for package in ("textworld", "fast_downward"):
        if find_spec(package) is None:
            raise MissingExtra(FEATURE, package, "alfworld")
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    parse = functools.cache(textgen._parse_and_convert)
    # Symbols get a context where they are used, so everybody has fresh ones.
    textgen._parse_and_convert = lambda *args, **kwargs: copy.deepcopy(parse(*args, **kwargs))
    Rule.parse_conjunctive_query = functools.cache(Rule.parse_conjunctive_query)
    fast_downward.pddl2sas = functools.lru_cache(maxsize=4)(fast_downward.pddl2sas)


class Explorer:
    """Chooses commands for one game.

    Args:
        game: what is played.
        draw: decides.
        verbs: how often each verb was played so far.
        eager: chance of playing at once the rarest of ``HARD_TO_REACH`` that a state allows, also where it changes nothing any more.
    """

    def __init__(self, game: Game, draw: StableRandom, verbs: Counter[str], eager: float = 0.0) -> None:
        self._game, self._draw, self._verbs, self._eager = game, draw, verbs, eager
        self._errands: list[Errand] = []

    def next_command(self, state: State) -> str:
        """What to type in a state."""
        draw, commands = self._draw, rules.situation(self._game, state).commands
        texts = sorted(commands)
        if self._eager and draw.chance(self._eager):
            within = [text for text in texts if commands[text].verb in HARD_TO_REACH]
            if within:
                least = min(self._verbs[commands[text].verb] for text in within)
                return draw.choice([text for text in within if self._verbs[commands[text].verb] == least])
        if draw.chance(_JUNK):
            return mutate(draw.choice(texts), draw)
        if draw.chance(_ASTRAY):
            rare = sorted(texts, key=lambda text: (self._verbs[commands[text].verb], text))
            return draw.choice(rare[:3] if draw.chance(0.5) else texts)
        if not self._errands:
            self._errands = self._aim(state)
        while self._errands:
            command = self._towards(state, self._errands[0])
            text = next((text for text, known in commands.items() if known == command), None)
            if text is None or command[:2] == (self._errands[0].verb, self._errands[0].thing):
                self._errands.pop(0)
            if text is not None:
                return text
        return draw.choice(texts)

    def _towards(self, state: State, errand: Errand) -> rules.Command:
        if self._game.location_of[errand.receptacle] != state.location:
            return rules.Command(rules.GO, errand.receptacle)
        if errand.needs_open and not self._game.accessible(state, errand.receptacle):
            return rules.Command(rules.OPEN, errand.receptacle)
        if errand.verb in (rules.USE, rules.CLOSE, rules.EXAMINE_OBJECT):
            return rules.Command(errand.verb, errand.thing)
        return rules.Command(
            errand.verb, errand.thing, errand.receptacle if errand.verb != rules.SLICE else state.held
        )

    def _aim(self, state: State) -> list[Errand]:
        """Errands for a verb that was rare so far, among those that the game has at all."""
        game, draw = self._game, self._draw
        able = {rules.CLEAN: game.cleanable, rules.HEAT: game.heatable, rules.COOL: game.coolable}
        aims: list[tuple[int, list[Errand]]] = []
        for verb, members in able.items():
            tools = [r for r in game.reachable if game.receptacle_kinds[r] == rules.APPLIANCES[verb]]
            if tools and members:
                thing = draw.choice(sorted(members))
                treat = Errand(draw.choice(tools), False, verb, thing)
                aims.append(
                    (
                        self._verbs[verb],
                        [
                            *self._fetch(state, thing),
                            treat,
                            Errand(treat.receptacle, False, rules.EXAMINE_OBJECT, thing),
                        ],
                    )
                )
        if game.knives and game.sliceable:
            thing, knife = draw.choice(sorted(game.sliceable)), draw.choice(sorted(game.knives))
            places = self._places(state, thing)
            if places:
                cut = Errand(places[0], False, rules.SLICE, thing)
                look = Errand(places[0], False, rules.EXAMINE_OBJECT, thing)
                aims.append(
                    (
                        self._verbs[rules.SLICE],
                        [
                            *self._fetch(state, knife),
                            cut,
                            *self._put_away(knife),
                            *self._fetch(state, thing),
                            look,
                        ],
                    )
                )
        lamps = [lamp for lamp in sorted(game.toggleable) if self._places(state, lamp)]
        if lamps:
            lamp = draw.choice(lamps)
            aims.append(
                (self._verbs[rules.USE], [Errand(self._places(state, lamp)[0], False, rules.USE, lamp)])
            )
        doors = [r for r in game.reachable if r in game.openable]
        if doors:
            door = draw.choice(doors)
            aims.append((self._verbs[rules.CLOSE], [Errand(door, True, rules.CLOSE, door)]))
        movable = sorted(game.pickupable)
        if movable:
            thing = draw.choice(movable)
            aims.append((self._verbs[rules.MOVE], [*self._fetch(state, thing), *self._put_away(thing)]))
        return min(aims, key=lambda aim: aim[0] * (0.5 + draw.below(100) / 100))[1] if aims else []

    def _places(self, state: State, thing: int) -> list[int]:
        return [r for r in self._game.reachable if thing in state.contents[r]]

    def _fetch(self, state: State, thing: int) -> list[Errand]:
        if state.held == thing:
            return []
        away = self._put_away(state.held) if state.held != NOTHING else []
        return [*away, *(Errand(place, True, rules.TAKE, thing) for place in self._places(state, thing)[:1])]

    def _put_away(self, thing: int) -> list[Errand]:
        places = sorted(r for r in self._game.fitting[thing] if self._game.location_of[r] != NOTHING)
        return [Errand(self._draw.choice(places), True, rules.MOVE, thing)] if places else []


def mutate(text: str, draw: StableRandom) -> str:
    """A command with a small accident: mostly no command any more."""
    cut = draw.below(len(text) + 1)
    words = text.split()
    return draw.choice(
        (
            text[:cut] + text[cut + 1 :],
            text[:cut] + draw.choice("abc 123\t.") + text[cut:],
            text.upper(),
            f"  {text} ",
            f"{text}.",
            text[:cut],
            " ".join(draw.shuffled(words)),
            " ".join(words[1:]),
            text.replace("1", "2"),
            text.replace("move", "put").replace(" to ", " in/on "),
        )
    )
