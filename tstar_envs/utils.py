"""Small helpers: option checks, counts with nouns, reproducible random numbers, canonical JSON, safe HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from numbers import Integral
from typing import Any, TypeGuard, TypeVar

from tstar_envs.errors import UnknownOption

SPLITS = ("train", "valid", "test")
PROMPT_STYLES = ("react", "tags")


def check_option(name: str, value: object, valid: Sequence[object]) -> None:
    """Raise UnknownOption unless ``value`` is one of ``valid``."""
    if value not in valid:
        raise UnknownOption(f"{name} must be one of {', '.join(repr(v) for v in valid)}, got {value!r}")


def is_whole(value: object) -> TypeGuard[int]:
    """Check whether a value is an integer, NumPy's included; bools are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a count: ``1 task``, ``2,000 tasks``. ``plural`` is for irregular nouns."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


T = TypeVar("T")


class StableRandom:
    """Reproducible random numbers, built on ``random.Random.random`` alone.

    Example:
        >>> from tstar_envs import StableRandom
        >>> StableRandom("seed").below(100) == StableRandom("seed").below(100)
        True
    """

    def __init__(self, seed: int | str) -> None:
        self._uniform = random.Random(seed).random

    def below(self, bound: int) -> int:
        """Draw an integer uniformly from ``[0, bound)``."""
        return int(self._uniform() * bound)

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._uniform() < probability

    def weighted(self, weights: Sequence[float]) -> int:
        """Draw an index with probability proportional to its weight.

        Args:
            weights: from 0; at least one is positive.
        """
        left = self._uniform() * math.fsum(weights)
        last = 0
        for index, weight in enumerate(weights):
            if weight > 0:
                last = index
                left -= weight
                if left < 0:
                    break
        return last

    def choice(self, items: Sequence[T]) -> T:
        """Draw one item uniformly."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Shuffle into a new list (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


def canonical(value: Any) -> str:
    """Serialize plain values to one line of ASCII JSON: names sorted, sets ordered, dataclasses and mappings as objects.

    Not ``repr``: its escapes depend on the version of Python, and it lists sets in the order of their hashes.
    """
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Set):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no canonical text")


def digest_all(texts: Iterable[str]) -> str:
    """Hash several texts in order; their boundaries count."""
    hasher = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hasher.update(b"%d\n" % len(data))
        hasher.update(data)
    return hasher.hexdigest()


_ACTIONS = "\nAdmissible actions: "


def with_actions(observation: str, actions: Sequence[str]) -> str:
    """Append the admissible actions, if there are any, to an observation, in one line."""
    return f"{observation}{_ACTIONS}{'; '.join(actions)}" if actions else observation


def without_actions(observation: str) -> str:
    """Remove the line of ``with_actions``, if it is the last one."""
    before, mark, listed = observation.rpartition(_ACTIONS)
    return before if mark and "\n" not in listed else observation


def script_json(data: Any) -> str:
    """Serialize to JSON that is safe inside an HTML script element, whatever its texts are.

    Angle brackets and ampersands are escaped here; U+2028, lone surrogates and everything else beyond ASCII by ``ensure_ascii``.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def content_policy(script: str, style: str) -> str:
    """Build a Content-Security-Policy for a page with two inline sources, as a second defense."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
