"""Plays a game in this project's rules and in the original engine side by side and compares every answer."""

from __future__ import annotations

import copy
import functools
import json
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from tstar_envs.envs.alfworld import text
from tstar_envs.envs.alfworld.commands import situation, transition
from tstar_envs.envs.alfworld.engine import FEATURE, TextWorldGame
from tstar_envs.envs.alfworld.game import Answer
from tstar_envs.envs.alfworld.published import read_game
from tstar_envs.errors import MissingExtra
from tstar_envs.utils import StableRandom

try:
    from scripts.studies.alfworld_explorer import INVALID, Explorer
except ModuleNotFoundError:  # run as a script of this folder
    from alfworld_explorer import INVALID, Explorer


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
    household, observation, differences = game.start, text.intro(game), []
    theirs, typed = original.reset(), ""
    for _ in range(steps + 1):
        # The original lists ``help`` with the others; here it is known but not listed.
        ours = Answer(observation, tuple(sorted(situation(game, household).commands)), game.won(household))
        if ours != theirs:
            differences.append(Difference(name, typed, ours, theirs))
        typed = explorer.next_command(household)
        command = situation(game, household).commands.get(typed.strip())
        verbs[INVALID if command is None else command.verb] += 1
        theirs = original.step(typed)
        if command is None:
            observation = text.NOTHING_HAPPENS
        else:
            household = transition(game, household, command)
            observation = text.render(game, household, command)
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
