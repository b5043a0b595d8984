"""How much the mini tier's products look like the original's: a table of both; and the ceiling of a set of goals.

``python scripts/studies/webshop_statistics.py [--data FOLDER]`` (any catalogue) beside what was measured of the original's set of
1,000 products. The ceiling is the best that anybody can score: the original's score is below 1 for some goals even when the very
product that they are about is bought with the options that they name.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from tstar_envs.envs.webshop.catalogue import Product
from tstar_envs.envs.webshop.expert import wanted_options
from tstar_envs.envs.webshop.reward import score
from tstar_envs.envs.webshop.shop import Shop
from tstar_envs.envs.webshop.tasks import load_shop

MISSING_PRICE = [100.0]  # what the original puts in its place
# Of items_shuffle_1000.json and items_ins_v2_1000.json as princeton-nlp/WebShop publishes them.
REAL = {
    "words of a title, mean": 18.0,
    "characters of a title, mean": 116.0,
    "characters of a description (where there is one), mean": 510.0,
    "without description, %": 30.0,
    "bullet points, mean": 4.6,
    "characters of bullet points, mean": 754.0,
    "price missing, %": 9.0,
    "price a range, %": 9.0,
    "price, 5 % are below": 6.7,
    "price, 25 % are below": 15.0,
    "price, median": 29.0,
    "price, 75 % are below": 100.0,
    "price, 95 % are below": 350.0,
    "without options, %": 58.0,
    "one option, %": 25.0,
    "two options, %": 17.0,
    "values of an option, mean": 5.7,
    "values of an option, median": 4.0,
    "attributes, median": 2.0,
}


def statistics(products: Sequence[Product]) -> dict[str, float]:
    """The figures of ``REAL`` for some products."""
    texts = [product["Description"] for product in products]
    options = [len(product["options"]) for product in products]
    values = [len(values) for product in products for values in product["options"].values()]
    prices = [product["pricing"][0] for product in products]
    quantiles = [float(np.percentile(prices, share)) for share in (5, 25, 50, 75, 95)]

    def percent(flags: Sequence[bool]) -> float:
        return 100 * sum(flags) / len(flags)

    figures = (
        np.mean([len(product["name"].split()) for product in products]),
        np.mean([len(product["name"]) for product in products]),
        np.mean([len(text) for text in texts if text]),
        percent([not text for text in texts]),
        np.mean([len(product["BulletPoints"]) for product in products]),
        np.mean([sum(map(len, product["BulletPoints"])) for product in products]),
        percent([product["pricing"] == MISSING_PRICE for product in products]),
        percent([len(product["pricing"]) == 2 for product in products]),
        *quantiles,
        *(percent([count == number for count in options]) for number in range(3)),
        np.mean(values),
        np.median(values),
        np.median([len(product["Attributes"]) for product in products]),
    )
    return dict(zip(REAL, map(float, figures), strict=True))


def ceiling(shop: Shop) -> list[float]:
    """What buying its own product with the options that it names scores, for every goal; 0 where the product is not in the catalogue."""
    scores = []
    for task in shop.tasks.values():
        number = shop.catalogue.find(task.goal["asin"])
        if number is None:
            scores.append(0.0)
            continue
        product = shop.catalogue.product(number)
        chosen = wanted_options(product, task)
        scores.append(
            score(product, task.goal, chosen, shop.catalogue.price(number), product["nouns"], task.nouns)[0]
        )
    return scores


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", default="mini", help="catalogue: mini, full or a folder (default: %(default)s)"
    )
    data = parser.parse_args().data
    shop = load_shop(data)
    catalogue = shop.catalogue
    figures = statistics([catalogue.product(number) for number in range(len(catalogue))])
    print(f"| of a product | the original's 1,000 | {data} ({len(catalogue)}) |\n|---|---|---|")
    for name, figure in figures.items():
        print(f"| {name} | {REAL[name]:g} | {figure:.3g} |")
    scores = ceiling(shop)
    print(
        f"\nceiling: {sum(best < 1 for best in scores)} of {len(scores)} goals score less than 1 with the exact product and options; "
        f"the best possible mean score is {np.mean(scores):.4f}"
    )


if __name__ == "__main__":
    main()
