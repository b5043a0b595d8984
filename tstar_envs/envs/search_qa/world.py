"""The mini world: a knowledge graph of invented people, works, organisations, cities and countries.

Entities come in *regions*. A fact never links two regions, so questions asked about one region share no entity with
questions about another: regions are how train, valid and test stay apart while one corpus holds them all. Facts are
functional (one object per subject and relation) and each is stated by the passage of its subject alone, so a question
that chains two facts needs two passages. HotpotQA and NQ are asked of this world; ``second_world`` builds a richer one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tstar_envs.envs.search_qa import lexicon
from tstar_envs.stable_random import StableRandom

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
BIRTH_YEARS = range(1860, 1940)
WORK_YEARS = range(1890, 1990)
FOUNDING_YEARS = range(1850, 1950)


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


@dataclass(frozen=True, slots=True)
class RegionSize:
    """How many entities of each type a region gets."""

    people: int
    works: int
    companies: int
    schools: int
    cities: int
    countries: int
    awards: int = 0


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


class Names:
    """Draws two-word names without repetition; ``taken`` names are never drawn."""

    def __init__(self, draw: StableRandom, taken: Collection[str]) -> None:
        self._draw = draw
        self._taken = set(taken)

    def new(self, pattern: str, *words: tuple[str, ...]) -> str:
        """A free name: the pattern filled with one word of each list.

        Raises:
            ValueError: no free name was found.
        """
        for _ in range(10_000):
            name = pattern.format(*(self._draw.choice(list_) for list_ in words))
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise ValueError(f"no free name left for pattern {pattern!r}: ask for fewer entities")


def build_world(
    seed: int | str, regions: dict[str, RegionSize], taken: Collection[str] = (), namesakes: float = 0.15
) -> World:
    """Draw a world.

    Args:
        seed: same seed, same world, on every machine and Python version.
        regions: region name -> how many entities of each type.
        taken: names that must not occur (worlds for the warm start avoid every name of the shipped valid and test tasks).
        namesakes: share of works that get a namesake of another kind, so that a bare title is not enough to search for.
    """
    draw = StableRandom(seed)
    world = World()
    names = Names(draw, taken)
    # Countries are single words, so across regions they are dealt out rather than drawn.
    countries = [word for word in draw.shuffled(lexicon.COUNTRY_WORDS) if word not in taken]
    for region, size in regions.items():
        _build_region(world, region, size, draw, names, countries, namesakes)
    return world


def dealt(draw: StableRandom, items: Sequence[str], count: int) -> list[str]:
    """``count`` items in random order, every one about equally often: a frequent object would be a good blind guess."""
    return draw.shuffled([items[i % len(items)] for i in range(count)])


def add_entities(
    world: World,
    region: str,
    size: RegionSize,
    draw: StableRandom,
    names: Names,
    countries: list[str],
    namesakes: float,
) -> dict[str, list[str]]:
    """The entities of a region, without facts.

    Args:
        world: takes them.
        region: its name.
        size: how many of each type.
        draw: source of chance.
        names: source of names.
        countries: words for countries, of which the last are used up.
        namesakes: share of works that get a namesake of another kind.

    Returns:
        Type -> ids in order of creation.

    Raises:
        ValueError: names or words for countries run out.
    """
    if len(countries) < size.countries:
        raise ValueError(
            f"{size.countries} countries wanted for region {region!r}, {len(countries)} country words left"
        )

    def many(type_: str, count: int, *words: tuple[str, ...]) -> list[str]:
        return [world.add(type_, names.new("{} {}", *words), region) for _ in range(count)]

    ids = {
        "country": [world.add("country", countries.pop(), region) for _ in range(size.countries)],
        "city": many("city", size.cities, lexicon.PLACE_WORDS, lexicon.CITY_WORDS),
        "person": many("person", size.people, lexicon.FIRST_WORDS, lexicon.LAST_WORDS),
        "company": many("company", size.companies, lexicon.ORG_WORDS, lexicon.COMPANY_WORDS),
        "school": many("school", size.schools, lexicon.ORG_WORDS, lexicon.SCHOOL_WORDS),
        "work": [],
    }
    kinds = list(WORK_KINDS)
    for _ in range(size.works):
        name, kind = names.new("{} of {}", lexicon.TITLE_NOUNS, lexicon.TITLE_WORDS), draw.choice(kinds)
        ids["work"].append(world.add("work", name, region, kind))
        if draw.chance(namesakes):
            ids["work"].append(world.add("work", name, region, draw.choice([k for k in kinds if k != kind])))
    ids["award"] = many("award", size.awards, lexicon.ORG_WORDS, lexicon.AWARD_NOUNS)
    return ids


def _build_region(
    world: World,
    region: str,
    size: RegionSize,
    draw: StableRandom,
    names: Names,
    countries: list[str],
    namesakes: float,
) -> None:
    ids = add_entities(world, region, size, draw, names, countries, namesakes)
    country_ids, city_ids, person_ids = ids["country"], ids["city"], ids["person"]
    company_ids, school_ids, work_ids = ids["company"], ids["school"], ids["work"]
    facts = world.facts
    for city, country in zip(city_ids, dealt(draw, country_ids, len(city_ids)), strict=True):
        facts[city, "country"] = country
        facts[city, "river"] = draw.choice(lexicon.RIVER_WORDS)
    for person, city in zip(person_ids, dealt(draw, city_ids, len(person_ids)), strict=True):
        facts[person, "birthplace"] = city
        facts[person, "birth_year"] = str(draw.choice(BIRTH_YEARS))
        facts[person, "occupation"] = draw.choice(lexicon.OCCUPATIONS)
    for person, school in zip(person_ids, dealt(draw, school_ids, len(person_ids)), strict=True):
        facts[person, "school"] = school
    # Only one passage of a couple names the marriage; stated twice, the second hop could be skipped.
    couples = draw.shuffled(person_ids)
    for one, other in zip(couples[0::2], couples[1::2], strict=False):
        facts[one, "spouse"] = other
    for organisation, founder in zip(
        company_ids + school_ids, dealt(draw, person_ids, len(company_ids) + len(school_ids)), strict=True
    ):
        facts[organisation, "founder"] = founder
        facts[organisation, "founding_year"] = str(draw.choice(FOUNDING_YEARS))
    for organisation, city in zip(
        company_ids + school_ids, dealt(draw, city_ids, len(company_ids) + len(school_ids)), strict=True
    ):
        facts[organisation, "city"] = city
    for work, creator in zip(work_ids, dealt(draw, person_ids, len(work_ids)), strict=True):
        facts[work, "creator"] = creator
        facts[work, "year"] = str(draw.choice(WORK_YEARS))
    for work, company in zip(work_ids, dealt(draw, company_ids, len(work_ids)), strict=True):
        facts[work, "company"] = company
