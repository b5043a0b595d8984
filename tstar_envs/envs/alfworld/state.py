"""What an episode's state is: the household, what the agent saw of it, and under the original engine what was typed and answered."""

from __future__ import annotations

from typing import NamedTuple

NOTHING = -1  # no object held, no location


class Household(NamedTuple):
    """The room, and the agent in it: everything that commands change and that a later answer depends on.

    ``contents[r]`` are the objects in receptacle r and ``lying[o]`` the locations of object o, both ascending. ``left`` holds the
    pairs (object, receptacle) where the object was taken out and not put back: the game lists such an object "next to" the
    receptacle when it lies at the same location.
    """

    location: int
    held: int
    contents: tuple[tuple[int, ...], ...]
    lying: tuple[tuple[int, ...], ...]
    opened: frozenset[int]
    clean: frozenset[int]
    hot: frozenset[int]
    cool: frozenset[int]
    toggled: frozenset[int]
    sliced: frozenset[int]
    left: frozenset[tuple[int, int]] = frozenset()


Seen = frozenset[int]  # receptacles whose contents were shown
NOTHING_SEEN: Seen = frozenset()


class Answer(NamedTuple):
    """What the engine says after a command: its text, the admissible commands as it lists them, whether the game is won."""

    feedback: str
    admissible: tuple[str, ...]
    won: bool


class Mirrored(NamedTuple):
    """The original engine's side of a state: what was typed to get there, and its answer."""

    history: tuple[str, ...]
    answer: Answer


class State(NamedTuple):
    """Where an episode stands.

    Attributes:
        household: what commands have made of it.
        seen: the receptacles whose contents were shown.
        mirrored: under the original engine what was typed and its answer, else None.
    """

    household: Household
    seen: Seen = NOTHING_SEEN
    mirrored: Mirrored | None = None
