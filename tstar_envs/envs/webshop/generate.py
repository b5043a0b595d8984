"""The mini tier's catalogue and goals, and the proof of what is promised of them.

``python -m tstar_envs.envs.webshop.generate --out FOLDER`` writes ``products.jsonl.gz``, ``goals.jsonl.gz`` and
``MANIFEST.json``; the bytes are the same for one seed on every machine. What is proved of each goal: ``prove``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.envs.webshop import building, families
from tstar_envs.envs.webshop.catalogue import Catalogue, Product
from tstar_envs.envs.webshop.families import FAMILIES, SPLIT_OF, Family
from tstar_envs.envs.webshop.goals import ShopTask, draw_bound, task_to_record
from tstar_envs.envs.webshop.nouns import LEXICON
from tstar_envs.envs.webshop.reward import PATH_MARK, has_attribute, option_matches, score, type_score
from tstar_envs.stable_random import StableRandom

SEED = 20260101
PRODUCTS, GOALS, NEAR_MISSES, POOL = (
    20,
    20,
    3,
    10,
)  # of a family; near misses of a goal; attributes in a family
RANKS = range(2, 21)  # of the target for the family's query
BEST_MISS = (0.5, 0.8)
_ASIN_LETTERS = "0123456789ABCDEFGHJKLMNPQRSTVWXYZ"


class Draft(NamedTuple):
    """A product with what the generator knows of it."""

    product: Product
    shown: tuple[str, ...]
    hidden: tuple[str, ...]


class Unprovable(ValueError):
    """A goal that does not hold what is promised; the generator draws another."""


def invented_name(draw: StableRandom) -> str:
    """A brand that does not exist."""
    return (
        draw.choice(families.SYLLABLES) + draw.choice(families.SYLLABLES) + draw.choice(families.ENDINGS)
    ).capitalize()


def make_drafts(family: Family, draw: StableRandom, count: int = PRODUCTS) -> list[Draft]:
    """The products of a family: each has three or four of the attributes of a pool, half of them in the title."""
    pool = draw.shuffled(families.ATTRIBUTES[family.category])[:POOL]
    base = draw.choice((9, 14, 18, 25, 29, 38, 55, 90, 180))
    offered = {name: draw.shuffled(families.OPTION_VALUES[name]) for name in family.options}
    drafts = []
    for _ in range(count):
        chosen = draw.shuffled(pool)[: 3 + draw.below(2)]
        drafts.append(_draft(family, tuple(chosen[:2]), tuple(chosen[2:]), base, offered, draw))
    return drafts


def _pricing(base: float, draw: StableRandom) -> tuple[list[float], str]:
    kind = draw.below(100)
    if kind < 9:
        return [100.0], "$100.0"  # the original's stand-in for a missing price
    low = round(int(base * (0.6 + draw.below(1200) / 1000)) + draw.choice((0.0, 0.49, 0.95, 0.99)), 2)
    if kind < 18:
        high = round(low * (1.1 + draw.below(30) / 100), 2)
        return [low, high], f"${low} to ${high}"
    return [low], f"${low}"


def _draft(
    family: Family,
    shown: tuple[str, ...],
    hidden: tuple[str, ...],
    base: float,
    offered: Mapping[str, list[str]],
    draw: StableRandom,
) -> Draft:
    brand = invented_name(draw)
    words = {"noun": family.query, "brand": brand}
    filler = draw.shuffled(families.TITLE_FILLER)[: 2 + draw.below(3)]
    head = draw.shuffled([family.query.title(), *(attribute.title() for attribute in shown)])
    title = " ".join([brand, *head, ", ".join(filler)])
    description = [
        line.format(**words) for line in draw.shuffled(families.DESCRIPTION_FILLER)[: 4 + draw.below(3)]
    ]
    bullets = [line.format(**words) for line in draw.shuffled(families.BULLET_FILLER)[: 3 + draw.below(3)]]
    described = draw.chance(0.7)
    for attribute in hidden:
        sentence = draw.choice(families.ATTRIBUTE_SENTENCES).format(attribute=attribute)
        if described and draw.chance(0.6):
            description.insert(draw.below(len(description) + 1), sentence)
        else:
            bullets.insert(draw.below(len(bullets) + 1), sentence)
    bounds, tag = _pricing(base, draw)
    options = {
        name: draw.shuffled(values)[: 3 + draw.below(len(values) - 3)] for name, values in offered.items()
    }
    product = {
        "asin": "B0" + "".join(draw.choice(_ASIN_LETTERS) for _ in range(8)),
        "name": title,
        "query": family.query,
        "category": family.category,
        "product_category": PATH_MARK.join(family.path),
        "Attributes": draw.shuffled([*shown, *hidden]),
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


def met(product: Product, goal: Mapping[str, Any]) -> tuple[int, int, int]:
    """How many attributes, options and price limits of a goal a product can meet with its best options."""
    attributes = sum(has_attribute(product, attribute) for attribute in goal["attributes"])
    values = [value for offered in product["options"].values() for value in offered]
    options = sum(any(option_matches(wanted, value) for value in values) for wanted in goal["goal_options"])
    return attributes, options, int(product["pricing"][0] <= goal["price_upper"])


def candidates(family: Family, drafts: Sequence[Draft], draw: StableRandom) -> Iterator[dict[str, Any]]:
    """Goals without end: one attribute of the target's title, one that only its sub pages show, all its options, a limit."""
    while True:
        product, shown, hidden = draw.choice(drafts)
        first, second = draw.choice(shown), draw.choice(hidden)
        options = [draw.choice(values) for values in product["options"].values()]
        bound, words = draw_bound(product["pricing"][-1], draw)
        named = zip(product["options"], options, strict=True)
        phrases = [f"{value} {name}" if name in ("size", "scent") else value for name, value in named]
        wish = ", in " + " and ".join(phrases) if phrases else ""
        text = draw.choice(families.INSTRUCTIONS).format(
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


def choose_goals(
    family: Family,
    drafts: Sequence[Draft],
    products: Sequence[Product],
    catalogue: Catalogue,
    draw: StableRandom,
    count: int,
    tries: int = 4000,
) -> list[dict[str, Any]]:
    """At most ``count`` different goals of a family, each proved against all products."""
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for goal in itertools.islice(candidates(family, drafts, draw), tries):
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


def task_of(goal: Mapping[str, Any], task_id: str, split: str, nouns: Sequence[str]) -> ShopTask:
    """A generated goal as a task."""
    return ShopTask(task_id, split, goal, tuple(nouns), goal["query"], goal["instruction_text"])


def collect(drafts: Sequence[Draft]) -> Catalogue:
    """The catalogue of drafts."""
    return building.collect(
        (draft.product for draft in drafts), lambda product: float(product["pricing"][0]), LEXICON.name
    )


def build(seed: int = SEED) -> tuple[list[Product], list[ShopTask]]:
    """The whole mini tier, proved."""
    by_family = {
        family: make_drafts(family, StableRandom(f"webshop/{seed}/{family.query}")) for family in FAMILIES
    }
    drafts = StableRandom(f"webshop/{seed}/order").shuffled(
        [draft for own in by_family.values() for draft in own]
    )
    products = [draft.product for draft in drafts]
    if len({product["asin"] for product in products}) != len(products):
        raise Unprovable("two products have one ASIN; take another seed")
    catalogue = collect(drafts)
    tasks = []
    for number, (family, own) in enumerate(by_family.items()):
        draw = StableRandom(f"webshop/{seed}/{family.query}/goals")
        for index, goal in enumerate(choose_goals(family, own, products, catalogue, draw, GOALS)):
            nouns = next(draft.product["nouns"] for draft in own if draft.product["asin"] == goal["asin"])
            tasks.append(task_of(goal, f"webshop-{number:02d}-{index:02d}", SPLIT_OF[family], nouns))
    return products, tasks


def files(products: Sequence[Product], tasks: Sequence[ShopTask]) -> dict[str, bytes]:
    """The uncompressed contents of the shipped files."""
    kept = [{key: value for key, value in product.items() if key != "Title"} for product in products]
    return {
        "products.jsonl": "".join(
            json.dumps(product, ensure_ascii=False) + "\n" for product in kept
        ).encode(),
        "goals.jsonl": "".join(
            json.dumps(task_to_record(task), ensure_ascii=False) + "\n" for task in tasks
        ).encode(),
    }


def write(folder: Path, contents: Mapping[str, bytes], seed: int) -> None:
    """Write the files and their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "what": "mini tier of WebShop, generated by this project (Apache-2.0)",
        "made_by": f"python -m tstar_envs.envs.webshop.generate --seed {seed} --out FOLDER",
        "sha256_uncompressed": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
    }
    for name, data in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    products, tasks = build(arguments.seed)
    write(arguments.out, files(products, tasks), arguments.seed)
    print(f"{len(products)} products, {len(tasks)} goals in {arguments.out}")


if __name__ == "__main__":
    main()
