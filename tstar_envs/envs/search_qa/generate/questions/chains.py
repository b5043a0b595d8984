"""Chains of facts: the path through a world, its look-ups, and how it is put into words.

A question's hops are runs: within a run the next entity is the value of the hop before. A *join* looks for the one
entity that has two given values, the ends of the runs before it; its query names these two and not the entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tstar_envs.envs.search_qa.generate.questions import rich_phrases
from tstar_envs.envs.search_qa.generate.questions.question import hop
from tstar_envs.envs.search_qa.generate.worlds.graph import WORK_KINDS, Entity, World
from tstar_envs.envs.search_qa.task import Hop
from tstar_envs.stable_random import StableRandom

# Chains through an office, a capital or an award's own facts are Bamboogle's alone: (type, relation) of a hop before the last.
KEPT_FOR_BAMBOOGLE = {
    ("country", "capital"),
    ("country", "president"),
    ("city", "mayor"),
    ("award", "presenter"),
    ("award", "city"),
}


@dataclass(frozen=True)
class Path:
    """Facts in a row: the first subject, and each next the object of the one before."""

    subjects: tuple[Entity, ...]
    relations: tuple[str, ...]

    def end(self, world: World) -> str:
        """The object of the last fact: an entity's id or a literal."""
        return world.facts[self.subjects[-1].id, self.relations[-1]]

    def hops(self, world: World) -> tuple[Hop, ...]:
        """The look-ups of the chain, in order."""
        return tuple(
            hop(world, entity, relation)
            for entity, relation in zip(self.subjects, self.relations, strict=True)
        )


def follow(world: World, start: Entity, relations: Sequence[str]) -> Path | None:
    """The path from an entity, None if a fact on it is not stated or leads in a circle."""
    subjects = [start]
    for relation in relations[:-1]:
        entity = world.entities.get(world.facts.get((subjects[-1].id, relation), ""))
        if entity is None or entity in subjects:
            return None
        subjects.append(entity)
    if (subjects[-1].id, relations[-1]) not in world.facts:
        return None
    return Path(tuple(subjects), tuple(relations))


def answers_as(world: World, path: Path) -> tuple[str, tuple[str, ...]]:
    """The object of the last fact, and its aliases if it is an entity."""
    value = path.end(world)
    return (
        (world.entities[value].name, world.entities[value].aliases)
        if value in world.entities
        else (value, ())
    )


def made(entity: Entity) -> dict[str, str]:
    """The maker noun and the past tense for a work, for wordings."""
    maker, verb = WORK_KINDS.get(entity.kind, ("", ""))
    return {"a": maker, "v": verb}


def describe(path: Path, rng: StableRandom) -> str:
    """The last subject of a path in words, through all facts before it."""
    text = rich_phrases.subject(path.subjects[0].type, path.subjects[0].kind, path.subjects[0].name)
    for entity, relation in zip(path.subjects, path.relations[:-1], strict=False):
        text = rng.choice(rich_phrases.PHRASES[relation]).format(D=text, **made(entity))
    return text


def runs(hops: Sequence[Hop]) -> list[list[Hop]]:
    """The hops in runs, see the module."""
    result: list[list[Hop]] = []
    for each in hops:
        if result and result[-1][-1].value == each.entity:
            result[-1].append(each)
        else:
            result.append([each])
    return result


def is_join(each: Hop) -> bool:
    """Whether a hop looks for an entity that no hop before it names."""
    return each.entity not in each.queries[0]


def join_hop(world: World, entity: Entity, relation: str, values: tuple[str, str], words: str) -> Hop:
    """The look-up of a fact of the entity that has two values; the second query is worded as a passage might be."""
    return Hop(
        entity.name,
        relation,
        world.object_name(entity.id, relation),
        entity.id,
        (f"{values[0]} {values[1]}", words),
    )
