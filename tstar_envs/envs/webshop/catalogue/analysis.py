"""Lucene's English analysis: what a text and a query are broken into before they are compared.

StandardTokenizer (Unicode word boundaries), lower case, possessive ``'s`` off, 33 stop words, and the stems of ``stemmer``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tstar_envs.envs.webshop.catalogue.stemmer import stem

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that "
    "the their then there these they this to was will with".split()
)
LONGEST_TOKEN = 255  # a longer run is cut into tokens of this length, as Lucene does
# Runs of word characters, joined by some marks between letters and others between digits; single ideographs; emoji.
_IDEOGRAPH = "\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_WORD = rf"[^\W{_IDEOGRAPH}]"
_TOKEN = re.compile(
    rf"{_WORD}+(?:(?:(?<=[^\W\d_])[.'\u2019:\u00b7](?=[^\W\d_{_IDEOGRAPH}])|(?<=\d)[.,;'\u2019](?=\d)){_WORD}+)*"
    rf"|[{_IDEOGRAPH}]|[\u231a-\u23ff\u2600-\u27bf\U0001f300-\U0001faff]"
)


def tokenize(text: str) -> list[str]:
    """The tokens of a lower-cased text before stop words and stemming."""
    tokens = [token for token in _TOKEN.findall(text) if token.strip("_")]
    if any(len(token) > LONGEST_TOKEN for token in tokens):
        tokens = [
            token[i : i + LONGEST_TOKEN] for token in tokens for i in range(0, len(token), LONGEST_TOKEN)
        ]
    return tokens


@lru_cache(maxsize=200_000)
def term_of(token: str) -> str:
    """The index term of a token, "" for a stop word."""
    if token.endswith(("'s", "\u2019s")):
        token = token[:-2]
    return "" if token in STOP_WORDS else stem(token)


def analyze(text: str) -> list[str]:
    """The index terms of a text, in order."""
    return [term for term in map(term_of, tokenize(text.lower())) if term]
