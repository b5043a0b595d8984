"""A count with its noun, for messages, tables and pages."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 task``, ``2,000 tasks``; ``plural`` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
