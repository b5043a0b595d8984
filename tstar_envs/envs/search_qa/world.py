"""The mini world: a knowledge graph of invented people, works, organisations, cities and countries.

Entities come in *regions*. A fact never links two regions, so questions asked about one region share no entity with
questions about another: regions are how train, valid and test stay apart while one corpus holds them all. Facts are
functional (one object per subject and relation) and each is stated by the passage of its subject alone, so a question
that chains two facts needs two passages. All seven question sets can be asked of this graph.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tstar_envs.envs.search_qa import lexicon
from tstar_envs.stable_random import StableRandom

WORK_KINDS: dict[str, tuple[str, str]] = {  # kind -> (who makes it, what that person did, in the past tense)
    "novel": ("author", "wrote"),
    "film": ("director", "directed"),
    "opera": ("composer", "composed"),
    "album": ("singer", "recorded"),
    "fresco": ("painter", "painted"),
}
PARTICIPLES = {"wrote": "written", "directed": "directed", "composed": "composed", "recorded": "recorded", "painted": "painted"}
BIRTH_YEARS = range(1860, 1940)
WORK_YEARS = range(1890, 1990)
FOUNDING_YEARS = range(1850, 1950)


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with a passage of its own.

    Attributes:
        id: unique key, ``<type><number>``.
        type: ``person``, ``work``, ``company``, ``school``, ``city`` or ``country``.
        name: how passages and questions call it; unique, except that a work may have a namesake of another kind.
        kind: for works, a key of ``WORK_KINDS``; else equal to ``type``.
        region: which part of the world it belongs to.
    """

    id: str
    type: str
    name: str
    kind: str
    region: str

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

    def scaled(self, factor: float) -> RegionSize:
        """The same proportions at another size, at least two of each."""
        return RegionSize(*(max(2, round(n * factor)) for n in (
            self.people, self.works, self.companies, self.schools, self.cities, self.countries)))  # fmt: skip


@dataclass
class World:
    """Entities by id and facts by (subject id, relation); an object is an entity id or a literal (year, occupation)."""

    entities: dict[str, Entity] = field(default_factory=dict)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def object_name(self, subject: str, relation: str) -> str:
        """The object of a fact as text.

        Raises:
            KeyError: the world states no such fact.
        """
        value = self.facts[(subject, relation)]
        return self.entities[value].name if value in self.entities else value

    def of_type(self, kind: str, region: str) -> list[Entity]:
        """Entities of one type in one region, in order of creation."""
        return [e for e in self.entities.values() if e.type == kind and e.region == region]


class _Names:
    """Draws two-word names without repetition; ``taken`` names are never drawn."""

    def __init__(self, draw: StableRandom, taken: Collection[str]) -> None:
        self._draw = draw
        self._taken = set(taken)

    def new(self, pattern: str, *words: tuple[str, ...]) -> str:
        for _ in range(10_000):
            name = pattern.format(*(self._draw.choice(list_) for list_ in words))
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise ValueError(f"no free name left for pattern {pattern!r}: ask for fewer entities")


def build_world(seed: int | str, regions: dict[str, RegionSize], taken: Collection[str] = (), namesakes: float = 0.15) -> World:
    """Draw a world.

    Args:
        seed: same seed, same world, on every machine and Python version.
        regions: region name -> how many entities of each type.
        taken: names that must not occur (worlds for the warm start avoid every name of the shipped valid and test tasks).
        namesakes: share of works that get a namesake of another kind, so that a bare title is not enough to search for.
    """
    draw = StableRandom(seed)
    world = World()
    names = _Names(draw, taken)
    # Countries are single words, so across regions they are dealt out rather than drawn.
    countries = [word for word in draw.shuffled(lexicon.COUNTRY_WORDS) if word not in taken]
    for region, size in regions.items():
        _build_region(world, region, size, draw, names, countries, namesakes)
    return world


def _build_region(
    world: World, region: str, size: RegionSize, draw: StableRandom, names: _Names, countries: list[str], namesakes: float
) -> None:
    def add(type_: str, name: str, kind: str | None = None) -> str:
        entity = Entity(f"{type_}{len(world.entities):05d}", type_, name, kind or type_, region)
        world.entities[entity.id] = entity
        return entity.id

    def cycle(items: list[str], count: int) -> list[str]:
        # Every item about equally often: a frequent object would be a good blind guess.
        return draw.shuffled([items[i % len(items)] for i in range(count)])

    if len(countries) < size.countries:
        raise ValueError(f"{size.countries} countries wanted for region {region!r}, {len(countries)} country words left")
    country_ids = [add("country", countries.pop()) for _ in range(size.countries)]
    city_ids = [add("city", names.new("{} {}", lexicon.PLACE_WORDS, lexicon.CITY_WORDS)) for _ in range(size.cities)]
    person_ids = [add("person", names.new("{} {}", lexicon.FIRST_WORDS, lexicon.LAST_WORDS)) for _ in range(size.people)]
    company_ids = [add("company", names.new("{} {}", lexicon.ORG_WORDS, lexicon.COMPANY_WORDS)) for _ in range(size.companies)]
    school_ids = [add("school", names.new("{} {}", lexicon.ORG_WORDS, lexicon.SCHOOL_WORDS)) for _ in range(size.schools)]
    kinds = list(WORK_KINDS)
    work_ids: list[str] = []
    for _ in range(size.works):
        name, kind = names.new("{} of {}", lexicon.TITLE_NOUNS, lexicon.TITLE_WORDS), draw.choice(kinds)
        work_ids.append(add("work", name, kind))
        if draw.chance(namesakes):
            work_ids.append(add("work", name, draw.choice([k for k in kinds if k != kind])))

    facts = world.facts
    for city, country in zip(city_ids, cycle(country_ids, len(city_ids)), strict=True):
        facts[city, "country"] = country
        facts[city, "river"] = draw.choice(lexicon.RIVER_WORDS)
    for person, city in zip(person_ids, cycle(city_ids, len(person_ids)), strict=True):
        facts[person, "birthplace"] = city
        facts[person, "birth_year"] = str(draw.choice(BIRTH_YEARS))
        facts[person, "occupation"] = draw.choice(lexicon.OCCUPATIONS)
    for person, school in zip(person_ids, cycle(school_ids, len(person_ids)), strict=True):
        facts[person, "school"] = school
    # Only one passage of a couple names the marriage; stated twice, the second hop could be skipped.
    couples = draw.shuffled(person_ids)
    for one, other in zip(couples[0::2], couples[1::2], strict=False):
        facts[one, "spouse"] = other
    for organisation, founder in zip(company_ids + school_ids, cycle(person_ids, len(company_ids) + len(school_ids)), strict=True):
        facts[organisation, "founder"] = founder
        facts[organisation, "founding_year"] = str(draw.choice(FOUNDING_YEARS))
    for organisation, city in zip(company_ids + school_ids, cycle(city_ids, len(company_ids) + len(school_ids)), strict=True):
        facts[organisation, "city"] = city
    for work, creator in zip(work_ids, cycle(person_ids, len(work_ids)), strict=True):
        facts[work, "creator"] = creator
        facts[work, "year"] = str(draw.choice(WORK_YEARS))
    for work, company in zip(work_ids, cycle(company_ids, len(work_ids)), strict=True):
        facts[work, "company"] = company
