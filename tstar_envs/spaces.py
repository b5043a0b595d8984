"""A space of strings.

Not ``gymnasium.spaces.Text``: that one rejects spaces and newlines by default, and in an ``AsyncVectorEnv`` with
shared memory it returns stale padding instead of the observation. A direct subclass of ``Space`` fails loudly there
and works with ``shared_memory=False``.
"""

from __future__ import annotations

import string
from typing import Any

from gymnasium.spaces import Space


class Unicode(Space[str]):
    """All strings of ``min_length`` to ``max_length`` characters.

    Args:
        max_length: longest member, in characters.
        min_length: shortest member.
        seed: seeds ``sample``.
    """

    def __init__(self, max_length: int, min_length: int = 0, seed: int | None = None) -> None:
        if not 0 <= min_length <= max_length:
            raise ValueError(f"need 0 <= min_length <= max_length, got {min_length} and {max_length}")
        self.min_length = min_length
        self.max_length = max_length
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Strings have no fixed-size array form."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A string of at most 32 printable ASCII characters (full-range samples would be unreadable)."""
        longest = min(self.max_length, max(32, self.min_length))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        return "".join(string.printable[i] for i in self.np_random.integers(0, 95, size=length))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string within the bounds."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"Unicode(max_length={self.max_length}, min_length={self.min_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and (self.min_length, self.max_length) == (other.min_length, other.max_length)

    def __hash__(self) -> int:
        return hash((self.min_length, self.max_length))
