"""The mini tier's Natural Questions: one relation of one entity, in lower case and without a question mark.

They are asked of the passages that the HotpotQA questions use, so no corpus is added and none of its ranks can change.
What is proved of every question is listed at ``rejection``; what is proved of a whole split at ``check_split``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tstar_envs.choices import SPLITS
from tstar_envs.envs.search_qa.generate.generator import SIZES, Generator
from tstar_envs.envs.search_qa.generate.proofs.checks import check_disjoint, check_split, check_world
from tstar_envs.envs.search_qa.generate.proofs.prover import Prover
from tstar_envs.envs.search_qa.generate.questions import templates
from tstar_envs.envs.search_qa.generate.questions.question import Question, hop
from tstar_envs.envs.search_qa.generate.questions.selection import numbered
from tstar_envs.envs.search_qa.generate.questions.template_splits import deal
from tstar_envs.envs.search_qa.generate.worlds.graph import WORK_KINDS, Entity
from tstar_envs.envs.search_qa.generate.worlds.making import PLAIN, MiniWorld
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.question_sets import NQ
from tstar_envs.envs.search_qa.task import Task
from tstar_envs.stable_random import StableRandom

# relation -> frames; {D} is the entity, {a} maker noun, {v} what the maker did. The rest as in two-hop questions.
FRAMES: dict[str, tuple[str, ...]] = {
    **templates.FRAMES,
    "creator": (
        "who {v} {D}",
        "who is the {a} of {D}",
        "name the {a} of {D}",
        "who is the {a} behind {D}",
        "by whom was {D} made",
        "who made {D}",
    ),
    "company": (
        "who published {D}",
        "which company released {D}",
        "what company published {D}",
        "who is the publisher of {D}",
        "by which company was {D} released",
        "name of the company that released {D}",
    ),
    "year": (
        "when did {D} come out",
        "in which year was {D} released",
        "what year did {D} come out",
        "when was {D} released",
        "release year of {D}",
        "in what year did {D} appear",
    ),
}
# type -> how the entity is called; a work always with its kind, since it may have a namesake of another
SUBJECTS: dict[str, tuple[str, ...]] = {
    "person": ("{X}", "the person {X}", "the person named {X}"),
    "work": ("the {k} {X}", "the {k} called {X}", "the {k} named {X}"),
    "company": ("{X}", "the company {X}", "the company called {X}"),
    "school": ("{X}", "the school {X}", "the school called {X}"),
    "city": ("{X}", "the city {X}", "the city of {X}"),
}


def question(mini: MiniWorld, entity: Entity, relation: str, split: str, rng: StableRandom) -> Question:
    """One fact as a question in the wordings of one split."""
    frames, subjects = FRAMES[relation], SUBJECTS[entity.type]
    frame, subject = deal(f"nq/{entity.type}-{relation}", split, frames, subjects, rng)
    maker, verb = WORK_KINDS.get(entity.kind, ("", ""))
    described = subjects[subject].format(X=entity.name, k=entity.kind)
    text = frames[frame].format(D=described, a=maker, v=verb).lower().rstrip("?")
    look_up = hop(mini.world, entity, relation)
    return Question(
        text, look_up.value, relation, f"nq/{entity.type}-{relation}/{frame}/{subject}", (look_up,)
    )


def questions(mini: MiniWorld, region: str, split: str, rng: StableRandom) -> Iterator[Question]:
    """One question about each fact of a region, in random order. Occupations are few, so they are not asked for."""
    entities = mini.world.entities
    facts = [(s, r) for s, r in mini.world.facts if entities[s].region == region and r in FRAMES]
    return (question(mini, entities[s], r, split, rng) for s, r in rng.shuffled(facts))


def rejection(mini: MiniWorld, prover: Prover, asked: Question) -> str:
    """Why a question must not ship, "" if it may.

    Proved: the graph gives exactly its answer; no other passage holds entity and answer; the question does not contain its
    answer; every back end finds the passage with one of the two queries, at depth 1 and 3, within the horizon.
    """
    (only,) = asked.hops
    world = mini.world
    kind = world.entities[only.passage].kind
    twins = [
        i
        for i, e in world.entities.items()
        if e.name == only.entity and e.kind == kind and (i, only.relation) in world.facts
    ]
    if {world.object_name(i, only.relation) for i in twins} != {asked.answer}:
        return "answer not unique"
    if normalize_answer(asked.answer) in normalize_answer(asked.text):
        return "answer in question"
    return prover.look_up_rejection(asked, NQ.horizon)


def build(seed: int = PLAIN.seed) -> tuple[MiniWorld, dict[str, list[Task]]]:
    """See ``generator.Build``."""
    mini = PLAIN.make(seed)
    check_world(mini)
    prover = Prover(mini)
    splits: dict[str, list[Task]] = {}
    for split in SPLITS:
        drawn = questions(mini, split, split, StableRandom(f"{seed}/nq/{split}"))
        fit = (question for question in drawn if not rejection(mini, prover, question))
        splits[split] = numbered(NQ.name, split, itertools.islice(fit, SIZES[split]))
        check_split(split, splits[split], SIZES[split])
    check_disjoint(splits)
    return mini, splits


def practice(mini: MiniWorld, count: int, rng: StableRandom) -> list[Question]:
    """See ``generator.Practice``; they are not proved."""
    return list(itertools.islice(questions(mini, "train", "train", rng), count))


GENERATOR = Generator(NQ, build, practice)
