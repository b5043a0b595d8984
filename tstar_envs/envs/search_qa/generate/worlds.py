"""Plain and rich world: sizes, seeds and passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tstar_envs.envs.search_qa.generate import graph, passages
from tstar_envs.envs.search_qa.generate.graph import Names, RegionSize, World, add_entities, dealt
from tstar_envs.envs.search_qa.question_sets import PLAIN_WORLD, RICH_WORLD
from tstar_envs.utils import StableRandom

GENERATIONS = 4
FIRST_BIRTHS = range(1800, 1830)
PARENT_AGES = range(20, 40)


def add_families(
    truth: dict[str, dict[str, str]], people: Sequence[str], rng: StableRandom
) -> dict[str, int]:
    """Add parents and spouses, generation by generation, and return the years of birth.

    A marriage is a fact of one spouse only: stated twice, the second hop could be skipped.
    """
    births: dict[str, int] = {}
    couples: list[tuple[str, str]] = []
    size = -(-len(people) // GENERATIONS)
    for start in range(0, len(people), size):
        generation = people[start : start + size]
        parents = rng.shuffled([couples[i % len(couples)] for i in range(len(generation))]) if couples else []
        family = dict(zip(generation, parents, strict=False))
        for person in generation:
            if person in family:
                truth[person]["father"], truth[person]["mother"] = family[person]
                births[person] = max(births[p] for p in family[person]) + rng.choice(PARENT_AGES)
            else:
                births[person] = rng.choice(FIRST_BIRTHS)
        # People of similar age marry, unless they are siblings.
        by_age = sorted(generation, key=lambda person: (births[person], person))
        pairs = [tuple(rng.shuffled(pair)) for pair in zip(by_age[0::2], by_age[1::2], strict=False)]
        couples = [(one, other) for one, other in pairs if start == 0 or family[one] != family[other]]
        for couple in couples:
            one, other = rng.shuffled(couple)
            truth[one]["spouse"] = other
    return births


BIRTH_YEARS = range(1860, 1940)
WORK_YEARS = range(1890, 1990)
FOUNDING_YEARS = range(1850, 1950)


def build_plain_world(
    seed: int | str, regions: Mapping[str, RegionSize], taken: Collection[str] = (), namesakes: float = 0.15
) -> World:
    """Draw a plain world.

    Args:
        seed: the same seed gives the same world on every machine and Python version.
        regions: region name -> number of entities of each type.
        taken: names to avoid (worlds for the warm start avoid all names of the shipped valid and test tasks).
        namesakes: share of works with a namesake of another kind, so that a bare title is an ambiguous query.
    """
    rng = StableRandom(seed)
    world = World()
    names = Names(rng, taken)
    # Countries are single words, so regions share one shuffled list.
    countries = [word for word in rng.shuffled(graph.COUNTRY_WORDS) if word not in taken]
    for region, size in regions.items():
        _build_region(world, region, size, rng, names, countries, namesakes)
    return world


def _build_region(
    world: World,
    region: str,
    size: RegionSize,
    rng: StableRandom,
    names: Names,
    countries: list[str],
    namesakes: float,
) -> None:
    ids = add_entities(world, region, size, rng, names, countries, namesakes)
    country_ids, city_ids, person_ids = ids["country"], ids["city"], ids["person"]
    company_ids, school_ids, work_ids = ids["company"], ids["school"], ids["work"]
    facts = world.facts
    for city, country in zip(city_ids, dealt(rng, country_ids, len(city_ids)), strict=True):
        facts[city, "country"] = country
        facts[city, "river"] = rng.choice(graph.RIVER_WORDS)
    for person, city in zip(person_ids, dealt(rng, city_ids, len(person_ids)), strict=True):
        facts[person, "birthplace"] = city
        facts[person, "birth_year"] = str(rng.choice(BIRTH_YEARS))
        facts[person, "occupation"] = rng.choice(graph.OCCUPATIONS)
    for person, school in zip(person_ids, dealt(rng, school_ids, len(person_ids)), strict=True):
        facts[person, "school"] = school
    # Only one passage of a couple states the marriage; stated twice, the second hop could be skipped.
    couples = rng.shuffled(person_ids)
    for one, other in zip(couples[0::2], couples[1::2], strict=False):
        facts[one, "spouse"] = other
    for organisation, founder in zip(
        company_ids + school_ids, dealt(rng, person_ids, len(company_ids) + len(school_ids)), strict=True
    ):
        facts[organisation, "founder"] = founder
        facts[organisation, "founding_year"] = str(rng.choice(FOUNDING_YEARS))
    for organisation, city in zip(
        company_ids + school_ids, dealt(rng, city_ids, len(company_ids) + len(school_ids)), strict=True
    ):
        facts[organisation, "city"] = city
    for work, creator in zip(work_ids, dealt(rng, person_ids, len(work_ids)), strict=True):
        facts[work, "creator"] = creator
        facts[work, "year"] = str(rng.choice(WORK_YEARS))
    for work, company in zip(work_ids, dealt(rng, company_ids, len(work_ids)), strict=True):
        facts[work, "company"] = company


MAKER_AGES = range(20, 40)
LIFETIMES = range(40, 90)
AWARD_YEARS = range(1850, 1950)
INDEPENDENCE_YEARS = range(1700, 1900)
MOST_POPULAR = 1_000_000
WORKS_PER_MAKER = 2.5
# relation -> weight when facts are chosen for a passage; chained relations (families, works) weigh most
WEIGHTS = {
    "father": 3,
    "mother": 3,
    "spouse": 3,
    "birthplace": 2,
    "birth_year": 2,
    "company": 2,
    "year": 2,
    "genre": 2,
    "based_on": 3,
}


def build_rich_world(
    seed: int | str, regions: Mapping[str, RegionSize], taken: Collection[str] = (), namesakes: float = 0.15
) -> World:
    """Draw a rich world.

    Args:
        seed: the same seed gives the same world on every machine and Python version.
        regions: region name -> number of entities of each type.
        taken: names to avoid.
        namesakes: share of works with a namesake of another kind.

    Raises:
        ValueError: too few names.
    """
    rng = StableRandom(seed)
    world = World()
    names = Names(rng, taken)
    countries = [word for word in rng.shuffled(graph.COUNTRY_WORDS) if word not in taken]
    ids = {
        region: add_entities(world, region, size, rng, names, countries, namesakes)
        for region, size in regions.items()
    }
    for rank, id_ in enumerate(rng.shuffled(list(world.entities)), start=1):
        world.entities[id_] = replace(world.entities[id_], popularity=MOST_POPULAR // rank)
    for members in ids.values():
        _state_facts(world, members, rng, names)
    for id_, entity in world.entities.items():
        world.entities[id_] = replace(entity, aliases=_aliases(world, id_))
    return world


def _aliases(world: World, id_: str) -> tuple[str, ...]:
    """Generate aliases of a name, unique by construction."""
    entity = world.entities[id_]
    if entity.type == "person":
        first, last = entity.name.split()
        nickname = world.facts.get((id_, "nickname"))
        return (f"{last}, {first}", *([nickname] if nickname else []))
    if entity.type == "country":
        return (f"Republic of {entity.name}", f"Land of {entity.name}")
    if entity.type == "work":
        return (f"{entity.kind} {entity.name}", entity.title)
    other = f"city of {entity.name}" if entity.type == "city" else f"{entity.name} ({entity.type})"
    return (f"{entity.type} {entity.name}", other)


def _state_facts(world: World, ids: Mapping[str, Sequence[str]], rng: StableRandom, names: Names) -> None:
    """Draw all true facts of a region, and state a part of them in passages."""
    people, cities, organisations = ids["person"], ids["city"], [*ids["company"], *ids["school"]]
    truth: dict[str, dict[str, str]] = {id_: {} for group in ids.values() for id_ in group}

    def deal(relation: str, subjects: Sequence[str], objects: Sequence[str]) -> None:
        for subject, value in zip(subjects, dealt(rng, objects, len(subjects)), strict=True):
            truth[subject][relation] = value

    def share(subjects: Sequence[str], part: float) -> list[str]:
        return rng.shuffled(subjects)[: round(part * len(subjects))]

    births = add_families(truth, people, rng)
    for person in people:
        truth[person]["birth_year"] = str(births[person])
        truth[person]["death_year"] = str(births[person] + rng.choice(LIFETIMES))
    deal("birthplace", people, cities)
    deal("occupation", people, [*graph.OCCUPATIONS, *graph.MORE_OCCUPATIONS])
    deal("school", people, ids["school"])
    deal("employer", people, organisations)
    for person in share(people, 0.15):
        truth[person]["nickname"] = names.new("{} {}", graph.NICKNAMES, graph.FIRST_WORDS)

    deal("founder", organisations, people)
    deal("city", organisations, cities)
    for organisation in organisations:
        truth[organisation]["founding_year"] = str(
            births[truth[organisation]["founder"]] + rng.choice(MAKER_AGES)
        )

    works = ids["work"]
    deal("creator", works, share(people, min(1.0, len(works) / WORKS_PER_MAKER / len(people))))
    deal("company", works, ids["company"])
    deal("genre", works, graph.GENRES)
    for work in works:
        truth[work]["year"] = str(births[truth[work]["creator"]] + rng.choice(MAKER_AGES))
    twins = Counter(world.entities[work].name for work in works)
    # "based on X" needs an unambiguous X.
    models = [work for work in works if twins[world.entities[work].name] == 1]
    for work, model in zip(share(works, 0.4), rng.shuffled(models), strict=False):
        if int(truth[model]["year"]) < int(truth[work]["year"]):
            truth[work]["based_on"] = model

    deal("country", cities, ids["country"])
    deal("river", cities, graph.RIVER_WORDS)
    deal("mayor", cities, people)
    deal("president", ids["country"], people)
    for city in rng.shuffled(cities):
        truth[truth[city]["country"]]["capital"] = city
    for country in ids["country"]:
        truth[country]["independence_year"] = str(rng.choice(INDEPENDENCE_YEARS))
    if ids["award"]:
        deal("presenter", ids["award"], organisations)
        deal("city", ids["award"], cities)
        deal("award", share(people, 0.4), ids["award"])
        deal("award", share(works, 0.3), ids["award"])
        for award in ids["award"]:
            truth[award]["first_year"] = str(rng.choice(AWARD_YEARS))
    _write_down(world, truth, rng)


def _write_down(world: World, truth: Mapping[str, Mapping[str, str]], rng: StableRandom) -> None:
    """State three to five facts of people and works, by popularity, and all facts of other entities."""
    ranked = sorted(truth, key=lambda id_: -world.entities[id_].popularity)
    allowance = {
        id_: 5 if 5 * rank < len(ranked) else 4 if 5 * rank < 3 * len(ranked) else 3
        for rank, id_ in enumerate(ranked)
    }
    for id_, known in truth.items():
        stated = list(known)
        if world.entities[id_].type in ("person", "work"):
            tickets = rng.shuffled([r for r in known for _ in range(WEIGHTS.get(r, 1))])
            first = [r for r in ("creator",) if r in known]  # a work always states its maker
            stated = list(dict.fromkeys([*first, *tickets]))[: allowance[id_]]
        if known.get("country") and truth[known["country"]].get("capital") == id_:
            stated.remove("country")  # the passage of its country already names both
        for relation in stated:
            world.facts[id_, relation] = known[relation]


@dataclass(frozen=True)
class MiniWorld:
    """World with its corpus: (id, Search-R1 contents) per entity, in order of creation."""

    world: World
    corpus: list[tuple[str, str]]


@dataclass(frozen=True)
class WorldMaker:
    """Generator of a world.

    Attributes:
        build: (seed, regions, names to avoid) -> world without passages.
        seed: seed of the shipped world.
        regions: region -> number of entities of each type, in the shipped world.
        practice: size of a practice world.
    """

    build: Callable[[int | str, Mapping[str, RegionSize], Collection[str]], World]
    seed: int
    regions: Mapping[str, RegionSize]
    practice: RegionSize

    def make(
        self,
        seed: int | str | None = None,
        regions: Mapping[str, RegionSize] | None = None,
        taken: Collection[str] = (),
    ) -> MiniWorld:
        """Generate a world with one passage per entity.

        Args:
            seed: default: the shipped world's.
            regions: default: the shipped world's.
            taken: names to avoid.

        Raises:
            ValueError: too few names.
        """
        seed = self.seed if seed is None else seed
        world = self.build(seed, self.regions if regions is None else regions, taken)
        rng = StableRandom(f"{seed}/passages")
        corpus = [(e.id, f'"{e.title}"\n{passages.render(world, e, rng)}') for e in world.entities.values()]
        return MiniWorld(world, corpus)


# Distractors are never asked about: namesakes, and people and towns with similar names, which a sloppy query finds.
PLAIN = WorldMaker(
    build_plain_world,
    20260101,
    {
        "train": RegionSize(people=460, works=330, companies=66, schools=60, cities=130, countries=40),
        "valid": RegionSize(people=130, works=95, companies=22, schools=20, cities=40, countries=14),
        "test": RegionSize(people=250, works=180, companies=40, schools=36, cities=75, countries=24),
        "distractors": RegionSize(people=300, works=120, companies=30, schools=30, cities=60, countries=12),
    },
    RegionSize(people=90, works=70, companies=16, schools=16, cities=30, countries=12),
)
RICH = WorldMaker(
    build_rich_world,
    20260202,
    {
        "train": RegionSize(
            people=720, works=440, companies=80, schools=60, cities=150, countries=36, awards=36
        ),
        "valid": RegionSize(
            people=240, works=140, companies=28, schools=22, cities=50, countries=14, awards=14
        ),
        "test": RegionSize(
            people=440, works=280, companies=50, schools=40, cities=90, countries=24, awards=24
        ),
        "distractors": RegionSize(
            people=280, works=120, companies=28, schools=22, cities=50, countries=10, awards=12
        ),
    },
    RegionSize(people=240, works=130, companies=24, schools=18, cities=40, countries=12, awards=12),
)
WORLDS = {PLAIN_WORLD: PLAIN, RICH_WORLD: RICH}
