"""Parents and spouses of a region of the rich world."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.stable_random import StableRandom

GENERATIONS = 4
FIRST_BIRTHS = range(1800, 1830)
PARENT_AGES = range(20, 40)


def add_families(
    truth: dict[str, dict[str, str]], people: Sequence[str], rng: StableRandom
) -> dict[str, int]:
    """Parents and spouses, generation after generation; returns the years of birth.

    A marriage is a fact of one of the two only: stated twice, the second hop could be skipped.
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
        # Neighbours by age marry, unless they are siblings.
        by_age = sorted(generation, key=lambda person: (births[person], person))
        pairs = [tuple(rng.shuffled(pair)) for pair in zip(by_age[0::2], by_age[1::2], strict=False)]
        couples = [(one, other) for one, other in pairs if start == 0 or family[one] != family[other]]
        for couple in couples:
            one, other = rng.shuffled(couple)
            truth[one]["spouse"] = other
    return births
