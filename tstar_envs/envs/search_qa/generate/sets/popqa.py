"""The mini tier's PopQA: one fact of a little known entity, in the fixed forms of the original, for testing only.

The entities are those of the rich world's test region that are not among its best known; each question has the popularity
of its entity. What is proved of every question is listed at ``rejection``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from tstar_envs.envs.search_qa.generate.generator import Generator
from tstar_envs.envs.search_qa.generate.proofs.checks import check_split, check_world
from tstar_envs.envs.search_qa.generate.proofs.prover import Prover
from tstar_envs.envs.search_qa.generate.questions.aliases import accepted_answers, ill_formed
from tstar_envs.envs.search_qa.generate.questions.question import Question, hop
from tstar_envs.envs.search_qa.generate.questions.selection import numbered
from tstar_envs.envs.search_qa.generate.worlds.graph import Entity, World
from tstar_envs.envs.search_qa.generate.worlds.making import RICH, MiniWorld
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.question_sets import POPQA
from tstar_envs.envs.search_qa.task import Task
from tstar_envs.stable_random import StableRandom

SIZE = 1000
# (kind of entity, relation) -> PopQA's name of the relation and its form; {X} is the entity
FORMS: dict[tuple[str, str], tuple[str, str]] = {
    ("person", "occupation"): ("occupation", "What is {X}'s occupation?"),
    ("person", "birthplace"): ("place of birth", "In what city was {X} born?"),
    ("person", "father"): ("father", "Who is the father of {X}?"),
    ("person", "mother"): ("mother", "Who is the mother of {X}?"),
    ("novel", "creator"): ("author", "Who is the author of {X}?"),
    ("film", "creator"): ("director", "Who was the director of {X}?"),
    ("opera", "creator"): ("composer", "Who was the composer of {X}?"),
    **{
        (kind, "genre"): ("genre", "What genre is {X}?")
        for kind in ("novel", "film", "opera", "album", "fresco")
    },
    ("city", "country"): ("country", "In what country is {X}?"),
    ("country", "capital"): ("capital", "What is the capital of {X}?"),
}


def long_tail(mini: MiniWorld, region: str, rng: StableRandom) -> Iterator[tuple[Entity, str]]:
    """(entity, relation) for each fact of a region that PopQA would ask for, from the least known entity upwards."""
    world = mini.world
    facts = [
        (world.entities[s], r)
        for s, r in world.facts
        if world.entities[s].region == region and (world.entities[s].kind, r) in FORMS
    ]
    return iter(sorted(rng.shuffled(facts), key=lambda fact: fact[0].popularity))


def question(
    mini: MiniWorld, answers: Callable[[str], tuple[str, ...]], entity: Entity, relation: str
) -> Question:
    """One fact in its fixed form."""
    name, form = FORMS[entity.kind, relation]
    value = mini.world.facts[entity.id, relation]
    golden = answers(value) if value in mini.world.entities else (value,)
    look_up = hop(mini.world, entity, relation)
    return Question(
        form.format(X=entity.name),
        golden[0],
        name,
        f"popqa/{name}",
        (look_up,),
        golden[1:],
        entity.popularity,
    )


def _meant(world: World, asked: Question) -> set[str]:
    """Every entity that a form may mean: it names the kind of a work only where the relation does."""
    (only,) = asked.hops
    kinds = {
        kind
        for (kind, relation), (name, _) in FORMS.items()
        if (relation, name) == (only.relation, asked.kind)
    }
    return {e.id for e in world.entities.values() if e.name == only.entity and e.kind in kinds}


def rejection(mini: MiniWorld, prover: Prover, asked: Question) -> str:
    """Why a question must not ship, "" if it may.

    Proved: the form means one entity; no other passage holds entity and answer; no golden answer stands in the question, and they
    are different and not empty under both normalisations; every back end finds the passage with one of the two queries, at depth 1
    and 3, within the horizon.
    """
    if _meant(mini.world, asked) != {asked.hops[0].passage}:
        return "answer not unique"
    golden = (asked.answer, *asked.aliases)
    if ill_formed(golden):
        return "aliases equal or empty"
    if any(normalize_answer(answer) in normalize_answer(asked.text) for answer in golden):
        return "answer in question"
    return prover.look_up_rejection(asked, POPQA.horizon)


def questions(mini: MiniWorld, prover: Prover, region: str, rng: StableRandom) -> Iterator[Question]:
    """Every question about a region that passes the proofs, from the least known entity upwards."""
    answers = accepted_answers(mini.world)
    asked = (question(mini, answers, entity, relation) for entity, relation in long_tail(mini, region, rng))
    return (one for one in asked if not rejection(mini, prover, one))


def build(seed: int = RICH.seed) -> tuple[MiniWorld, dict[str, list[Task]]]:
    """See ``generator.Build``."""
    mini = RICH.make(seed)
    check_world(mini)
    rng = StableRandom(f"{seed}/popqa/test")
    least_known = list(itertools.islice(questions(mini, Prover(mini), "test", rng), SIZE))
    splits = {"test": numbered(POPQA.name, "test", rng.shuffled(least_known))}
    check_split("test", splits["test"], SIZE)
    return mini, splits


def practice(mini: MiniWorld, count: int, rng: StableRandom) -> list[Question]:
    """See ``generator.Practice``; the forms are fixed, so there are no wordings of a train split."""
    return rng.shuffled(list(questions(mini, Prover(mini), "train", rng)))[:count]


GENERATOR = Generator(POPQA, build, practice)
