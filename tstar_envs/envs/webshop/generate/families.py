"""The families of products, and the split that each belongs to."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """A kind of product.

    Attributes:
        query: what a buyer types; the head noun of every title.
        category: one of the original's five.
        path: category path below the shop's, at least two parts.
        options: names of its options, none to two.
    """

    query: str
    category: str
    path: tuple[str, ...]
    options: tuple[str, ...]


# category -> department, (shelf: families), attributes. A family is written "query: option names".
_SHELVES: dict[str, tuple[str, dict[str, str]]] = {
    "beauty": (
        "Beauty & Personal Care",
        {
            "Hair Care": "shampoo bar: scent|hair mask|curl cream: scent, size|hairbrush",
            "Skin Care": "face serum|body lotion: scent|night cream|lip balm: scent, size",
            "Tools": "nail file set|shower cap",
        },
    ),
    "electronics": (
        "Electronics",
        {
            "Audio": "desk speaker: color|headphone stand|turntable mat|cable organizer: color, size",
            "Camera & Photo": "tripod|lens case: size|ring lamp",
            "Computers": "laptop sleeve: color, size|monitor riser|keyboard tray",
        },
    ),
    "garden": (
        "Home & Kitchen",
        {
            "Furniture": "footstool: color|bookcase|bar cart|floor cushion: color, size",
            "Bedding": "duvet cover: color, size|pillow insert: size|throw blanket: color",
            "Lighting": "floor lamp|table lantern|candle holder",
        },
    ),
    "fashion": (
        "Clothing, Shoes & Jewelry",
        {
            "Shoes": "loafers: color, size|rain boots: size|slippers: color, size",
            "Clothing": "cardigan: color, size|swim shorts: fit type|rain jacket: color|knit scarf: color",
            "Accessories": "belt|tote bag: color|wallet",
        },
    ),
    "grocery": (
        "Grocery & Gourmet Food",
        {
            "Snacks": "granola: flavor name|rice crackers|fruit chews: flavor name, size|trail mix",
            "Beverages": "herbal tea: flavor name|cocoa powder|oat drink",
            "Pantry": "pasta sauce|pickled beets|chili paste",
        },
    ),
}


def _read() -> tuple[Family, ...]:
    found = []
    for category, (department, shelves) in _SHELVES.items():
        for shelf, line in shelves.items():
            for item in line.split("|"):
                query, _, options = item.partition(": ")
                # Two parts in common within a family only.
                path = (department, f"{shelf} of the Kind {query.title()}", query.title())
                found.append(Family(query, category, path, tuple(options.split(", ")) if options else ()))
    return tuple(found)


FAMILIES = _read()
# Every fifth family is held out for the test, every tenth for validation: names never seen in training.
SPLIT_OF = {
    family: {1: "test", 6: "test", 3: "valid"}.get(number % 10, "train")
    for number, family in enumerate(FAMILIES)
}
