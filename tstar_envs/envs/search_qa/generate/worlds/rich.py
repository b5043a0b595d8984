"""The rich world: families, offices, employers, awards and genres besides what the plain world states.

Each entity has a popularity (Zipf's law over the world), and the better known it is the more of its facts are written
down. Facts agree with one another before some of them are left out: children are born after their parents, works and
organisations appear while their makers are alive, and the father of a child is the husband of its mother.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tstar_envs.envs.search_qa.generate.worlds import lexicon
from tstar_envs.envs.search_qa.generate.worlds.families import add_families
from tstar_envs.envs.search_qa.generate.worlds.graph import World
from tstar_envs.envs.search_qa.generate.worlds.population import Names, RegionSize, add_entities, dealt
from tstar_envs.stable_random import StableRandom

MAKER_AGES = range(20, 40)
LIFETIMES = range(40, 90)
AWARD_YEARS = range(1850, 1950)
INDEPENDENCE_YEARS = range(1700, 1900)
MOST_POPULAR = 1_000_000
WORKS_PER_MAKER = 2.5
# relation -> how much likelier than others it is written down; what questions chain (families, works) counts most
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
    """Draw a world.

    Args:
        seed: same seed, same world, on every machine and Python version.
        regions: region name -> how many entities of each type.
        taken: names that must not occur.
        namesakes: share of works that get a namesake of another kind.

    Raises:
        ValueError: names run out.
    """
    rng = StableRandom(seed)
    world = World()
    names = Names(rng, taken)
    countries = [word for word in rng.shuffled(lexicon.COUNTRY_WORDS) if word not in taken]
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
    """Other forms of a name, all of them unique by how they are made."""
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
    """Everything that is true in a region, and of it what the passages state."""
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
    deal("occupation", people, [*lexicon.OCCUPATIONS, *lexicon.MORE_OCCUPATIONS])
    deal("school", people, ids["school"])
    deal("employer", people, organisations)
    for person in share(people, 0.15):
        truth[person]["nickname"] = names.new("{} {}", lexicon.NICKNAMES, lexicon.FIRST_WORDS)

    deal("founder", organisations, people)
    deal("city", organisations, cities)
    for organisation in organisations:
        truth[organisation]["founding_year"] = str(
            births[truth[organisation]["founder"]] + rng.choice(MAKER_AGES)
        )

    works = ids["work"]
    deal("creator", works, share(people, min(1.0, len(works) / WORKS_PER_MAKER / len(people))))
    deal("company", works, ids["company"])
    deal("genre", works, lexicon.GENRES)
    for work in works:
        truth[work]["year"] = str(births[truth[work]["creator"]] + rng.choice(MAKER_AGES))
    twins = Counter(world.entities[work].name for work in works)
    # "based on X" must say which X.
    models = [work for work in works if twins[world.entities[work].name] == 1]
    for work, model in zip(share(works, 0.4), rng.shuffled(models), strict=False):
        if int(truth[model]["year"]) < int(truth[work]["year"]):
            truth[work]["based_on"] = model

    deal("country", cities, ids["country"])
    deal("river", cities, lexicon.RIVER_WORDS)
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
    """State three, four or five facts of people and works, by popularity, and all facts of anything else."""
    ranked = sorted(truth, key=lambda id_: -world.entities[id_].popularity)
    allowance = {
        id_: 5 if 5 * rank < len(ranked) else 4 if 5 * rank < 3 * len(ranked) else 3
        for rank, id_ in enumerate(ranked)
    }
    for id_, known in truth.items():
        stated = list(known)
        if world.entities[id_].type in ("person", "work"):
            tickets = rng.shuffled([r for r in known for _ in range(WEIGHTS.get(r, 1))])
            first = [r for r in ("creator",) if r in known]  # a work without its maker would be no work
            stated = list(dict.fromkeys([*first, *tickets]))[: allowance[id_]]
        if known.get("country") and truth[known["country"]].get("capital") == id_:
            stated.remove("country")  # its country's passage names them both already
        for relation in stated:
            world.facts[id_, relation] = known[relation]
