"""What the expert says before an operator, in four wordings, for each reason it may have; mystery words give no blocks away.

``{w}`` is what the goal demands, ``{x}`` the block, ``{y}`` the block it must be on, ``{z}`` the block below it, ``{a}`` the
operator as a clause, and ``{h}`` the fact that holds of the block in the hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Wordings = tuple[str, str, str, str]


@dataclass(frozen=True)
class Thoughts:
    """The reasons.

    Attributes:
        to_block: take a block that goes onto its block next.
        to_table: take one that goes to its last place, the table or the hand.
        clear_away: take one that stands on what a demand needs.
        clear_between: take one that stands between two blocks that must touch.
        place: put a block onto its block.
        place_on_table: put one on the table, where it must be.
        base: put one down that may be anywhere and that another must be on.
        wait: put one down that has to wait for the place it must have.
        aside: put one down of which the goal demands no place.
        hold_later: put one down that must be in the hand in the end.
        mistakes: a reason for a wrong operator.
    """

    to_block: Wordings
    to_table: Wordings
    clear_away: Wordings
    clear_between: Wordings
    place: Wordings
    place_on_table: Wordings
    base: Wordings
    wait: Wordings
    aside: Wordings
    hold_later: Wordings
    mistakes: tuple[str, ...]


_PLAIN = Thoughts(
    to_block=(
        "{w} and both are free, so I {a}.",
        "{w}, and that can be done now: I {a}.",
        "Next, {w}. I {a}.",
        "{x} can go to {y}: I {a}.",
    ),
    to_table=(
        "{w}, so I {a}.",
        "{w}, and nothing is in the way: I {a}.",
        "Next, {w}. I {a}.",
        "{x} can go to its place: I {a}.",
    ),
    clear_away=(
        "{w}, but {x} is in the way, so I {a}.",
        "{x} is in the way, because {w}: I {a}.",
        "First {x} has to go, because {w}. I {a}.",
        "{w}; {x} comes off first: I {a}.",
    ),
    clear_between=(
        "{w}, but {z} is between them, so I {a}.",
        "{z} is between {x} and {y}, and {w}: I {a}.",
        "First {z} has to go, because {w}. I {a}.",
        "{w}; {z} has to come out from between them: I {a}.",
    ),
    place=(
        "{w} and {y} is ready, so I {a}.",
        "I have {x} and {w}: I {a}.",
        "{y} is ready. I {a}.",
        "It is time: {w}. I {a}.",
    ),
    place_on_table=(
        "{w}, so I {a}.",
        "I have {x} and {w}: I {a}.",
        "That is the place of {x}. I {a}.",
        "It is time: {w}. I {a}.",
    ),
    base=(
        "{w}, and {y} may be anywhere, so I {a}.",
        "{y} comes first, because {w}: I {a}.",
        "{y} bears what the goal wants on it. I {a}.",
        "Something of the goal begins with {y}: I {a}.",
    ),
    wait=(
        "{w}, but {y} is not ready, so I {a}.",
        "{y} is not ready for {x} yet: I {a}.",
        "{x} has to wait, since {y} is not ready. I {a}.",
        "Not yet: {w}, but only later. I {a}.",
    ),
    aside=(
        "{x} may be anywhere, so I {a}.",
        "The goal needs no place for {x}: I {a}.",
        "{x} is only in the way. I {a}.",
        "{x} goes aside: I {a}.",
    ),
    hold_later=(
        "{w} in the end, but others have to be moved first, so I {a}.",
        "{x} has to wait, since others have to be moved first. I {a}.",
        "Not yet: {w}, but only in the end. I {a}.",
        "Others come first, and {x} again later: I {a}.",
    ),
    mistakes=(
        "I {a} next.",
        "It looks right to {a} now.",
        "{x} comes next: I {a}.",
        "I want {x} elsewhere, so I {a}.",
    ),
)

_FIRST: Wordings = (
    "{w}, but first I {a}.",
    "Before that can be I {a}: {w}.",
    "First I {a}, because {w}.",
    "{w}; for that I {a} now.",
)
_NOW: Wordings = (
    "{w}, so I {a}.",
    "{w}, and now it can: I {a}.",
    "It is time: {w}. I {a}.",
    "I {a}, because {w}.",
)
_LATER: Wordings = (
    "{w}, but not yet, so I {a}.",
    "It is too early for that: {w}. I {a}.",
    "Not yet: {w}, but only later. I {a}.",
    "{x} has to wait: I {a}.",
)
_MYSTERY = Thoughts(
    to_block=_NOW,
    to_table=_NOW,
    clear_away=_FIRST,
    clear_between=_FIRST,
    place=_NOW,
    place_on_table=_NOW,
    base=_FIRST,
    wait=_LATER,
    aside=(
        "The goal needs {h} no more, so I {a}.",
        "{h} is not needed now: I {a}.",
        "I end {h}. I {a}.",
        "Enough of {h}: I {a}.",
    ),
    hold_later=_LATER,
    mistakes=_PLAIN.mistakes[:3],
)

THOUGHTS: Mapping[str, Thoughts] = {"plain": _PLAIN, "mystery": _MYSTERY}
