"""Names of things: ``mug 2`` from raw ids, numbered as ALFWorld's wrapper numbers them.

The wrapper sorts all ids that occur in a fact and numbers each kind downwards in that order, so the first id of a kind has the
highest number. The kind is the id's part in front of the first ``_bar_``, and an id that says "basin" anywhere gets that word appended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_SEPARATOR = "_bar_"


def demangle(ids: Iterable[str]) -> dict[str, str]:
    """Raw id -> name as it is shown and typed."""
    ordered = sorted(ids)
    bases = {}
    for raw in ordered:
        base, separator, _ = raw.partition(_SEPARATOR)
        if separator:
            bases[raw] = f"{base}basin" if "basin" in raw else base
    left = Counter(bases.values())
    names = {}
    for raw in ordered:
        base = bases.get(raw, "")
        # What has no part after a bar gets no number, and the wrapper leaves the space in front of it standing.
        names[raw] = f"{base} {left[base]}" if base else f"{raw} "
        left[base] -= 1
    return names
