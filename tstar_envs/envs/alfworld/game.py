"""Games: facts, names and states of a household."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

NOTHING = -1  # no held object, or no location


class Household(NamedTuple):
    """State of the room and the agent: everything that commands change and later answers depend on.

    ``contents[r]`` are the objects in receptacle r and ``lying[o]`` the locations of object o, both ascending. ``left`` holds pairs
    (object, receptacle) where the object was taken out and not put back. If such an object lies at the location of the receptacle,
    the game lists it "next to" the receptacle.
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


Seen = frozenset[int]  # receptacles whose contents were shown
NOTHING_SEEN: Seen = frozenset()


class Answer(NamedTuple):
    """Answer of the engine.

    It has the text, the admissible commands in the engine's order, and whether the game is won.
    """

    feedback: str
    admissible: tuple[str, ...]
    won: bool


class Mirrored(NamedTuple):
    """Original engine's part of a state: the commands so far and its last answer."""

    history: tuple[str, ...]
    answer: Answer


class State(NamedTuple):
    """State of an episode.

    Attributes:
        household: current state of the household.
        seen: receptacles whose contents were shown.
        mirrored: the original engine's part, None without it.
    """

    household: Household
    seen: Seen = NOTHING_SEEN
    mirrored: Mirrored | None = None


# Properties of objects in the domain, and the marks that actions set.
ABILITIES = (
    "pickupable",
    "isreceptacleobject",
    "cleanable",
    "heatable",
    "coolable",
    "toggleable",
    "sliceable",
)
MARKS = ("isclean", "ishot", "iscool", "istoggled", "issliced")
# verb -> types of its tools: receptacles, objects for "slice"; a game file's domain may differ
TOOLS: Mapping[str, frozenset[str]] = {
    "clean": frozenset({"sinkbasin"}),
    "heat": frozenset({"microwave"}),
    "cool": frozenset({"fridge"}),
    "slice": frozenset({"knife", "butterknife"}),
}


@dataclass(frozen=True)
class Goal:
    """Goal of a game; the six task types are combinations of these fields.

    Attributes:
        object_kind: type of the object to place or to look at.
        receptacle_kind: type of the target receptacle; "" in look tasks.
        lamp_kind: type of the lamp to turn on next to the agent that holds the object; "" in place tasks.
        count: number of objects that must be in one receptacle.
        marks: required marks of the object: ``isclean``, ``ishot``, ``iscool``.
        lamp_in_receptacle: True if the location of the lamp's receptacle counts, as in the published games; False for the lamp's own.
    """

    object_kind: str
    receptacle_kind: str = ""
    lamp_kind: str = ""
    count: int = 1
    marks: frozenset[str] = frozenset()
    lamp_in_receptacle: bool = True

    @property
    def task_type(self) -> str:
        """ALFRED's name of the task type, such as ``pick_and_place_simple``."""
        if self.lamp_kind:
            return "look_at_obj_in_light"
        if self.count == 2:
            return "pick_two_obj_and_place"
        return next((TREATED[mark] for mark in sorted(self.marks)), "pick_and_place_simple")


TREATED = {
    "isclean": "pick_clean_then_place_in_recep",
    "ishot": "pick_heat_then_place_in_recep",
    "iscool": "pick_cool_then_place_in_recep",
}
# mark -> ability that an object needs for it
NEEDED_ABILITY = {
    "isclean": "cleanable",
    "ishot": "heatable",
    "iscool": "coolable",
    "issliced": "sliceable",
    "istoggled": "toggleable",
}


@dataclass
class Facts:
    """Initial facts of a game: the relations of the domain ``alfred``.

    Attributes:
        receptacle_types: receptacle -> type.
        object_types: object -> type.
        receptacle_location: receptacle -> location.
        object_locations: pairs (object, location); used for slicing and for "next to" a receptacle.
        inside: pairs (object, receptacle).
        nested: pairs (inner object, outer object).
        abilities: one of ``ABILITIES`` -> objects that have it.
        marks: one of ``MARKS`` -> objects that have it at the start.
        openable: receptacles that can be opened.
        opened: receptacles that are open at the start.
        fits: pairs (receptacle type, object type) that fit.
        agent_location: location of the agent.
        held: object that the agent holds, "" for none.
        named: other raw ids in the facts; they count in the numbering of names.
    """

    receptacle_types: dict[str, str] = field(default_factory=dict)
    object_types: dict[str, str] = field(default_factory=dict)
    receptacle_location: dict[str, str] = field(default_factory=dict)
    object_locations: set[tuple[str, str]] = field(default_factory=set)
    inside: set[tuple[str, str]] = field(default_factory=set)
    nested: set[tuple[str, str]] = field(default_factory=set)
    abilities: dict[str, set[str]] = field(default_factory=lambda: {ability: set() for ability in ABILITIES})
    marks: dict[str, set[str]] = field(default_factory=lambda: {mark: set() for mark in MARKS})
    openable: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    fits: set[tuple[str, str]] = field(default_factory=set)
    agent_location: str = ""
    held: str = ""
    named: set[str] = field(default_factory=set)


_SEPARATOR = "_bar_"


def demangle(ids: Iterable[str]) -> dict[str, str]:
    """Map raw ids to displayed names."""
    ordered = sorted(ids)
    bases = {}
    for raw in ordered:
        base, separator, _ = raw.partition(_SEPARATOR)
        if separator:
            bases[raw] = f"{base}basin" if "basin" in raw else base
    left = Counter(bases.values())
    names = {}
    for raw in ordered:
        base = bases.get(raw, "")
        # An id without a part after a bar gets no number; ALFWorld's wrapper keeps the space in front of it.
        names[raw] = f"{base} {left[base]}" if base else f"{raw} "
        left[base] -= 1
    return names


class Phrase(NamedTuple):
    """Sentence template with gaps.

    Attributes:
        texts: texts around the gaps, one more than gaps.
        gaps: content of each gap: ``o`` object, ``r`` receptacle, ``l`` location, ``k`` knife.
        contents: True if the contents of the receptacle follow.
    """

    texts: tuple[str, ...]
    gaps: tuple[str, ...] = ()
    contents: bool = False

    def fill(self, names: Mapping[str, str]) -> str:
        """Fill the gaps with names."""
        pieces = [self.texts[0]]
        for gap, text in zip(self.gaps, self.texts[1:], strict=True):
            pieces += (names[gap], text)
        return "".join(pieces)


def _phrase(text: str, *, contents: bool = False) -> Phrase:
    pieces = text.split("|")
    return Phrase(tuple(pieces[::2]), tuple(pieces[1::2]), contents)


MOVE = _phrase("move |o| to |r|")
ANSWERS: Mapping[str, Phrase] = {
    "go": _phrase("You arrive at |r|.", contents=True),
    "open": _phrase("You open the |r|.", contents=True),
    "close": _phrase("You close the |r|."),
    "take": _phrase("You pick up the |o| from the |r|."),
    "move": _phrase("You move the |o| to the |r|."),
    "clean": _phrase("You clean the |o| using the |r|."),
    "heat": _phrase("You heat the |o| using the |r|."),
    "cool": _phrase("You cool the |o| using the |r|."),
    "slice": _phrase("You sliced the |o| with the |k|."),
}


@dataclass(frozen=True)
class Wording:
    """Wording that differs between game files.

    Attributes:
        move: the command that puts an object down.
        answers: verb -> answer.
        help: the answer to ``help``; "" if the game does not know that command.
    """

    move: Phrase = MOVE
    answers: Mapping[str, Phrase] = field(default_factory=lambda: ANSWERS)
    help: str = ""

    def before_0_4(self) -> Wording:
        """Replace ``move`` with ``put``, the wording of ALFWorld's games before release 0.4."""
        return replace(
            self,
            move=_phrase("put |o| in/on |r|"),
            answers={**self.answers, "move": _phrase("You put the |o| in/on the |r|.")},
        )


# Independent fields of a ``Game``; the other fields are derived from them.
GIVEN = (
    "task",
    "goal",
    "wording",
    "receptacle_names",
    "object_names",
    "location_names",
    "receptacle_types",
    "object_types",
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


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Game:
    """Game: its goal, names, properties and start.

    Attributes:
        task: task description in the game's words.
        goal: winning condition.
        wording: wording of its release.
        receptacle_names, object_names, location_names: names by number.
        receptacle_types, object_types: types by number, "" if the file has none.
        location_of: location of each receptacle, ``NOTHING`` if it has none.
        receptacles_at: receptacles of each location.
        reachable: receptacles that have a location.
        openable: receptacles that can be opened.
        pickupable, holders, cleanable, heatable, coolable, toggleable, sliceable: objects with this property; holders can contain objects.
        tools: verb -> types of its tools (``TOOLS`` unless the game file differs).
        appliances: verb -> receptacles that serve as its tool.
        knives: objects that slice.
        fitting: for each object the receptacles that it fits.
        nested: for each object the objects in it.
        numbers: name -> ("receptacle" or "object", number).
        go_to: for each location the sorted ``go to`` commands; the last entry is for a location without receptacles.
        start: household at the start.
        targets: objects of the goal.
        destinations: receptacles of the goal, or lamps in a look task.
    """

    task: str
    goal: Goal
    wording: Wording
    receptacle_names: tuple[str, ...]
    object_names: tuple[str, ...]
    location_names: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    object_types: tuple[str, ...]
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
    tools: Mapping[str, frozenset[str]]
    appliances: Mapping[str, frozenset[int]]
    knives: frozenset[int]
    fitting: tuple[frozenset[int], ...]
    nested: Mapping[int, tuple[int, ...]]
    numbers: Mapping[str, tuple[str, int]]
    go_to: tuple[tuple[tuple[str, int], ...], ...]
    start: Household
    targets: tuple[int, ...]
    destinations: tuple[int, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Game:
        return self  # immutable, so copies of an environment share it

    def here(self, household: Household) -> tuple[int, ...]:
        """List the receptacles at the agent's location."""
        return self.receptacles_at[household.location]

    def accessible(self, household: Household, receptacle: int) -> bool:
        """Check whether a receptacle is open or needs no opening."""
        return receptacle not in self.openable or receptacle in household.opened

    def won(self, household: Household) -> bool:
        """Check whether the goal holds."""
        if self.goal.lamp_kind:
            return household.held in self.targets and any(
                self._lit(household, lamp) for lamp in self.destinations
            )
        marks = [marked_objects(household, mark) for mark in self.goal.marks]
        for receptacle in self.destinations:
            inside = household.contents[receptacle]
            if (
                inside
                and sum(o in self.targets and all(o in marked for marked in marks) for o in inside)
                >= self.goal.count
            ):
                return True
        return False

    def _lit(self, household: Household, lamp: int) -> bool:
        if lamp not in household.toggled:
            return False
        if self.goal.lamp_in_receptacle:
            return any(lamp in household.contents[receptacle] for receptacle in self.here(household))
        return household.location in household.lying[lamp]


def marked_objects(household: Household, mark: str) -> frozenset[int]:
    """Get the objects that have a mark (``MARKS``)."""
    return {
        "isclean": household.clean,
        "ishot": household.hot,
        "iscool": household.cool,
        "istoggled": household.toggled,
        "issliced": household.sliced,
    }[mark]


def build_game(
    facts: Facts, goal: Goal, task: str, wording: Wording, tools: Mapping[str, frozenset[str]] = TOOLS
) -> Game:
    """Build a game from its initial facts.

    Args:
        facts: initial facts.
        goal: winning condition.
        task: task description.
        wording: wording of commands and answers.
        tools: verb -> types of its tools.
    """
    receptacles, objects = sorted(facts.receptacle_types), sorted(facts.object_types)
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
    object_types = tuple([facts.object_types[raw] for raw in objects])
    receptacle_types = tuple([facts.receptacle_types[raw] for raw in receptacles])
    receptacle_names, object_names = (
        tuple([names[raw] for raw in receptacles]),
        tuple([names[raw] for raw in objects]),
    )
    takers: dict[str, frozenset[int]] = {}
    for kind in set(object_types):
        takers[kind] = frozenset(
            [r for r, taker in enumerate(receptacle_types) if (taker, kind) in facts.fits]
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
        for o, kind in enumerate(object_types)
        if kind == goal.object_kind and all(o in members for members in needed)
    ]
    if goal.lamp_kind:
        destinations = [
            o for o, kind in enumerate(object_types) if kind == goal.lamp_kind and o in able["toggleable"]
        ]
    else:
        destinations = [r for r, kind in enumerate(receptacle_types) if kind == goal.receptacle_kind]
    numbers = {name: ("object", number) for number, name in enumerate(object_names)}
    numbers.update({name: ("receptacle", number) for number, name in enumerate(receptacle_names)})
    return Game(
        task=task,
        goal=goal,
        wording=wording,
        receptacle_names=receptacle_names,
        object_names=object_names,
        location_names=tuple([names.get(raw, raw) for raw in locations]),
        receptacle_types=receptacle_types,
        object_types=object_types,
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
            verb: frozenset([r for r, kind in enumerate(receptacle_types) if kind in kinds])
            for verb, kinds in tools.items()
            if verb != "slice"
        },
        knives=frozenset([o for o, kind in enumerate(object_types) if kind in tools["slice"]]),
        fitting=tuple([takers[kind] for kind in object_types]),
        nested={outer: tuple(sorted(inner)) for outer, inner in nested.items()},
        numbers=numbers,
        go_to=go_to,
        start=start,
        targets=tuple(targets),
        destinations=tuple(destinations),
    )


def _numbers(ids: Iterable[str], number: Mapping[str, int]) -> frozenset[int]:
    return frozenset([number[raw] for raw in ids])
