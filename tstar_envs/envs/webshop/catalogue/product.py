"""A product, its record in a store, and its text that is searched."""

from __future__ import annotations

import json
from typing import Any

Product = dict[str, Any]


def asin_key(asin: str) -> bytes:
    """An ASIN as the store keeps it."""
    return asin.encode("utf-8", "surrogatepass")


def encode(product: Product) -> bytes:
    """A product as its record in the store."""
    kept = {key: value for key, value in product.items() if key != "Title"}
    return json.dumps(kept, ensure_ascii=True, separators=(",", ":")).encode()


def indexed_text(product: Product) -> str:
    """What the original indexes: title, description, first bullet point and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product["options"].items())
    return " ".join(
        [product["name"], product["Description"], (product["BulletPoints"] or [""])[0], options]
    ).lower()
