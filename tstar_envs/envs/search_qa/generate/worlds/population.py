"""Who and what a region of a world holds: its entities and their names, without facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tstar_envs.envs.search_qa.generate.worlds import lexicon
from tstar_envs.envs.search_qa.generate.worlds.graph import WORK_KINDS, World
from tstar_envs.stable_random import StableRandom


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


class Names:
    """Draws two-word names without repetition; ``taken`` names are never drawn."""

    def __init__(self, rng: StableRandom, taken: Collection[str]) -> None:
        self._rng = rng
        self._taken = set(taken)

    def new(self, pattern: str, *words: tuple[str, ...]) -> str:
        """A free name: the pattern filled with one word of each list.

        Raises:
            ValueError: no free name was found.
        """
        for _ in range(10_000):
            name = pattern.format(*(self._rng.choice(list_) for list_ in words))
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise ValueError(f"no free name left for pattern {pattern!r}: ask for fewer entities")


def dealt(rng: StableRandom, items: Sequence[str], count: int) -> list[str]:
    """``count`` items in random order, every one about equally often: a frequent object would be a good blind guess."""
    return rng.shuffled([items[i % len(items)] for i in range(count)])


def add_entities(
    world: World,
    region: str,
    size: RegionSize,
    rng: StableRandom,
    names: Names,
    countries: list[str],
    namesakes: float,
) -> dict[str, list[str]]:
    """The entities of a region, without facts.

    Args:
        world: takes them.
        region: its name.
        size: how many of each type.
        rng: source of chance.
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
        name, kind = names.new("{} of {}", lexicon.TITLE_NOUNS, lexicon.TITLE_WORDS), rng.choice(kinds)
        ids["work"].append(world.add("work", name, region, kind))
        if rng.chance(namesakes):
            ids["work"].append(world.add("work", name, region, rng.choice([k for k in kinds if k != kind])))
    ids["award"] = many("award", size.awards, lexicon.ORG_WORDS, lexicon.AWARD_NOUNS)
    return ids
