"""Nouns of a product title, for the title part of the score: spaCy where a model is installed, else a bundled word list.

The name of what found them goes into the store and into every score, since taggers differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
# Words of product titles that are no nouns: closed classes, frequent adjectives, verbs and adverbs.
_NOT_NOUNS = frozenset(
    "a about above after all also an and any are as at be been before below between both but by can could do does down each either "
    "enough every few for from had has have how if in inside into is it its itself less like many may more most much must near neither "
    "no nor not of off on once one only onto or other our out outside over own per same several should since so some such than that the "
    "their them then there these they this those through to too under until up upon us use very via was we were what when where which "
    "while who will with within without would you your two three four five six seven eight nine ten "
    "adjustable anti antique automatic basic best better big black blue breathable bright brown casual cheap classic clean clear cold "
    "comfortable compact complete cool cordless cute dark decorative deep delicious digital double dry dual durable easy elastic electric "
    "electronic elegant essential extra fast fine fit flat flexible foldable free fresh full fun good gray great green grey happy hard "
    "healthy heavy high hot ideal indoor large last lasting late left light little long loose low lightweight main medium mini modern "
    "multi natural neutral new nice non old organic outdoor perfect personal plain plus portable powerful premium pretty pure quick quiet "
    "rechargeable red removable reusable rich right rigid round rustic safe sexy sheer short silent simple single slim small smart smooth "
    "soft solid special stackable stainless standard steady strong stylish super sweet tall thick thin tight tiny top traditional true "
    "ultra unique universal upright vintage warm washable waterproof wet white wide wild wireless yellow young "
    "folded padded quilted ribbed tufted weighted "
    "assembled blend bring carry clip fold give hang hold keep made make mount pop pull push put set slip stack "
    "stand stay take wash wear".split()
)
_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "less", "ous", "ive", "ly")


class Tagger(NamedTuple):
    """Finds the nouns of a title, lower-cased, in order, with duplicates."""

    name: str
    nouns: Callable[[str], list[str]]


def lexicon_nouns(title: str) -> list[str]:
    """Nouns by exclusion: what is no number, no listed word and has no ending of adjectives or adverbs."""
    words = _WORD.findall(title.lower())
    return [
        w
        for w in words
        if len(w) > 1 and w not in _NOT_NOUNS and not (len(w) > 5 and w.endswith(_ADJECTIVE_ENDINGS))
    ]


LEXICON = Tagger("lexicon-1", lexicon_nouns)
MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")


def best_tagger() -> Tagger:
    """SpaCy's largest installed English model, else the bundled lexicon.

    The model is loaded when the first title is read: a store whose nouns were found before needs its name only.
    """
    if not find_spec("spacy"):
        return LEXICON
    from importlib.metadata import PackageNotFoundError, version  # a third of what making a shop loads

    for model in MODELS:
        try:
            return Tagger(f"spacy-{model}-{version(model)}", partial(_spacy_nouns, model))
        except PackageNotFoundError:
            continue
    return LEXICON


@lru_cache(maxsize=1)
def spacy_pipeline(model: str) -> Callable[[str], Any]:
    """An installed model of spaCy, with no more than its tagger needs."""
    import spacy

    pipeline: Callable[[str], Any] = spacy.load(model, disable=["parser", "ner", "lemmatizer"])
    return pipeline


def _spacy_nouns(model: str, title: str) -> list[str]:
    return [token.text.lower() for token in spacy_pipeline(model)(title) if token.pos_ in ("NOUN", "PROPN")]
