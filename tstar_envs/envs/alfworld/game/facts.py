"""What is true at the start of a household game, as plain relations over raw ids: what PDDL files and compact scenes have in common.

Raw ids are those of ALFRED, escaped for PDDL and in lower case (``mug_bar__minus_01_dot_20_bar_...``); names of kinds come
without the domain's suffix (``mug`` for ``MugType``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Properties of objects that the domain knows, and the marks that actions leave on them.
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
# Verb -> kinds of things that it is done with: receptacles, of "slice" objects. A game file's own domain may name others.
TOOLS: Mapping[str, frozenset[str]] = {
    "clean": frozenset({"sinkbasin"}),
    "heat": frozenset({"microwave"}),
    "cool": frozenset({"fridge"}),
    "slice": frozenset({"knife", "butterknife"}),
}


@dataclass(frozen=True)
class Goal:
    """What must become true; the six kinds of task are combinations of these.

    Attributes:
        object_kind: of the object to place, or to look at.
        receptacle_kind: where it must be; "" in tasks of looking.
        lamp_kind: what must be turned on beside the agent while it holds the object; "" in tasks of placing.
        count: how many objects must be in one receptacle.
        marks: what must have been done to the object: ``isclean``, ``ishot``, ``iscool``.
        lamp_in_receptacle: whether the lamp counts where its receptacle is, as in the published games, or where it lies itself.
    """

    object_kind: str
    receptacle_kind: str = ""
    lamp_kind: str = ""
    count: int = 1
    marks: frozenset[str] = frozenset()
    lamp_in_receptacle: bool = True

    @property
    def task_type(self) -> str:
        """ALFRED's name of the task, ``pick_and_place_simple`` and so on."""
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
# Mark -> the ability that an object needs for it.
NEEDED_ABILITY = {
    "isclean": "cleanable",
    "ishot": "heatable",
    "iscool": "coolable",
    "issliced": "sliceable",
    "istoggled": "toggleable",
}


@dataclass
class Facts:
    """The relations of the domain ``alfred``.

    Attributes:
        receptacle_kinds: receptacle -> kind.
        object_kinds: object -> kind.
        receptacle_location: receptacle -> location.
        object_locations: pairs (object, location); where an object is sliced and whether it lies beside a receptacle.
        inside: pairs (object, receptacle).
        nested: pairs (inner object, outer object).
        abilities: one of ``ABILITIES`` -> the objects that have it.
        marks: one of ``MARKS`` -> the objects that bear it at the start.
        openable: receptacles that can be opened.
        opened: receptacles that are open at the start.
        fits: pairs (kind of receptacle, kind of object) that go together.
        agent_location: where the agent is.
        held: the object that the agent holds, "" for none.
        named: further raw ids that occur in a fact; they count in the numbering of names.
    """

    receptacle_kinds: dict[str, str] = field(default_factory=dict)
    object_kinds: dict[str, str] = field(default_factory=dict)
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
