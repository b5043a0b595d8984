"""Small household games for the tests: written as facts, as PDDL with a grammar of the tests' own, and drawn at random."""

from __future__ import annotations

import json
import re
from collections import deque

import pytest

from scripts.studies.alfworld_lockstep import memoise_original
from tstar_envs.envs.alfworld import commands
from tstar_envs.envs.alfworld.commands import transition
from tstar_envs.envs.alfworld.engine import alfworld_file, write_problem
from tstar_envs.envs.alfworld.game import Facts, Game, Goal, Household, Wording, build_game
from tstar_envs.utils import StableRandom

# ALFWorld's own, with another help and another way to put an object down.
GRAMMAR = alfworld_file("data/alfred.twl2", "the tests")
GRAMMAR = re.sub(
    r'("help.feedback": \[\s*\{\s*"rhs": )"[^"]*"', r'\1"\\nAsk\\n  somebody\\n"', GRAMMAR
).replace("UNKNOWN GOAL", "TASK")
DOMAIN = alfworld_file("data/alfred.pddl", "the tests")
PLACES = {
    "table": "t",
    "cabinet": "o",
    "fridge": "o",
    "microwave": "o",
    "sinkbasin": "t",
}


def game_text(facts: Facts, goal: Goal, move: str = "move") -> str:
    put = {
        "You move the {o.name} to": f"You {move} the {{o.name}} to",
        '"move {o} to {r}"': f'"{move} {{o}} to {{r}}"',
    }
    grammar = GRAMMAR.replace("TASK", "win")
    for old, new in put.items():
        grammar = grammar.replace(old, new)
    return json.dumps(
        {
            "pddl_domain": DOMAIN,
            "grammar": grammar,
            "pddl_problem": write_problem(facts, goal, "small"),
            "solvable": True,
        }
    )


def kitchen(
    goal: Goal, seed: int = 0, objects: tuple[str, ...] = ("mug", "mug", "egg", "knife"), shared: bool = False
) -> Facts:
    """A room with a table, a cabinet, a fridge, a microwave and a basin; things are anywhere but where the goal wants them."""
    draw = StableRandom(f"kitchen/{seed}")
    facts = Facts(agent_location="loc_bar_9")
    raw = {kind: ("sink_bar_1_bar_sinkbasin" if kind == "sinkbasin" else f"{kind}_bar_1") for kind in PLACES}
    for number, (kind, sort) in enumerate(PLACES.items()):
        facts.receptacle_types[raw[kind]] = kind
        facts.receptacle_location[raw[kind]] = f"loc_bar_{number // 2 if shared else number}"
        if sort == "o":
            facts.openable.add(raw[kind])
    things = [(f"{kind}_bar_{n}", kind) for n, kind in enumerate(objects)]
    if goal.lamp_kind:
        things.append(("desklamp_bar_0", "desklamp"))
    for thing, kind in things:
        facts.object_types[thing] = kind
        places = [
            p
            for p in PLACES
            if (p != goal.receptacle_kind or kind != goal.object_kind)
            and (kind != "desklamp" or p in ("table", "cabinet"))
        ]
        place = raw[draw.choice(places)]
        facts.inside.add((thing, place))
        facts.object_locations.add((thing, facts.receptacle_location[place]))
        for ability in (
            ["toggleable"] if kind == "desklamp" else ["pickupable", "cleanable", "heatable", "coolable"]
        ):
            facts.abilities[ability].add(thing)
        if kind == "egg":
            facts.abilities["sliceable"].add(thing)
        if kind == "mug":
            facts.abilities["isreceptacleobject"].add(thing)
        facts.fits |= {
            (p, kind)
            for p in PLACES
            if kind != "desklamp" and not (kind == "knife" and p in ("fridge", "microwave"))
        }
    return facts


def small_game(
    goal: Goal, seed: int = 0, shared: bool = False, objects: tuple[str, ...] = ("mug", "mug", "egg", "knife")
) -> Game:
    return build_game(
        kitchen(goal, seed, objects, shared), goal, "Your task is to: win.", Wording(help="Ask\n  somebody\n")
    )


def breadth_first(game: Game, start: Household, most: int = 14) -> int | None:
    """Steps of a shortest way to win, by trying everything."""
    if game.won(start):
        return 0
    seen, row = {start}, deque([(start, 0)])
    while row:
        state, steps = row.popleft()
        if steps == most:
            return None
        for command in commands.situation.__wrapped__(game, state).commands.values():
            after = transition(game, state, command)
            if after._replace(left=frozenset()) in seen:
                continue
            if game.won(after):
                return steps + 1
            seen.add(after._replace(left=frozenset()))
            row.append((after, steps + 1))
    return None


def remembering_original(patch: pytest.MonkeyPatch) -> None:
    """For one test the original engine keeps what it parsed, which takes most of its time; what it works out stays its own."""
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    for owner, name in (
        (textgen, "_parse_and_convert"),
        (Rule, "parse_conjunctive_query"),
        (fast_downward, "pddl2sas"),
    ):
        patch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    memoise_original()
