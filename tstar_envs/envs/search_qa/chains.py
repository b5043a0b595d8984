"""Questions that chain facts: drawing a chain of look-ups, putting it into words, and proving the question.

A question's hops are runs: within a run the next entity is the value of the hop before. A *join* looks for the one
entity that has two given values, the ends of the runs before it; its query names these two and not the entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tstar_envs.envs.search_qa import second_templates, templates
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.proofs import ONE_SHOT_DEPTH, MiniWorld, Prover
from tstar_envs.envs.search_qa.questions import Hop, Question, hop
from tstar_envs.envs.search_qa.searcher import EMBEDDED_BACKENDS, EmbeddedSearcher
from tstar_envs.envs.search_qa.world import WORK_KINDS, Entity, World
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
        """The look-ups."""
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


def describe(path: Path, draw: StableRandom) -> str:
    """The last subject of a path in words, through all facts before it."""
    text = second_templates.subject(path.subjects[0].type, path.subjects[0].kind, path.subjects[0].name)
    for entity, relation in zip(path.subjects, path.relations[:-1], strict=False):
        text = draw.choice(second_templates.PHRASES[relation]).format(D=text, **made(entity))
    return text


def deal(
    family: str, split: str, first: Sequence[object], second: Sequence[object], draw: StableRandom
) -> tuple[int, int]:
    """A pair of indexes that belongs to a split."""
    return draw.choice(templates.split_templates(family, len(first), len(second))[split])


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


class ChainProver(Prover):
    """Proofs of questions that chain facts over one corpus, with every embedded search engine."""

    def __init__(self, mini: MiniWorld) -> None:
        super().__init__(mini, {name: EmbeddedSearcher(mini.corpus, name) for name in EMBEDDED_BACKENDS})

    def chain_rejection(self, question: Question, horizon: int, compares: bool = False) -> str:
        """Why a question must not ship, "" if it may.

        Proved: by the graph every run leads to one value only, and a join to one entity; no passage but its own states a hop
        or joins an earlier entity with the answer; the question does not contain its answer (unless it ``compares``); the
        last passage of a run that chains facts is not among the first 10 results for the raw question; every back end finds
        every hop with one of its two queries, at depth 1 and 3, within the horizon.
        """
        parts = runs(question.hops)
        ends: list[str] = []
        for part in parts:
            starts = self._joined(ends) if is_join(part[0]) else self._named(part[0])
            if starts != {part[0].passage} or self._ends(part) != {part[-1].value}:
                return "answer not unique"
            ends.append(part[-1].value)
        if not compares:
            if parts[-1][-1].value != question.answer:
                return "answer not unique"
            if any(self._stating(h.entity, question.answer) for h in question.hops[:-1]):
                return "a passage joins two hops"
            asked = normalize_answer(question.text)
            if any(normalize_answer(answer) in asked for answer in (question.answer, *question.aliases)):
                return "answer in question"
        for part in parts:
            if len(part) > 1 or is_join(part[0]):
                for backend in self._searchers:
                    if part[-1].passage in self._search(backend, question.text)[:ONE_SHOT_DEPTH]:
                        return "one shot"
        return self.look_up_rejection(question, horizon)

    def distractor_rejection(self, question: Question) -> str:
        """Why a question has no single-hop distractor, "" if every back end finds one: among the first 10 passages for the
        question or a query of its hops, one that answers the last step for another entity of that type.
        """
        last, hops = question.hops[-1], {h.passage for h in question.hops}
        entities, queries = (
            self._world.entities,
            [question.text, *(q for h in question.hops for q in h.queries)],
        )
        type_ = entities[last.passage].type
        for backend in self._searchers:
            near = (id_ for query in queries for id_ in self._search(backend, query)[:ONE_SHOT_DEPTH])
            if not any(
                entities[i].type == type_ and (i, last.relation) in self._world.facts
                for i in near
                if i not in hops
            ):
                return "no distractor"
        return ""

    def _named(self, first: Hop) -> set[str]:
        kind = self._world.entities[first.passage].kind
        return {id_ for id_ in self._by_name[first.entity] if self._world.entities[id_].kind == kind}

    def _joined(self, ends: Sequence[str]) -> set[str]:
        """The passages that hold both values, which is the weakest form of what a join asks for."""
        first, second = ends[-2:]
        return set(self._mentioning(first) & self._mentioning(second))

    def _ends(self, part: Sequence[Hop]) -> set[str]:
        """All values that a run leads to from entities of its first hop."""
        current = {part[0].passage}
        for each in part[:-1]:
            current = {self._world.facts[id_, each.relation] for id_ in current}
        return {self._world.object_name(id_, part[-1].relation) for id_ in current}
