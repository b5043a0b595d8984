"""Tokenisation for lexical retrieval: Unicode compatibility form, case folding, punctuation to space."""

import unicodedata

# Separators, punctuation, symbols, control characters and (lone) surrogates.
_SPACE_CATEGORIES = frozenset("ZPSC")
_MOST_KEPT = 1 << 16  # characters of the table, of a million that there are


class _SpaceTable(dict[int, int | str]):
    r"""A `str.translate` table that is filled as characters turn up.

    A regular expression on ``\w`` would be shorter, but it treats combining marks as punctuation and
    so would cut words of Indic scripts into pieces.
    """

    def __missing__(self, codepoint: int) -> int | str:
        category = unicodedata.category(chr(codepoint))
        value: int | str = " " if category[0] in _SPACE_CATEGORIES else codepoint
        if len(self) < _MOST_KEPT:
            self[codepoint] = value
        return value


_SPACES = _SpaceTable()


def normalise(text: str) -> str:
    """Return ``text`` in the form in which two queries are the same query.

    NFKC, case folding, punctuation and symbols to space, white space collapsed. Nothing is stemmed,
    sorted or dropped: word order and stop words matter to dense encoders.

    Args:
        text: Any string, lone surrogates included.

    Returns:
        Words separated by single spaces; ``""`` if there is no word character.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.translate(_SPACES).split())


def tokenise(text: str) -> list[str]:
    """Return the words of `normalise`, in order and with repetitions."""
    return normalise(text).split()
