"""A household game ready to be played: what never changes in it, over numbers instead of ids, and its start state.

Receptacles and objects are numbered in the order of their raw ids, since every list that the game shows is sorted by raw id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tstar_envs.envs.alfworld.facts import MARKS, NEEDED_ABILITY, Facts, Goal
from tstar_envs.envs.alfworld.names import demangle
from tstar_envs.envs.alfworld.wording import Wording

NOTHING = -1  # no object held, no location
KNIVES = frozenset({"knife", "butterknife"})
# What of a ``Game`` is given; the rest of it is worked out from this.
GIVEN = (
    "task",
    "goal",
    "wording",
    "receptacle_names",
    "object_names",
    "location_names",
    "receptacle_kinds",
    "object_kinds",
    "location_of",
    "openable",
    "pickupable",
    "holders",
    "cleanable",
    "heatable",
    "coolable",
    "toggleable",
    "sliceable",
    "fitting",
    "nested",
    "start",
)


class State(NamedTuple):
    """Everything that commands change and that a later answer depends on.

    ``contents[r]`` are the objects in receptacle r and ``lying[o]`` the locations of object o, both ascending. ``left`` holds the
    pairs (object, receptacle) where the object was taken out and not put back: the game lists such an object "next to" the
    receptacle when it lies at the same location.
    """

    location: int
    held: int
    contents: tuple[tuple[int, ...], ...]
    lying: tuple[tuple[int, ...], ...]
    opened: frozenset[int]
    clean: frozenset[int]
    hot: frozenset[int]
    cool: frozenset[int]
    toggled: frozenset[int]
    sliced: frozenset[int]
    left: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Game:
    """One game.

    Attributes:
        task: the task in words, as the game tells it.
        goal: when the game is won.
        wording: what its release says in its own way.
        receptacle_names, object_names, location_names: names by number.
        receptacle_kinds, object_kinds: kinds by number, "" if the file names none.
        location_of: location of each receptacle, ``NOTHING`` if it has none.
        receptacles_at: the receptacles of each location.
        reachable: receptacles that have a location.
        openable: receptacles.
        pickupable, holders, cleanable, heatable, coolable, toggleable, sliceable: objects; holders are those that things can be in.
        knives: objects that slice.
        fitting: for each object the receptacles that take it.
        nested: for each object the objects in it.
        numbers: name -> ("receptacle" or "object", number).
        go_to: for each location the commands that lead elsewhere, sorted; the last entry is for a location without receptacles.
        start: the state at the start.
        targets: objects that the goal is about.
        destinations: receptacles that the goal is about, or lamps in a task of looking.
    """

    task: str
    goal: Goal
    wording: Wording
    receptacle_names: tuple[str, ...]
    object_names: tuple[str, ...]
    location_names: tuple[str, ...]
    receptacle_kinds: tuple[str, ...]
    object_kinds: tuple[str, ...]
    location_of: tuple[int, ...]
    receptacles_at: tuple[tuple[int, ...], ...]
    reachable: tuple[int, ...]
    openable: frozenset[int]
    pickupable: frozenset[int]
    holders: frozenset[int]
    cleanable: frozenset[int]
    heatable: frozenset[int]
    coolable: frozenset[int]
    toggleable: frozenset[int]
    sliceable: frozenset[int]
    knives: frozenset[int]
    fitting: tuple[frozenset[int], ...]
    nested: Mapping[int, tuple[int, ...]]
    numbers: Mapping[str, tuple[str, int]]
    go_to: tuple[tuple[tuple[str, int], ...], ...]
    start: State
    targets: tuple[int, ...]
    destinations: tuple[int, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Game:
        return self  # never changed, so copies of an environment share it

    def here(self, state: State) -> tuple[int, ...]:
        """The receptacles at the agent's location."""
        return self.receptacles_at[state.location]

    def accessible(self, state: State, receptacle: int) -> bool:
        """Whether things can be taken out of and put into a receptacle: it is open or needs no opening."""
        return receptacle not in self.openable or receptacle in state.opened

    def won(self, state: State) -> bool:
        """Whether the goal holds."""
        if self.goal.lamp_kind:
            return state.held in self.targets and any(self._lit(state, lamp) for lamp in self.destinations)
        marks = [marked_objects(state, mark) for mark in self.goal.marks]
        for receptacle in self.destinations:
            inside = state.contents[receptacle]
            if (
                inside
                and sum(o in self.targets and all(o in marked for marked in marks) for o in inside)
                >= self.goal.count
            ):
                return True
        return False

    def _lit(self, state: State, lamp: int) -> bool:
        if lamp not in state.toggled:
            return False
        if self.goal.lamp_in_receptacle:
            return any(lamp in state.contents[receptacle] for receptacle in self.here(state))
        return state.location in state.lying[lamp]


def marked_objects(state: State, mark: str) -> frozenset[int]:
    """The objects that bear a mark (``facts.MARKS``) in a state."""
    return {
        "isclean": state.clean,
        "ishot": state.hot,
        "iscool": state.cool,
        "istoggled": state.toggled,
        "issliced": state.sliced,
    }[mark]


def build_game(facts: Facts, goal: Goal, task: str, wording: Wording) -> Game:
    """Make a game of what is true at its start."""
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
    start = State(
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
        knives=frozenset([o for o, kind in enumerate(object_kinds) if kind in KNIVES]),
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
