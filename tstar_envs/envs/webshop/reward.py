"""Reward of a purchase, as in the original: product type, attributes, options and price.

Equal to princeton-nlp/WebShop@64fa2a5 (``web_agent_site/engine/goal.py``) up to 1e-9, sub-scores included. The caller passes
the nouns of the titles, so the score does not depend on a tagger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tstar_envs.errors import MissingExtra

# The original's colour words, in its order: a value is reduced to the first that it contains, even inside a word.
COLOR_WORDS = tuple(
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel champagne "
    "charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim eggplant elephant "
    "espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light lilac "
    "lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink "
    "plum purple rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal "
    "tiger turquoise violet walnut wheat white wine yellow".split()
)
PATH_MARK = " \u203a "  # separator of a category path
MATCH_ABOVE = 85  # of 100: more similar texts count as equal


class Reward(NamedTuple):
    """Score of a purchase.

    Attributes:
        total: the reward, in [0, 1].
        parts: the original's sub-scores (r_type, r_att, w_att, query_match, category_match, title_score, r_option and
            w_option if the goal has options, r_price, w_price), and ``original_error`` if the original raises.
    """

    total: float
    parts: dict[str, Any]


def normalize_color(value: str | tuple[str, ...]) -> str:
    """Reduce a value to its first colour word, else to text.

    The word is a substring of a text, or an element of a tuple.
    """
    return next((word for word in COLOR_WORDS if word in value), str(value))


@lru_cache(maxsize=65536)
def similar(first: str, second: str) -> bool:
    """Check whether the token set ratio of two texts, as in thefuzz, is above 85.

    Raises:
        MissingExtra: rapidfuzz is not installed.
    """
    try:
        from rapidfuzz import fuzz, utils
    except ImportError as error:
        raise MissingExtra("WebShop's score", "rapidfuzz", "webshop") from error
    return round(fuzz.token_set_ratio(first, second, processor=utils.default_process)) > MATCH_ABOVE


def has_attribute(product: Mapping[str, Any], attribute: str) -> bool:
    """Check whether a product has an attribute.

    It has one if its own attributes include a similar one, or if its text contains it (case-sensitive, as in the original).
    """
    return (
        any(similar(own, attribute) for own in product["Attributes"])
        or attribute in product["Title"].lower()
        or attribute in " ".join(product["BulletPoints"]).lower()
        or attribute in product["Description"].lower()
    )


def option_matches(wanted: str | tuple[str, ...], chosen: str) -> bool:
    """Check whether a chosen option value matches a wanted one; option names are ignored."""
    return similar(normalize_color(chosen), normalize_color(wanted))


def type_score(
    product: Mapping[str, Any],
    goal: Mapping[str, Any],
    product_nouns: Sequence[str],
    goal_nouns: Sequence[str],
) -> dict[str, Any]:
    """Score the product type: r_type, query_match, category_match, title_score."""
    query_match = product["query"] == goal["query"]
    own, wanted = (
        {part.strip() for part in of["product_category"].split(PATH_MARK.strip())} for of in (product, goal)
    )
    category_match = len(own & wanted) >= 2
    title_score = len(set(product_nouns) & set(goal_nouns)) / len(goal_nouns) if goal_nouns else 0.2
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score == 0.0:  # overrides a match of query and category, as does the next case
        r_type = 0.0
    elif title_score < 0.1:
        r_type = 0.1
    return {
        "r_type": r_type,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title_score,
    }


def score(
    product: Mapping[str, Any],
    goal: Mapping[str, Any],
    options: Mapping[str, str],
    price: float,
    product_nouns: Sequence[str],
    goal_nouns: Sequence[str],
) -> Reward:
    """Score a purchase.

    >>> lamp = {"Title": "Zuno floor lamp", "Description": "", "BulletPoints": [], "Attributes": ["dimmable"],
    ...         "query": "floor lamp", "product_category": "Home \u203a Lamps"}
    >>> goal = {"attributes": ["dimmable"], "goal_options": [], "price_upper": 50.0,
    ...         "query": "floor lamp", "product_category": "Home \u203a Lamps"}
    >>> score(lamp, goal, {}, 30.0, ["lamp"], ["lamp"]).total
    1.0

    Args:
        product: the bought product: Title, Description, BulletPoints, Attributes, query, product_category.
        goal: the goal: attributes, goal_options (a list of values, or name -> value), price_upper, query,
            product_category.
        options: option name -> chosen value.
        price: price of the bought product.
        product_nouns: nouns of the bought product's title, in lower case.
        goal_nouns: nouns of the target's title; duplicates count.

    Returns:
        The total and its parts. If the original raises, ``original_error`` names the error: a price bound that is not
        positive counts as not met, and a goal without attributes drops that part.

    Raises:
        MissingExtra: rapidfuzz is not installed.
    """
    kind = type_score(product, goal, product_nouns, goal_nouns)
    attributes, wanted = goal["attributes"], goal["goal_options"]
    # The original passes (name, value) pairs of a dict unchanged and compares their text.
    wanted_values = list(wanted.items()) if isinstance(wanted, Mapping) else list(wanted)
    count = len(attributes) + len(wanted_values) + 1
    attribute_hits = sum(has_attribute(product, attribute) for attribute in attributes)
    option_hits = sum(
        any(option_matches(value, chosen) for chosen in options.values()) for value in wanted_values
    )
    bounded = goal["price_upper"] > 0
    r_price = bounded and price <= goal["price_upper"]
    parts = {
        "r_type": kind["r_type"],
        "r_att": attribute_hits / len(attributes) if attributes else 1.0,
        "w_att": len(attributes) / count,
        "query_match": kind["query_match"],
        "category_match": kind["category_match"],
        "title_score": kind["title_score"],
    }
    if wanted_values:
        parts["r_option"], parts["w_option"] = option_hits / len(wanted_values), len(wanted_values) / count
    parts["r_price"], parts["w_price"] = r_price, 1 / count
    errors = [] if bounded else [f"TypeError: the price bound is {goal['price_upper']!r}, not above 0"]
    errors += [] if attributes else ["ZeroDivisionError: the goal has no attributes"]
    if errors:
        parts["original_error"] = "; ".join(errors)
    return Reward(kind["r_type"] * ((attribute_hits + option_hits + r_price) / count), parts)
