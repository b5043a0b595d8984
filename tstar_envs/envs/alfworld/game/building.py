"""Building a game from its facts.

Receptacles and objects are numbered in the order of their raw ids, since every list that the game shows is sorted by raw id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tstar_envs.envs.alfworld.game.facts import MARKS, NEEDED_ABILITY, TOOLS, Facts, Goal
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.game.names import demangle
from tstar_envs.envs.alfworld.game.wording import Wording
from tstar_envs.envs.alfworld.state import NOTHING, Household


def build_game(
    facts: Facts, goal: Goal, task: str, wording: Wording, tools: Mapping[str, frozenset[str]] = TOOLS
) -> Game:
    """Make a game of what is true at its start.

    Args:
        facts: true at the start.
        goal: when the game is won.
        task: in words.
        wording: of the answers.
        tools: verb -> kinds of what it is done with.
    """
    receptacles, objects = sorted(facts.receptacle_kinds), sorted(facts.object_kinds)
    receptacle_number = {raw: number for number, raw in enumerate(receptacles)}
    object_number = {raw: number for number, raw in enumerate(objects)}
    names = demangle({*receptacles, *objects, *facts.named})
    locations = sorted(
        {
            *facts.receptacle_location.values(),
            *(place for _, place in facts.object_locations),
            facts.agent_location,
        }
    )
    location_number = {raw: number for number, raw in enumerate(locations)}
    location_of = tuple(
        [
            location_number[facts.receptacle_location[raw]] if raw in facts.receptacle_location else NOTHING
            for raw in receptacles
        ]
    )
    here: list[list[int]] = [[] for _ in locations]
    for receptacle, location in enumerate(location_of):
        if location != NOTHING:
            here[location].append(receptacle)
    able = {ability: _numbers(members, object_number) for ability, members in facts.abilities.items()}
    object_kinds = tuple([facts.object_kinds[raw] for raw in objects])
    receptacle_kinds = tuple([facts.receptacle_kinds[raw] for raw in receptacles])
    receptacle_names, object_names = (
        tuple([names[raw] for raw in receptacles]),
        tuple([names[raw] for raw in objects]),
    )
    takers: dict[str, frozenset[int]] = {}
    for kind in set(object_kinds):
        takers[kind] = frozenset(
            [r for r, taker in enumerate(receptacle_kinds) if (taker, kind) in facts.fits]
        )
    reachable = tuple([r for r, location in enumerate(location_of) if location != NOTHING])
    every_go = sorted([(f"go to {receptacle_names[r]}", r) for r in reachable])
    go_to = tuple(
        [tuple([go for go in every_go if location_of[go[1]] != place]) for place in range(len(locations))]
    )
    contents: list[list[int]] = [[] for _ in receptacles]
    for raw, receptacle_raw in facts.inside:
        contents[receptacle_number[receptacle_raw]].append(object_number[raw])
    lying: list[list[int]] = [[] for _ in objects]
    for raw, place in facts.object_locations:
        lying[object_number[raw]].append(location_number[place])
    nested: dict[int, list[int]] = {}
    for inner, outer in facts.nested:
        nested.setdefault(object_number[outer], []).append(object_number[inner])
    marks = [_numbers(facts.marks[mark], object_number) for mark in MARKS]
    clean, hot, cool, toggled, sliced = marks
    start = Household(
        location_number[facts.agent_location],
        object_number.get(facts.held, NOTHING),
        tuple([tuple(sorted(c)) for c in contents]),
        tuple([tuple(sorted(places)) for places in lying]),
        _numbers(facts.opened, receptacle_number),
        clean,
        hot,
        cool,
        toggled,
        sliced,
    )
    needed = [able[NEEDED_ABILITY[mark]] for mark in goal.marks]
    targets = [
        o
        for o, kind in enumerate(object_kinds)
        if kind == goal.object_kind and all(o in members for members in needed)
    ]
    if goal.lamp_kind:
        destinations = [
            o for o, kind in enumerate(object_kinds) if kind == goal.lamp_kind and o in able["toggleable"]
        ]
    else:
        destinations = [r for r, kind in enumerate(receptacle_kinds) if kind == goal.receptacle_kind]
    numbers = {name: ("object", number) for number, name in enumerate(object_names)}
    numbers.update({name: ("receptacle", number) for number, name in enumerate(receptacle_names)})
    return Game(
        task=task,
        goal=goal,
        wording=wording,
        receptacle_names=receptacle_names,
        object_names=object_names,
        location_names=tuple([names.get(raw, raw) for raw in locations]),
        receptacle_kinds=receptacle_kinds,
        object_kinds=object_kinds,
        location_of=location_of,
        receptacles_at=tuple([tuple(r) for r in here]),
        reachable=reachable,
        openable=_numbers(facts.openable, receptacle_number),
        pickupable=able["pickupable"],
        holders=able["isreceptacleobject"],
        cleanable=able["cleanable"],
        heatable=able["heatable"],
        coolable=able["coolable"],
        toggleable=able["toggleable"],
        sliceable=able["sliceable"],
        tools=tools,
        appliances={
            verb: frozenset([r for r, kind in enumerate(receptacle_kinds) if kind in kinds])
            for verb, kinds in tools.items()
            if verb != "slice"
        },
        knives=frozenset([o for o, kind in enumerate(object_kinds) if kind in tools["slice"]]),
        fitting=tuple([takers[kind] for kind in object_kinds]),
        nested={outer: tuple(sorted(inner)) for outer, inner in nested.items()},
        numbers=numbers,
        go_to=go_to,
        start=start,
        targets=tuple(targets),
        destinations=tuple(destinations),
    )


def _numbers(ids: Iterable[str], number: Mapping[str, int]) -> frozenset[int]:
    return frozenset([number[raw] for raw in ids])
