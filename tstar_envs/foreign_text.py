"""Text of models and services made fit to be sent, recorded and shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tstar_envs.redaction import redacted

REPLACED = "\N{REPLACEMENT CHARACTER}"
# Control characters, and those that turn the direction of what follows, a page's or terminal's own words included.
_CONTROLS = (*range(32), 127, *range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INERT = {code: REPLACED for code in _CONTROLS if chr(code) not in "\n\t"}


def encodable(text: str) -> str:
    """A text that UTF-8 can hold: half of a surrogate pair becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encodable_parts(value: Any) -> Any:
    """A copy of values that JSON can hold: every text ``encodable``, null for a number that is none."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable_parts(name): encodable_parts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encodable_parts(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """A text that terminals and pages may show: encodable, without control signs and secrets."""
    return encodable(redacted(text)).translate(_INERT)
