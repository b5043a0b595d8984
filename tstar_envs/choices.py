"""Options with a fixed set of values: the splits and prompt styles of every family, and the check of a choice."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.errors import UnknownOption

SPLITS = ("train", "valid", "test")
PROMPT_STYLES = ("react", "tags")


def check_option(name: str, value: object, valid: Sequence[object]) -> None:
    """Raise UnknownOption unless ``value`` is one of ``valid``."""
    if value not in valid:
        raise UnknownOption(f"{name} must be one of {', '.join(repr(v) for v in valid)}, got {value!r}")
