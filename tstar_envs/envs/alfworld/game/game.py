"""A household game ready to be played: what never changes in it, over numbers instead of ids, and its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tstar_envs.envs.alfworld.game.facts import Goal
from tstar_envs.envs.alfworld.game.wording import Wording
from tstar_envs.envs.alfworld.state import Household

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


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Game:
    """One game.

    Attributes:
        task: the task in words, as the game words it.
        goal: when the game is won.
        wording: what its release says in its own way.
        receptacle_names, object_names, location_names: names by number.
        receptacle_kinds, object_kinds: kinds by number, "" if the file names none.
        location_of: location of each receptacle, ``NOTHING`` if it has none.
        receptacles_at: the receptacles of each location.
        reachable: receptacles that have a location.
        openable: receptacles.
        pickupable, holders, cleanable, heatable, coolable, toggleable, sliceable: objects; holders are those that things can be in.
        tools: verb -> kinds of what it is done with (``facts.TOOLS`` unless the game's file says otherwise).
        appliances: verb -> the receptacles that it is done with.
        knives: objects that slice.
        fitting: for each object the receptacles that take it.
        nested: for each object the objects in it.
        numbers: name -> ("receptacle" or "object", number).
        go_to: for each location the commands that lead elsewhere, sorted; the last entry is for a location without receptacles.
        start: the household at the start.
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
        return self  # never changed, so copies of an environment share it

    def here(self, household: Household) -> tuple[int, ...]:
        """The receptacles at the agent's location."""
        return self.receptacles_at[household.location]

    def accessible(self, household: Household, receptacle: int) -> bool:
        """Whether things can be taken out of and put into a receptacle: it is open or needs no opening."""
        return receptacle not in self.openable or receptacle in household.opened

    def won(self, household: Household) -> bool:
        """Whether the goal holds."""
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
    """The objects that bear a mark (``facts.MARKS``)."""
    return {
        "isclean": household.clean,
        "ishot": household.hot,
        "iscool": household.cool,
        "istoggled": household.toggled,
        "issliced": household.sliced,
    }[mark]
