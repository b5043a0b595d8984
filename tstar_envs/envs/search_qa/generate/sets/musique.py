"""The mini tier's MuSiQue: chains of two to four facts, straight or branching, over the rich world.

Kinds are MuSiQue's: ``2hop``, ``3hop1`` and ``4hop1`` are straight chains; ``3hop2`` joins two facts in a third (the one
entity that has both values), ``4hop2`` joins a chain of two and a fact, and ``4hop3`` goes on from a joined entity.
Every question has single-hop distractors: passages near to it that answer its last step for something else.
"""

from __future__ import annotations

from tstar_envs.envs.search_qa.generate.generator import Generator
from tstar_envs.envs.search_qa.generate.proofs.chain_prover import ChainProver
from tstar_envs.envs.search_qa.generate.questions.chains import (
    KEPT_FOR_BAMBOOGLE,
    Path,
    answers_as,
    describe,
    join_hop,
    made,
)
from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.generate.questions.rich_frames import FRAMES
from tstar_envs.envs.search_qa.generate.questions.rich_phrases import PHRASES
from tstar_envs.envs.search_qa.generate.questions.template_splits import deal
from tstar_envs.envs.search_qa.generate.recipe import Recipe
from tstar_envs.envs.search_qa.generate.sets.musique_joins import JOINS
from tstar_envs.envs.search_qa.generate.worlds.graph import Entity, World
from tstar_envs.envs.search_qa.question_sets import MUSIQUE
from tstar_envs.stable_random import StableRandom

# MuSiQue's development set: half have two hops, a third three, a sixth four.
SHARES = {"2hop": 0.48, "3hop1": 0.22, "3hop2": 0.12, "4hop1": 0.08, "4hop2": 0.05, "4hop3": 0.05}
STARTS = ("work", "work", "work", "person", "person", "company", "school", "award")
# The answer would be a bare title, which may have a namesake; an award has no seat that the frames could ask for.
UNASKED = {("work", "based_on"), ("award", "city")}


def draw_question(
    world: World, region: str, split: str, rng: StableRandom, kind: str, turn: int
) -> Question | None:
    """See ``recipe.Draw``."""
    if kind in ("2hop", "3hop1", "4hop1"):
        start = rng.choice(world.of_type(rng.choice(STARTS), region))
        path = _walk(world, start, int(kind[0]), rng)
        return None if path is None else _straight(world, path, kind, split, rng)
    return _branching(world, region, split, rng, kind)


def _walk(world: World, start: Entity, length: int, rng: StableRandom) -> Path | None:
    """A random path of so many facts whose last may be asked for."""
    subjects, relations = [start], list[str]()
    while len(relations) < length - 1:
        options = [
            (r, v)
            for r, v in world.by_subject.get(subjects[-1].id, ())
            if r in PHRASES and v in world.entities
        ]
        options = [(r, v) for r, v in options if (subjects[-1].type, r) not in KEPT_FOR_BAMBOOGLE]
        if not options:
            return None
        relation, value = rng.choice(options)
        relations.append(relation)
        subjects.append(world.entities[value])
    finals = [
        r
        for r, v in world.by_subject.get(subjects[-1].id, ())
        if r in FRAMES and v not in {s.id for s in subjects}
    ]
    finals = [r for r in finals if (subjects[-1].type, r) not in UNASKED]
    if not finals or len({s.name for s in subjects}) < len(subjects):
        return None
    return Path(tuple(subjects), (*relations, rng.choice(finals)))


def _straight(world: World, path: Path, kind: str, split: str, rng: StableRandom) -> Question:
    final, outer = path.relations[-1], path.relations[-2]
    family = f"{path.subjects[-2].type}-{outer}-{final}"
    frame, phrase = deal(f"musique/{family}", split, FRAMES[final], PHRASES[outer], rng)
    inner = describe(Path(path.subjects[:-1], path.relations[:-1]), rng)
    described = PHRASES[outer][phrase].format(D=inner, **made(path.subjects[-2]))
    text = FRAMES[final][frame].format(D=described, **made(path.subjects[-1]))
    answer, aliases = answers_as(world, path)
    return Question(
        text, answer, kind, f"musique/{kind}/{family}/{frame}/{phrase}", path.hops(world), aliases
    )


def _branching(world: World, region: str, split: str, rng: StableRandom, kind: str) -> Question | None:
    type_ = rng.choice(list(JOINS))
    relations, phrases, query = rng.choice(JOINS[type_])
    joined = rng.choice(world.of_type(type_, region))
    sides = [world.facts.get((joined.id, relation), "") for relation in relations]
    holders = [
        {s for s, r in world.by_object.get(side, ()) if r == relation}
        for side, relation in zip(sides, relations, strict=True)
    ]
    # Both values are needed: each alone fits another entity too.
    if "" in sides or holders[0] & holders[1] != {joined.id} or min(map(len, holders)) < 2:
        return None
    lengths = (2, 1) if kind == "4hop2" else (1, 1)
    branches = [
        _towards(world, side, length, joined, rng) for side, length in zip(sides, lengths, strict=True)
    ]
    ending = _walk(world, joined, 2 if kind == "4hop3" else 1, rng)
    left, right = branches
    if left is None or right is None or ending is None or ending.relations[0] in relations:
        return None
    visited = [*left.subjects, *right.subjects, *ending.subjects, *(world.entities[side] for side in sides)]
    if len({e.name for e in visited}) < len(visited):
        return None
    final = ending.relations[-1]
    family = f"{type_}-{'-'.join(relations)}-{final}"
    frame, phrase = deal(f"musique/{family}", split, FRAMES[final], phrases, rng)
    first, second = (_described(world, branch, rng) for branch in (left, right))
    described = phrases[phrase].format(D=first, E=second, k=joined.kind)
    if kind == "4hop3":
        described = rng.choice(PHRASES[ending.relations[0]]).format(D=described, **made(joined))
    text = FRAMES[final][frame].format(D=described, **made(ending.subjects[-1]))
    names = world.entities[sides[0]].name, world.entities[sides[1]].name
    join = join_hop(
        world, joined, ending.relations[0], names, query.format(D=names[0], E=names[1], k=joined.kind)
    )
    hops = (*left.hops(world), *right.hops(world), join, *ending.hops(world)[1:])
    answer, aliases = answers_as(world, ending)
    return Question(text, answer, kind, f"musique/{kind}/{family}/{frame}/{phrase}", hops, aliases)


def _towards(world: World, target: str, length: int, barred: Entity, rng: StableRandom) -> Path | None:
    """A random path of so many facts that ends at an entity and does not pass another."""
    subjects, relations = list[Entity](), list[str]()
    for _ in range(length):
        options = [(s, r) for s, r in world.by_object.get(target, ()) if r in PHRASES and s != barred.id]
        options = [(s, r) for s, r in options if (world.entities[s].type, r) not in KEPT_FOR_BAMBOOGLE]
        if not options:
            return None
        target, relation = rng.choice(options)
        subjects.insert(0, world.entities[target])
        relations.insert(0, relation)
    return Path(tuple(subjects), tuple(relations))


def _described(world: World, path: Path, rng: StableRandom) -> str:
    """The object at the end of a path in words."""
    end = world.entities[path.end(world)]
    return describe(Path((*path.subjects, end), (*path.relations, "")), rng)


def rejection(prover: ChainProver, asked: Question) -> str:
    """Why a question must not ship, "" if it may: the proofs of chains, and that single-hop distractors lie near."""
    return prover.chain_rejection(asked, MUSIQUE.horizon) or prover.distractor_rejection(asked)


RECIPE = Recipe(MUSIQUE, SHARES, draw_question, rejection)
GENERATOR = Generator(MUSIQUE, RECIPE.build, RECIPE.practice)
