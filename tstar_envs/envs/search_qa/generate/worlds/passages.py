"""Passages of a mini world: each entity's facts in prose, in several wordings and orders, with a filler sentence.

A passage is 25 to 60 words, so that three of them fit any observation. The facts of an entity stand in random order
between fillers; the first sentence names the entity, later ones may say "they" or "it".
"""

from __future__ import annotations

from tstar_envs.envs.search_qa.generate.worlds.graph import PARTICIPLES, WORK_KINDS, Entity, World
from tstar_envs.envs.search_qa.generate.worlds.wordings import FILLERS, WORDINGS
from tstar_envs.envs.search_qa.thoughts import with_article
from tstar_envs.stable_random import StableRandom

SHORTEST, LONGEST = 25, 60


def family(entity: Entity) -> str:
    """Companies and schools share their relations and wordings as organisations."""
    return "organisation" if entity.type in ("company", "school") else entity.type


def render(world: World, entity: Entity, rng: StableRandom) -> str:
    """The body of one entity's passage.

    Args:
        world: where its facts are.
        entity: whose passage.
        rng: chooses wordings, order and fillers.

    Returns:
        One paragraph of 25 to 60 words.
    """
    group = family(entity)
    relations = [r for (g, r) in WORDINGS if g == group and (entity.id, r) in world.facts]
    sentences: list[str] = []
    lead = _lead(entity)
    for relation in rng.shuffled(relations):
        first = not sentences and not lead
        # The first sentence must name the entity; some wordings leave the subject out.
        wording = rng.choice([w for w in WORDINGS[group, relation] if not first or "{s}" in w])
        sentences.append(_fill(wording, world, entity, relation, first))
    if lead:
        sentences.insert(0, lead)
    for filler in rng.shuffled(FILLERS[group]):
        words = sum(len(s.split()) for s in sentences)
        if words >= SHORTEST and len(sentences) > len(relations) + bool(lead):
            break
        sentences.insert(1 + rng.below(len(sentences)), filler)
    return " ".join(sentences)


def _lead(entity: Entity) -> str:
    return "" if entity.type == "person" else f"{entity.name} is {with_article(entity.kind)}."


def _fill(wording: str, world: World, entity: Entity, relation: str, first: bool) -> str:
    maker, verb = WORK_KINDS.get(entity.kind, ("", ""))
    # Surname alone for people: shorter, and a reader (or policy) must link it to the title.
    later = entity.name.split()[-1] if entity.type == "person" else "it"
    subject = entity.name if first or (entity.type != "person" and not wording.startswith("{s}")) else later
    value = world.object_name(entity.id, relation)
    text = wording.format(
        s=subject, o=value, d=with_article(value), a=maker, v=verb, p=PARTICIPLES.get(verb, "")
    )
    return text[0].upper() + text[1:]
