"""A knowledge graph of invented people, works, organisations, cities and countries.

Entities come in *regions*. A fact never links two regions, so questions asked about one region share no entity with
questions about another: regions are how train, valid and test stay apart while one corpus holds them all. Facts are
functional (one object per subject and relation) and each is stated by the passage of its subject alone, so a question
that chains two facts needs two passages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

WORK_KINDS: dict[str, tuple[str, str]] = {  # kind -> (who makes it, what that person did, in the past tense)
    "novel": ("author", "wrote"),
    "film": ("director", "directed"),
    "opera": ("composer", "composed"),
    "album": ("singer", "recorded"),
    "fresco": ("painter", "painted"),
}
PARTICIPLES = {
    "wrote": "written",
    "directed": "directed",
    "composed": "composed",
    "recorded": "recorded",
    "painted": "painted",
}


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with a passage of its own.

    Attributes:
        id: unique key, ``<type><number>``.
        type: ``person``, ``work``, ``company``, ``school``, ``city``, ``country`` or ``award``.
        name: how passages and questions call it; unique, except that a work may have a namesake of another kind.
        kind: for works, a key of ``WORK_KINDS``; else equal to ``type``.
        region: which part of the world it belongs to.
        popularity: how well known it is (Zipf's law over the world); 0 where the world does not say.
        aliases: other answers that mean it; no alias fits two entities of a world.
    """

    id: str
    type: str
    name: str
    kind: str
    region: str
    popularity: int = 0
    aliases: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Title of its passage; works name their kind, as encyclopaedias do for namesakes."""
        return f"{self.name} ({self.kind})" if self.type == "work" else self.name


@dataclass
class World:
    """Entities by id and facts by (subject id, relation); an object is an entity id or a literal (year, occupation)."""

    entities: dict[str, Entity] = field(default_factory=dict)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, type_: str, name: str, region: str, kind: str | None = None) -> str:
        """A new entity; returns its id."""
        entity = Entity(f"{type_}{len(self.entities):05d}", type_, name, kind or type_, region)
        self.entities[entity.id] = entity
        return entity.id

    @cached_property
    def by_subject(self) -> dict[str, list[tuple[str, str]]]:
        """Subject -> (relation, object) of its facts; made at first use, when the world is complete."""
        found: dict[str, list[tuple[str, str]]] = {}
        for (subject, relation), value in self.facts.items():
            found.setdefault(subject, []).append((relation, value))
        return found

    @cached_property
    def by_object(self) -> dict[str, list[tuple[str, str]]]:
        """Object -> (subject, relation) of the facts about it; made at first use, when the world is complete."""
        found: dict[str, list[tuple[str, str]]] = {}
        for (subject, relation), value in self.facts.items():
            found.setdefault(value, []).append((subject, relation))
        return found

    def object_name(self, subject: str, relation: str) -> str:
        """The object of a fact as text.

        Raises:
            KeyError: the world states no such fact.
        """
        value = self.facts[(subject, relation)]
        return self.entities[value].name if value in self.entities else value

    def of_type(self, kind: str, region: str) -> list[Entity]:
        """Entities of one type in one region, in order of creation; for complete worlds."""
        return self._by_type.get((kind, region), [])

    @cached_property
    def _by_type(self) -> dict[tuple[str, str], list[Entity]]:
        found: dict[tuple[str, str], list[Entity]] = {}
        for entity in self.entities.values():
            found.setdefault((entity.type, entity.region), []).append(entity)
        return found
