"""Contents of tasks as one text: equal contents give the same text on every machine and in every version of Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any


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
