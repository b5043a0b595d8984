"""Every form of an answer that is accepted: the aliases an entity has, and shorter or longer forms of its name.

A form counts only if, as answers are compared, it means nothing else in the world: "Velmora" is no answer where there are
two of them, and no alias of one thing is another one's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tstar_envs.envs.search_qa.generate.worlds.graph import Entity, World
from tstar_envs.envs.search_qa.metrics import NORMALIZERS, normalize_answer

MOST_FORMS = 12


def accepted_answers(world: World) -> Callable[[str], tuple[str, ...]]:
    """A function from an entity's id to its golden answers, the name first, at most ``MOST_FORMS``."""
    candidates = {
        id_: _distinct([entity.name, *entity.aliases, *_other_forms(world, entity)])
        for id_, entity in world.entities.items()
    }
    owners = Counter(normalize_answer(form) for forms in candidates.values() for form in forms)

    def forms(id_: str) -> tuple[str, ...]:
        name, *others = candidates[id_]
        return (name, *(form for form in others if owners[normalize_answer(form)] == 1))[:MOST_FORMS]

    return forms


def ill_formed(answers: tuple[str, ...]) -> bool:
    """Whether two golden answers are equal, or one is empty, under one of the normalisations that answers are compared with."""
    for normalize in NORMALIZERS.values():
        forms = [normalize(answer) for answer in answers]
        if "" in forms or len(set(forms)) < len(forms):
            return True
    return False


def _distinct(forms: list[str]) -> list[str]:
    """Each form once, as any normalisation sees it."""
    kept: list[str] = []
    for form in forms:
        if not ill_formed((*kept, form)):
            kept.append(form)
    return kept


def _other_forms(world: World, entity: Entity) -> list[str]:
    """Forms that people write: initials, a surname alone, what and whence somebody was, what a place or organisation is."""

    def stated(relation: str) -> str:
        return world.object_name(entity.id, relation) if (entity.id, relation) in world.facts else ""

    if entity.type == "person":
        first, last = entity.name.split()
        forms = [f"{first[0]}. {last}", last]
        forms += [f"{work} {entity.name}"] if (work := stated("occupation")) else []
        forms += [f"{entity.name} (born {year})"] if (year := stated("birth_year")) else []
        return forms + ([f"{entity.name} of {place}"] if (place := stated("birthplace")) else [])
    if entity.type == "work":
        maker = stated("creator")
        return [f"{entity.name} by {maker}", f"{maker}'s {entity.name}"] if maker else []
    if entity.type in ("company", "school", "award"):
        return [f"{entity.name} in {place}"] if (place := stated("city")) else []
    if entity.type == "city":
        return [f"{entity.name} in {country}"] if (country := stated("country")) else []
    return []
