"""Small helpers: choices of options, counts with nouns, repeatable draws, canonical texts, self-contained pages."""

from __future__ import annotations

import base64
import hashlib
import json
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
    """Whether a value is a whole number; numpy's are welcome, truth values are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 task``, ``2,000 tasks``; ``plural`` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


T = TypeVar("T")


class StableRandom:
    """Uniform draws built on ``random.Random.random`` alone."""

    def __init__(self, seed: int | str) -> None:
        self._uniform = random.Random(seed).random

    def below(self, bound: int) -> int:
        """A uniform integer in ``[0, bound)``."""
        return int(self._uniform() * bound)

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._uniform() < probability

    def choice(self, items: Sequence[T]) -> T:
        """One item, uniformly."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A new list in uniform random order (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


def canonical(value: Any) -> str:
    """Plain values as one line of JSON in ASCII: names sorted, sets in order, dataclasses and mappings as objects.

    Not ``repr``, whose escapes depend on the version of Python, and which gives sets in the order of their hashes.
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
    """A digest of several texts in their order; where one ends and the next begins counts."""
    hasher = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        hasher.update(b"%d\n" % len(data))
        hasher.update(data)
    return hasher.hexdigest()


def script_json(data: Any) -> str:
    """JSON that no HTML parser takes for markup and no script parser for a line break, whatever its texts are.

    Brackets and the ampersand are escaped here, U+2028, half a surrogate pair and all else beyond ASCII by ``ensure_ascii``.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def content_policy(script: str, style: str) -> str:
    """A Content-Security-Policy under which a page uses these two sources and loads nothing: a second lock behind the escaping."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
