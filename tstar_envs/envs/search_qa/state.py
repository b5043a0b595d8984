"""What an episode's state is: what the agent knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """Immutable and picklable; ``seen`` is sorted so that equal states are equal objects.

    Attributes:
        seen: ids of the passages that were shown.
        cache: (key of a query, observation) of every query of this episode, in order.
        answer: the answer given, None before.
    """

    seen: tuple[str, ...] = ()
    cache: tuple[tuple[str, str], ...] = ()
    answer: str | None = None

    def cached(self, key: str) -> str | None:
        """The observation that an earlier query of this key got in this episode."""
        return dict(self.cache).get(key)
