"""A pure function that remembers its results, bounded in bytes: a reply may be a megabyte, and thousands of those would be gigabytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Generic, TypeVar

Argument = TypeVar("Argument", bound=Hashable)
Result = TypeVar("Result")


class BoundedCache(Generic[Argument, Result]):
    """Results for short arguments are remembered, and of long ones the last alone.

    Args:
        function: of one argument.
        length: how long an argument is.
        longest: up to where it is short.
        most: results for short arguments that are remembered.

    Attributes:
        short: the function as it is called for short arguments, with ``functools.lru_cache``'s ``cache_info``.
        long: likewise for long ones.
    """

    def __init__(
        self,
        function: Callable[[Argument], Result],
        length: Callable[[Argument], int],
        longest: int,
        most: int,
    ) -> None:
        self._length, self._longest = length, longest
        self.short = lru_cache(most)(function)
        self.long = lru_cache(1)(function)  # a page asks several times

    def __call__(self, argument: Argument) -> Result:
        """The function's result."""
        return (self.short if self._length(argument) <= self._longest else self.long)(argument)
