"""Clues for quiz questions: how they are put, and which entities they fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tstar_envs.envs.search_qa.generate.worlds.graph import World

# type -> relation -> three ways to put a clue; {o} is the object. All clues of a question are put in the same way.
CLUES: dict[str, dict[str, tuple[str, str, str]]] = {
    "person": {
        "birthplace": ("was born in {o}", "came from {o}", "was a native of {o}"),
        "birth_year": (
            "was born in the year {o}",
            "came into the world in {o}",
            "was a child of the year {o}",
        ),
        "death_year": ("died in {o}", "lived until {o}", "passed away in {o}"),
        "occupation": ("worked as {o}", "was {o} by trade", "made a name as {o}"),
        "school": ("studied at {o}", "attended {o}", "was educated at {o}"),
        "employer": ("was employed by {o}", "worked for {o}", "was on the staff of {o}"),
        "award": ("received the {o}", "won the {o}", "was honoured with the {o}"),
        "father": ("was a child of {o}", "had {o} as father", "called {o} father"),
        "mother": ("was a child of {o}", "had {o} as mother", "called {o} mother"),
    },
    "work": {
        "creator": ("was made by {o}", "is the work of {o}", "comes from the hand of {o}"),
        "year": ("came out in {o}", "appeared in {o}", "was released in {o}"),
        "company": ("was published by {o}", "was released by {o}", "was issued by {o}"),
        "genre": ("belongs to the genre of {o}", "is a work of {o}", "is counted as {o}"),
        "award": ("won the {o}", "received the {o}", "was honoured with the {o}"),
    },
    "company": {
        "founder": ("was founded by {o}", "was set up by {o}", "was started by {o}"),
        "founding_year": ("was founded in {o}", "opened in {o}", "dates from {o}"),
        "city": ("is based in {o}", "has its seat in {o}", "is located in {o}"),
    },
    "city": {
        "country": ("lies in {o}", "belongs to {o}", "is located in {o}"),
        "river": ("stands on the river {o}", "lies on the {o}", "is divided by the {o}"),
    },
    "award": {
        "presenter": ("is given by {o}", "is awarded by {o}", "is presented by {o}"),
        "first_year": ("was first given in {o}", "has been given since {o}", "began in {o}"),
        "city": ("is handed over in {o}", "has its ceremony in {o}", "is received in {o}"),
    },
}
CLUES["school"] = CLUES["company"]


class ClueIndex:
    """Which entities of a type a clue fits, by the facts that the world states."""

    def __init__(self, world: World) -> None:
        self._fitting: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        self._entities = world.entities
        for (subject, relation), value in world.facts.items():
            entity = world.entities[subject]
            for kind in {entity.kind, entity.type}:
                self._fitting[kind, relation, value].add(subject)

    def fitting(self, kind: str, clues: Sequence[tuple[str, str]]) -> set[str]:
        """Ids of the entities of a kind (or a type) that fit all clues (relation, object)."""
        return set.intersection(*(self._fitting[kind, relation, value] for relation, value in clues))

    def fixes(self, id_: str, clues: Sequence[tuple[str, str]]) -> bool:
        """Whether the clues fit this entity alone, and without any one of them others too."""
        kind = self._entities[id_].kind
        fewer = (self.fitting(kind, [c for c in clues if c != left_out]) for left_out in clues)
        return self.fitting(kind, clues) == {id_} and all(len(found) > 1 for found in fewer)

    def needs_kind(self, id_: str, clues: Sequence[tuple[str, str]]) -> bool:
        """Whether the kind of a work is a clue that cannot be left out: another kind of work fits the others too."""
        return self.fitting(self._entities[id_].type, clues) != {id_}
