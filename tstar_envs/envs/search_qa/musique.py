"""The mini tier's MuSiQue: chains of two to four facts, straight or branching, over the second mini world.

Kinds are MuSiQue's: ``2hop``, ``3hop1`` and ``4hop1`` are straight chains; ``3hop2`` joins two facts in a third (the one
entity that has both values), ``4hop2`` joins a chain of two and a fact, and ``4hop3`` goes on from a joined entity.
Every question has single-hop distractors: passages near to it that answer its last step for something else.
``python -m tstar_envs.envs.search_qa.musique --out FOLDER`` writes ``<split>.jsonl.gz`` and ``MANIFEST.json``.
"""

from __future__ import annotations

from tstar_envs.envs.search_qa import second_sets
from tstar_envs.envs.search_qa.chains import (
    KEPT_FOR_BAMBOOGLE,
    ChainProver,
    Path,
    answers_as,
    deal,
    describe,
    join_hop,
    made,
)
from tstar_envs.envs.search_qa.question_sets import MUSIQUE
from tstar_envs.envs.search_qa.questions import Question
from tstar_envs.envs.search_qa.second_sets import Recipe
from tstar_envs.envs.search_qa.second_templates import FRAMES, PHRASES
from tstar_envs.envs.search_qa.world import Entity, World
from tstar_envs.stable_random import StableRandom

NAME = "musique"
# MuSiQue's development set: half have two hops, a third three, a sixth four.
SHARES = {"2hop": 0.48, "3hop1": 0.22, "3hop2": 0.12, "4hop1": 0.08, "4hop2": 0.05, "4hop3": 0.05}
STARTS = ("work", "work", "work", "person", "person", "company", "school", "award")
# The answer would be a bare title, which may have a namesake; an award has no seat that the frames could ask for.
UNASKED = {("work", "based_on"), ("award", "city")}
# type of the joined entity -> (two relations, phrases, second query); {D} and {E} describe their objects, {k} the entity's kind
JOINS: dict[str, tuple[tuple[tuple[str, str], tuple[str, ...], str], ...]] = {
    "work": (
        (
            ("creator", "company"),
            (
                "the {k} made by {D} and released by {E}",
                "the {k} of {D} that was published by {E}",
                "the one {k} by {D} that came out at {E}",
                "the {k} that {D} made for {E}",
            ),
            "{k} by {D} released by {E}",
        ),
    ),
    "person": (
        (
            ("birthplace", "school"),
            (
                "the person who was born in {D} and studied at {E}",
                "the native of {D} who attended {E}",
                "the person from {D} who went to {E}",
                "the student from {D} at {E}",
            ),
            "born in {D}, studied at {E}",
        ),
        (
            ("birthplace", "employer"),
            (
                "the person who was born in {D} and worked for {E}",
                "the native of {D} who was employed by {E}",
                "the person from {D} on the staff of {E}",
                "the one who left {D}, the birthplace, for a job at {E}",
            ),
            "born in {D}, worked for {E}",
        ),
        (
            ("school", "employer"),
            (
                "the person who studied at {D} and worked for {E}",
                "the student of {D} who was employed by {E}",
                "the one who left {D} for a job at {E}",
                "the person who went to {D} and joined the staff of {E}",
            ),
            "studied at {D}, worked for {E}",
        ),
    ),
}


def draw_question(
    world: World, region: str, split: str, draw: StableRandom, kind: str, turn: int
) -> Question | None:
    """See ``second_sets.Draw``."""
    if kind in ("2hop", "3hop1", "4hop1"):
        start = draw.choice(world.of_type(draw.choice(STARTS), region))
        path = _walk(world, start, int(kind[0]), draw)
        return None if path is None else _straight(world, path, kind, split, draw)
    return _branching(world, region, split, draw, kind)


def _walk(world: World, start: Entity, length: int, draw: StableRandom) -> Path | None:
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
        relation, value = draw.choice(options)
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
    return Path(tuple(subjects), (*relations, draw.choice(finals)))


def _straight(world: World, path: Path, kind: str, split: str, draw: StableRandom) -> Question:
    final, outer = path.relations[-1], path.relations[-2]
    family = f"{path.subjects[-2].type}-{outer}-{final}"
    frame, phrase = deal(f"musique/{family}", split, FRAMES[final], PHRASES[outer], draw)
    inner = describe(Path(path.subjects[:-1], path.relations[:-1]), draw)
    described = PHRASES[outer][phrase].format(D=inner, **made(path.subjects[-2]))
    text = FRAMES[final][frame].format(D=described, **made(path.subjects[-1]))
    answer, aliases = answers_as(world, path)
    return Question(
        text, answer, kind, f"musique/{kind}/{family}/{frame}/{phrase}", path.hops(world), aliases
    )


def _branching(world: World, region: str, split: str, draw: StableRandom, kind: str) -> Question | None:
    type_ = draw.choice(list(JOINS))
    relations, phrases, query = draw.choice(JOINS[type_])
    joined = draw.choice(world.of_type(type_, region))
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
        _towards(world, side, length, joined, draw) for side, length in zip(sides, lengths, strict=True)
    ]
    ending = _walk(world, joined, 2 if kind == "4hop3" else 1, draw)
    left, right = branches
    if left is None or right is None or ending is None or ending.relations[0] in relations:
        return None
    visited = [*left.subjects, *right.subjects, *ending.subjects, *(world.entities[side] for side in sides)]
    if len({e.name for e in visited}) < len(visited):
        return None
    final = ending.relations[-1]
    family = f"{type_}-{'-'.join(relations)}-{final}"
    frame, phrase = deal(f"musique/{family}", split, FRAMES[final], phrases, draw)
    first, second = (_described(world, branch, draw) for branch in (left, right))
    described = phrases[phrase].format(D=first, E=second, k=joined.kind)
    if kind == "4hop3":
        described = draw.choice(PHRASES[ending.relations[0]]).format(D=described, **made(joined))
    text = FRAMES[final][frame].format(D=described, **made(ending.subjects[-1]))
    names = world.entities[sides[0]].name, world.entities[sides[1]].name
    join = join_hop(
        world, joined, ending.relations[0], names, query.format(D=names[0], E=names[1], k=joined.kind)
    )
    hops = (*left.hops(world), *right.hops(world), join, *ending.hops(world)[1:])
    answer, aliases = answers_as(world, ending)
    return Question(text, answer, kind, f"musique/{kind}/{family}/{frame}/{phrase}", hops, aliases)


def _towards(world: World, target: str, length: int, barred: Entity, draw: StableRandom) -> Path | None:
    """A random path of so many facts that ends at an entity and does not pass another."""
    subjects, relations = list[Entity](), list[str]()
    for _ in range(length):
        options = [(s, r) for s, r in world.by_object.get(target, ()) if r in PHRASES and s != barred.id]
        options = [(s, r) for s, r in options if (world.entities[s].type, r) not in KEPT_FOR_BAMBOOGLE]
        if not options:
            return None
        target, relation = draw.choice(options)
        subjects.insert(0, world.entities[target])
        relations.insert(0, relation)
    return Path(tuple(subjects), tuple(relations))


def _described(world: World, path: Path, draw: StableRandom) -> str:
    """The object at the end of a path in words."""
    end = world.entities[path.end(world)]
    return describe(Path((*path.subjects, end), (*path.relations, "")), draw)


def rejection(prover: ChainProver, asked: Question) -> str:
    """Why a question must not ship, "" if it may: the proofs of chains, and that single-hop distractors lie near."""
    return prover.chain_rejection(asked, MUSIQUE.horizon) or prover.distractor_rejection(asked)


SIZES = {"train": 2000, "valid": 500, "test": 1000}
RECIPE = Recipe(NAME, "musique", SHARES, SIZES, draw_question, rejection)

if __name__ == "__main__":
    second_sets.run(RECIPE)
