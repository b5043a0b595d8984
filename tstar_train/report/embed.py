"""Data inside an HTML page: safe in a script block whatever the text is, and no more of it than a browser likes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from markupsafe import Markup

T = TypeVar("T")
MOST_TEXT = 4_000


def script_json(data: Any) -> Markup:
    """JSON that no HTML parser takes for markup and no script parser for a line break.

    The text of a model or an environment may hold `</script>`, `<!--`, U+2028 or half a surrogate pair: the first two lose
    their brackets here, the others are escaped by `ensure_ascii`.

    Raises:
        ValueError: a number is not finite; whoever made `data` turns those into None.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # nothing is left in it that a parser could stumble over


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
