"""Data inside an HTML page: no more of it than a browser likes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
MOST_TEXT = 4_000


def clipped(text: str, most: int = MOST_TEXT) -> str:
    """The text cut to at most `most` characters; a cut text says how many are left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Choose at most `most` items: the first, the last, and evenly spaced ones between them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


class Budget:
    """How many characters of data may still go into the page."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def take(self, data: Any) -> bool:
        """Whether `data` still fits; if so, its size is spent."""
        size = len(json.dumps(data))
        if size > self._left:
            return False
        self._left -= size
        return True
