"""How a game words its answers: sentences with gaps for names. They come from files, so nothing in them is a format string."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Phrase(NamedTuple):
    """A sentence with gaps.

    Attributes:
        texts: what stands between the gaps, one more than there are gaps.
        gaps: what each gap names: ``o`` object, ``r`` receptacle, ``l`` location, ``k`` knife.
        contents: whether what is in or on the receptacle follows.
    """

    texts: tuple[str, ...]
    gaps: tuple[str, ...] = ()
    contents: bool = False

    def fill(self, names: Mapping[str, str]) -> str:
        """The sentence with names in its gaps."""
        pieces = [self.texts[0]]
        for gap, text in zip(self.gaps, self.texts[1:], strict=True):
            pieces += (names[gap], text)
        return "".join(pieces)


def _phrase(text: str, *, contents: bool = False) -> Phrase:
    pieces = text.split("|")
    return Phrase(tuple(pieces[::2]), tuple(pieces[1::2]), contents)


MOVE = _phrase("move |o| to |r|")
ANSWERS: Mapping[str, Phrase] = {
    "go": _phrase("You arrive at |r|.", contents=True),
    "open": _phrase("You open the |r|.", contents=True),
    "close": _phrase("You close the |r|."),
    "take": _phrase("You pick up the |o| from the |r|."),
    "move": _phrase("You move the |o| to the |r|."),
    "clean": _phrase("You clean the |o| using the |r|."),
    "heat": _phrase("You heat the |o| using the |r|."),
    "cool": _phrase("You cool the |o| using the |r|."),
    "slice": _phrase("You sliced the |o| with the |k|."),
}


@dataclass(frozen=True)
class Wording:
    """What a game says in its own way.

    Attributes:
        move: the command that puts an object down.
        answers: verb -> the answer to it.
        help: the answer to ``help``; "" if the game does not know that command.
    """

    move: Phrase = MOVE
    answers: Mapping[str, Phrase] = field(default_factory=lambda: ANSWERS)
    help: str = ""

    def before_0_4(self) -> Wording:
        """The wording with ``put`` for putting down, as ALFWorld's games had it before release 0.4 and agents of that time learnt it."""
        return replace(
            self,
            move=_phrase("put |o| in/on |r|"),
            answers={**self.answers, "move": _phrase("You put the |o| in/on the |r|.")},
        )
