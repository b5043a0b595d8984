"""The products of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tstar_envs.envs.webshop.catalogue import building
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.nouns import LEXICON
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.generate import word_lists
from tstar_envs.envs.webshop.generate.families import Family
from tstar_envs.envs.webshop.reward import PATH_MARK
from tstar_envs.stable_random import StableRandom

PRODUCTS, POOL = 20, 10  # of a family; attributes in a family
_ASIN_LETTERS = "0123456789ABCDEFGHJKLMNPQRSTVWXYZ"


class Draft(NamedTuple):
    """A product with what the generator knows of it."""

    product: Product
    shown: tuple[str, ...]
    hidden: tuple[str, ...]


def invented_name(rng: StableRandom) -> str:
    """A brand that does not exist."""
    return (
        rng.choice(word_lists.SYLLABLES) + rng.choice(word_lists.SYLLABLES) + rng.choice(word_lists.ENDINGS)
    ).capitalize()


def make_drafts(family: Family, rng: StableRandom, count: int = PRODUCTS) -> list[Draft]:
    """The products of a family: each has three or four of the attributes of a pool, half of them in the title."""
    pool = rng.shuffled(word_lists.ATTRIBUTES[family.category])[:POOL]
    base = rng.choice((9, 14, 18, 25, 29, 38, 55, 90, 180))
    offered = {name: rng.shuffled(word_lists.OPTION_VALUES[name]) for name in family.options}
    drafts = []
    for _ in range(count):
        chosen = rng.shuffled(pool)[: 3 + rng.below(2)]
        drafts.append(_draft(family, tuple(chosen[:2]), tuple(chosen[2:]), base, offered, rng))
    return drafts


def _pricing(base: float, rng: StableRandom) -> tuple[list[float], str]:
    kind = rng.below(100)
    if kind < 9:
        return [100.0], "$100.0"  # the original's stand-in for a missing price
    low = round(int(base * (0.6 + rng.below(1200) / 1000)) + rng.choice((0.0, 0.49, 0.95, 0.99)), 2)
    if kind < 18:
        high = round(low * (1.1 + rng.below(30) / 100), 2)
        return [low, high], f"${low} to ${high}"
    return [low], f"${low}"


def _draft(
    family: Family,
    shown: tuple[str, ...],
    hidden: tuple[str, ...],
    base: float,
    offered: Mapping[str, list[str]],
    rng: StableRandom,
) -> Draft:
    brand = invented_name(rng)
    words = {"noun": family.query, "brand": brand}
    filler = rng.shuffled(word_lists.TITLE_FILLER)[: 2 + rng.below(3)]
    head = rng.shuffled([family.query.title(), *(attribute.title() for attribute in shown)])
    title = " ".join([brand, *head, ", ".join(filler)])
    description = [
        line.format(**words) for line in rng.shuffled(word_lists.DESCRIPTION_FILLER)[: 4 + rng.below(3)]
    ]
    bullets = [line.format(**words) for line in rng.shuffled(word_lists.BULLET_FILLER)[: 3 + rng.below(3)]]
    described = rng.chance(0.7)
    for attribute in hidden:
        sentence = rng.choice(word_lists.ATTRIBUTE_SENTENCES).format(attribute=attribute)
        if described and rng.chance(0.6):
            description.insert(rng.below(len(description) + 1), sentence)
        else:
            bullets.insert(rng.below(len(bullets) + 1), sentence)
    bounds, tag = _pricing(base, rng)
    options = {
        name: rng.shuffled(values)[: 3 + rng.below(len(values) - 3)] for name, values in offered.items()
    }
    product = {
        "asin": "B0" + "".join(rng.choice(_ASIN_LETTERS) for _ in range(8)),
        "name": title,
        "query": family.query,
        "category": family.category,
        "product_category": PATH_MARK.join(family.path),
        "Attributes": rng.shuffled([*shown, *hidden]),
        "BulletPoints": bullets,
        "Description": " ".join(description) if described else "",
        "pricing": bounds,
        "Price": tag,
        "options": options,
        "nouns": LEXICON.nouns(title),
        "tagger": LEXICON.name,
        "Title": title,
    }
    return Draft(product, shown, hidden)


def collect(drafts: Sequence[Draft]) -> Catalogue:
    """The catalogue of drafts."""
    return building.collect(
        (draft.product for draft in drafts), lambda product: float(product["pricing"][0]), LEXICON.name
    )
