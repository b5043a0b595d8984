"""What is promised of a goal, proved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.reward import has_attribute, option_matches, score, type_score

BEST_MISS = (0.5, 0.8)


class Unprovable(ValueError):
    """A goal that does not hold what is promised; the generator draws another."""


def met(product: Product, goal: Mapping[str, Any]) -> tuple[int, int, int]:
    """How many attributes, options and price limits of a goal a product can meet with its best options."""
    attributes = sum(has_attribute(product, attribute) for attribute in goal["attributes"])
    values = [value for offered in product["options"].values() for value in offered]
    options = sum(any(option_matches(wanted, value) for value in values) for wanted in goal["goal_options"])
    return attributes, options, int(product["pricing"][0] <= goal["price_upper"])


def prove(goal: Mapping[str, Any], products: Sequence[Product]) -> None:
    """Prove that exactly one product with one set of options scores 1.0 and the best other purchase 0.5-0.8.

    Every option set of the target is scored; of every other product its best one, which no choice can exceed.

    Raises:
        Unprovable: it is not so; the message says where.
    """
    target = next(product for product in products if product["asin"] == goal["asin"])
    full = len(goal["attributes"]) + len(goal["goal_options"]) + 1
    best = max(
        type_score(p, goal, p["nouns"], target["nouns"])["r_type"] * sum(met(p, goal)) / full
        for p in products
        if p is not target
    )
    perfect = []
    choices = [[None, *values] for values in target["options"].values()]
    for combination in itertools.product(*choices):
        options = {
            name: value
            for name, value in zip(target["options"], combination, strict=True)
            if value is not None
        }
        total = score(target, goal, options, target["pricing"][0], target["nouns"], target["nouns"]).total
        if total == 1.0:
            perfect.append(options)
        else:
            best = max(best, total)
    if len(perfect) != 1:
        raise Unprovable(f"{goal['asin']}: {len(perfect)} option sets score 1.0")
    if not BEST_MISS[0] <= best <= BEST_MISS[1]:
        raise Unprovable(f"{goal['asin']}: the best other purchase scores {best}")
