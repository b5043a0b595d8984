"""The goals of a family: drawn without end, and those kept of which the proof holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.price_limits import draw_bound
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.generate import word_lists
from tstar_envs.envs.webshop.generate.families import Family
from tstar_envs.envs.webshop.generate.products import Draft
from tstar_envs.envs.webshop.generate.proof import Unprovable, prove
from tstar_envs.envs.webshop.task import Task
from tstar_envs.stable_random import StableRandom

GOALS, NEAR_MISSES = 20, 3  # of a family; near misses of a goal
RANKS = range(2, 21)  # of the target for the family's query


def candidates(family: Family, drafts: Sequence[Draft], rng: StableRandom) -> Iterator[dict[str, Any]]:
    """Goals without end: one attribute of the target's title, one that only its sub pages show, all its options, a limit."""
    while True:
        product, shown, hidden = rng.choice(drafts)
        first, second = rng.choice(shown), rng.choice(hidden)
        options = [rng.choice(values) for values in product["options"].values()]
        bound, words = draw_bound(product["pricing"][-1], rng)
        named = zip(product["options"], options, strict=True)
        phrases = [f"{value} {name}" if name in ("size", "scent") else value for name, value in named]
        wish = ", in " + " and ".join(phrases) if phrases else ""
        text = rng.choice(word_lists.INSTRUCTIONS).format(
            noun=family.query, first=first, second=second, options=wish
        )
        yield {
            **{key: product[key] for key in ("asin", "category", "query", "name", "product_category")},
            "instruction_text": text + words,
            "attributes": [first, second],
            "price_upper": bound,
            "goal_options": options,
        }


def plausible(goal: Mapping[str, Any], drafts: Sequence[Draft], catalogue: Catalogue) -> bool:
    """The cheap half of the proof: one product of the family meets all, enough fail in one thing, the rank is right."""
    full = len(goal["attributes"]) + len(goal["goal_options"]) + 1
    wanted, options = set(goal["attributes"]), set(goal["goal_options"])
    sums = []
    for product in (draft.product for draft in drafts):
        offered = {value for values in product["options"].values() for value in values}
        cheap = product["pricing"][0] <= goal["price_upper"]
        sums.append(len(wanted.intersection(product["Attributes"])) + len(options & offered) + cheap)
    if sums.count(full) != 1 or sums.count(full - 1) < NEAR_MISSES:
        return False
    found, target = catalogue.search(goal["query"]), catalogue.find(goal["asin"])
    return target in found and found.index(target) + 1 in RANKS


def choose_goals(
    family: Family,
    drafts: Sequence[Draft],
    products: Sequence[Product],
    catalogue: Catalogue,
    rng: StableRandom,
    count: int,
    tries: int = 4000,
) -> list[dict[str, Any]]:
    """Choose at most ``count`` different goals of a family, each proved against all products."""
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for goal in itertools.islice(candidates(family, drafts, rng), tries):
        key = (goal["asin"], *sorted(goal["attributes"]), *goal["goal_options"])
        if key in chosen or not plausible(goal, drafts, catalogue):
            continue
        try:
            prove(goal, products)
        except Unprovable:  # a product of a family on the same shelf does as well
            continue
        chosen[key] = goal
        if len(chosen) == count:
            break
    return list(chosen.values())


def task_of(goal: Mapping[str, Any], task_id: str, split: str, nouns: Sequence[str]) -> Task:
    """A generated goal as a task."""
    return Task(task_id, split, goal, tuple(nouns), goal["query"], goal["instruction_text"])
