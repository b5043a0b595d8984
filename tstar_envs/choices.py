"""What options may be: the splits and prompt styles of every family, the check of a choice, and what a whole number is."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TypeGuard

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
