"""The plain world, of which HotpotQA and NQ are asked: where people were born, who made what, where it lies."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tstar_envs.envs.search_qa.generate.worlds import lexicon
from tstar_envs.envs.search_qa.generate.worlds.graph import World
from tstar_envs.envs.search_qa.generate.worlds.population import Names, RegionSize, add_entities, dealt
from tstar_envs.stable_random import StableRandom

BIRTH_YEARS = range(1860, 1940)
WORK_YEARS = range(1890, 1990)
FOUNDING_YEARS = range(1850, 1950)


def build_plain_world(
    seed: int | str, regions: Mapping[str, RegionSize], taken: Collection[str] = (), namesakes: float = 0.15
) -> World:
    """Draw a world.

    Args:
        seed: same seed, same world, on every machine and Python version.
        regions: region name -> how many entities of each type.
        taken: names that must not occur (worlds for the warm start avoid every name of the shipped valid and test tasks).
        namesakes: share of works that get a namesake of another kind, so that a bare title is not enough to search for.
    """
    rng = StableRandom(seed)
    world = World()
    names = Names(rng, taken)
    # Countries are single words, so across regions they are dealt out rather than drawn.
    countries = [word for word in rng.shuffled(lexicon.COUNTRY_WORDS) if word not in taken]
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
        facts[city, "river"] = rng.choice(lexicon.RIVER_WORDS)
    for person, city in zip(person_ids, dealt(rng, city_ids, len(person_ids)), strict=True):
        facts[person, "birthplace"] = city
        facts[person, "birth_year"] = str(rng.choice(BIRTH_YEARS))
        facts[person, "occupation"] = rng.choice(lexicon.OCCUPATIONS)
    for person, school in zip(person_ids, dealt(rng, school_ids, len(person_ids)), strict=True):
        facts[person, "school"] = school
    # Only one passage of a couple names the marriage; stated twice, the second hop could be skipped.
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
