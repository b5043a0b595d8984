"""Search engine equivalent to Lucene's: English analysis, Porter stemmer, BM25."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tstar_envs.data.files import whole_file

_VOWELS = "aeiou"
_STEP_2 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
)
_STEP_3 = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_STEP_4 = (
    "al",
    "ance",
    "ence",
    "er",
    "ic",
    "able",
    "ible",
    "ant",
    "ement",
    "ment",
    "ent",
    "ion",
    "ou",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
)


def _is_consonant(word: str, i: int) -> bool:
    if word[i] in _VOWELS:
        return False
    if word[i] != "y":
        return True
    # In a run of y's every second one is a consonant; counted, to avoid deep recursion.
    first = i
    while first > 0 and word[first - 1] == "y":
        first -= 1
    starts_as_consonant = first == 0 or word[first - 1] in _VOWELS
    return starts_as_consonant == ((i - first) % 2 == 0)


def _measure(word: str) -> int:
    """Count the vowel-consonant sequences of a stem."""
    kinds = [_is_consonant(word, i) for i in range(len(word))]
    return sum(not before and after for before, after in pairwise(kinds))


def _has_vowel(word: str) -> bool:
    return any(not _is_consonant(word, i) for i in range(len(word)))


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _short_end(word: str) -> bool:
    i = len(word) - 1
    if i == 0:
        return False
    return (
        i >= 2
        and _is_consonant(word, i)
        and not _is_consonant(word, i - 1)
        and _is_consonant(word, i - 2)
        and word[i] not in "wxy"
    )


def stem(word: str) -> str:
    """Stem a lower-case word, as Lucene's PorterStemmer does."""
    if len(word) <= 2:
        return word
    return _step_5(_step_4(_step_3(_step_2(_step_1(word)))))


def _step_1(word: str) -> str:
    if word.endswith("s"):
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif not word.endswith("ss"):
            word = word[:-1]
    if word.endswith("eed"):
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    else:
        for suffix in ("ed", "ing"):
            if word.endswith(suffix):
                if _has_vowel(word[: -len(suffix)]):
                    word = _after_cut(word[: -len(suffix)])
                break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _after_cut(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _doubled(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _short_end(word) else word


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for suffix, new in rules:
        if word.endswith(suffix):
            head = word[: -len(suffix)]
            return head + new if _measure(head) > 0 else word
    return word


def _step_2(word: str) -> str:
    return _replace(word, _STEP_2)


def _step_3(word: str) -> str:
    return _replace(word, _STEP_3)


def _step_4(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix) and (suffix != "ion" or word[-4:-3] in ("s", "t")):
            head = word[: -len(suffix)]
            return head if _measure(head) > 1 else word
    return word


def _step_5(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short_end(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that "
    "the their then there these they this to was will with".split()
)
LONGEST_TOKEN = 255  # longer runs are split into tokens of this length, as in Lucene
# Runs of word characters, joined by some marks between letters and others between digits; single ideographs; emoji.
_IDEOGRAPH = "\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_WORD = rf"[^\W{_IDEOGRAPH}]"
_TOKEN = re.compile(
    rf"{_WORD}+(?:(?:(?<=[^\W\d_])[.'\u2019:\u00b7](?=[^\W\d_{_IDEOGRAPH}])|(?<=\d)[.,;'\u2019](?=\d)){_WORD}+)*"
    rf"|[{_IDEOGRAPH}]|[\u231a-\u23ff\u2600-\u27bf\U0001f300-\U0001faff]"
)


def tokenize(text: str) -> list[str]:
    """Tokenize a lower-cased text, before stop words and stemming."""
    tokens = [token for token in _TOKEN.findall(text) if token.strip("_")]
    if any(len(token) > LONGEST_TOKEN for token in tokens):
        tokens = [
            token[i : i + LONGEST_TOKEN] for token in tokens for i in range(0, len(token), LONGEST_TOKEN)
        ]
    return tokens


@lru_cache(maxsize=200_000)
def term_of(token: str) -> str:
    """Convert a token to its index term, "" for a stop word."""
    if token.endswith(("'s", "\u2019s")):
        token = token[:-2]
    return "" if token in STOP_WORDS else stem(token)


def analyze(text: str) -> list[str]:
    """Convert a text to index terms, in order."""
    return [term for term in map(term_of, tokenize(text.lower())) if term]


NEARLY = 1 - 1e-4  # relative accuracy of float32 sums over a query's terms
POSTING_BYTES = 8  # a document number and its impact
LOOK_UP_COST = 16  # cost of one look-up, in additions of a document
MOST_TERMS = 1024  # maximum distinct terms of a query; Lucene refuses longer queries
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Postings:
    """Inverted index: term t has documents and impacts at ``starts[t]:starts[t + 1]`` and maximum impact ``bounds[t]``.

    Ties are broken by ``order[d]``, or by document number if it is None.
    """

    starts: Array
    documents: Array
    impacts: Array
    bounds: Array
    count: int
    order: Array | None = None

    def search(self, terms: Sequence[int], limit: int) -> tuple[int, ...]:
        """Search for the best ``limit`` documents with any of the terms, best first, ties by ``order``.

        Args:
            terms: numbers of the query's terms; a repeated term counts repeatedly.
            limit: maximum number of documents.
        """
        weights: dict[int, int] = {}
        for term in sorted(terms):
            weights[term] = weights.get(term, 0) + 1
        weights = {
            term: weight for term, weight in list(weights.items())[:MOST_TERMS] if self.bounds[term] > 0
        }
        found = self.candidates(weights, limit)
        scores = np.zeros(len(found), np.float64)
        for (
            term,
            weight,
        ) in weights.items():  # the same order for all, so that equal documents have equal sums
            scores += self._looked_up(term, weight, found)
        kept = scores.astype(np.float32)
        places = found if self.order is None else self.order[found]
        return tuple(int(document) for document in found[np.lexsort((places, -kept))[:limit]])

    def size_of(self, terms: Iterable[int]) -> int:
        """Compute the size in bytes of the rows of some terms."""
        return sum(int(self.starts[term + 1] - self.starts[term]) for term in set(terms)) * POSTING_BYTES

    def _row(self, term: int) -> slice:
        return slice(int(self.starts[term]), int(self.starts[term + 1]))

    def _looked_up(self, term: int, weight: int, wanted: Array) -> Array:
        """Compute a term's contribution to the given documents (ascending)."""
        row = self._row(term)
        documents = self.documents[row]
        places = np.minimum(np.searchsorted(documents, wanted), len(documents) - 1)
        return np.where(
            documents[places] == wanted, self.impacts[row][places] * np.float32(weight), np.float32(0)
        )

    def _add(self, term: int, weight: int, sums: Array) -> Array:
        """Add a term to the sums of all documents.

        Returns the new sums of its documents.
        """
        row = self._row(term)
        documents = self.documents[row].astype(np.intp)  # converted once for both accesses
        # A term's row has no document twice, so fancy indexing adds correctly.
        here: Array = sums.take(documents)
        here += self.impacts[row] if weight == 1 else self.impacts[row] * np.float32(weight)
        sums[documents] = here
        return here

    def candidates(self, weights: Mapping[int, int], limit: int) -> Array:
        """Find documents, ascending, that include the best ``limit``.

        Sums are rounded here, so near ties are kept.

        Args:
            weights: count of each query term, for terms in the index.
            limit: number of best documents.
        """
        most = {term: float(self.bounds[term]) * weight for term, weight in weights.items()}
        order = sorted(most, key=lambda term: (-most[term], term))
        left = sum(most.values())
        sums = np.zeros(self.count, np.float32)
        reached = 0.0  # score that at least ``limit`` documents have reached
        done = 0
        for term in order:
            if left < reached * NEARLY:
                break
            reached = _raised(reached, self._add(term, weights[term], sums), limit)
            left -= most[term]
            done += 1
        # The dtype of the rows, so that no row is copied.
        found = np.flatnonzero(sums > max(0.0, reached * NEARLY - left)).astype(np.uint32)
        kept = sums[found]
        for term in order[done:]:
            if self.starts[term + 1] - self.starts[term] < LOOK_UP_COST * len(found):
                self._add(term, weights[term], sums)
                kept = sums.take(found)
            else:
                kept += self._looked_up(term, weights[term], found)
                sums[found] = kept
            left -= most[term]
            reached = _raised(reached, kept, limit)
            chosen = kept > reached * NEARLY - left
            found, kept = found[chosen], kept[chosen]
        return found


def _raised(reached: float, sums: Array, limit: int) -> float:
    """Raise ``reached`` to the limit-th greatest sum if that is larger."""
    more = sums[sums > reached]
    return float(np.partition(more, -limit)[-limit]) if len(more) >= limit else reached


K1, B = 0.9, 0.4
_EXACT_LENGTHS = 24  # Lucene stores shorter lengths exactly, longer ones with four significant bits


def lossy_length(length: int) -> int:
    """Round a document length through Lucene's one-byte SmallFloat."""
    if length < _EXACT_LENGTHS:
        return length
    rest = length - _EXACT_LENGTHS
    shift = max(0, rest.bit_length() - 4)
    return _EXACT_LENGTHS + (rest >> shift << shift)


@dataclass(frozen=True)
class Batch:
    """Postings of consecutive documents: (term, document, count) sorted by term and document, and document lengths."""

    terms: Array
    documents: Array
    counts: Array
    lengths: Array

    def save(self, path: Path) -> None:
        """Save the batch atomically, so that an interrupted build can resume."""
        with whole_file(path) as handle:
            np.savez(
                handle, terms=self.terms, documents=self.documents, counts=self.counts, lengths=self.lengths
            )

    @staticmethod
    def load(path: Path) -> Batch:
        """Load a saved batch."""
        with np.load(path) as kept:
            return Batch(kept["terms"], kept["documents"], kept["counts"], kept["lengths"])


def make_batch(documents: Iterable[Iterable[int]], first: int) -> Batch:
    """Create a batch from documents given as term numbers; documents are numbered from ``first``."""
    terms, lengths = array("I"), array("I")
    for document in documents:
        before = len(terms)
        terms.extend(document)
        lengths.append(len(terms) - before)
    sizes = np.frombuffer(lengths, dtype=np.uint32) if lengths else np.zeros(0, np.uint32)
    owners = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    keys = (np.frombuffer(terms, dtype=np.uint32) if terms else np.zeros(0, np.uint32)).astype(
        np.uint64
    ) << np.uint64(32) | owners
    unique, counts = np.unique(keys, return_counts=True)
    return Batch(
        (unique >> np.uint64(32)).astype(np.uint32),
        (unique & np.uint64(0xFFFFFFFF)).astype(np.uint32) + np.uint32(first),
        counts.astype(np.uint32),
        sizes,
    )


def merge(batches: Sequence[Batch | Path], terms: int, folder: Path | None = None) -> Postings:
    """Merge batches into one index, in memory or in files of ``folder``.

    Batches given as paths are loaded one at a time.
    """

    def opened(batch: Batch | Path) -> Batch:
        return Batch.load(batch) if isinstance(batch, Path) else batch

    frequency, lengths = np.zeros(terms, np.int64), [np.zeros(0, np.uint32)]
    for batch in map(opened, batches):
        frequency += np.bincount(batch.terms, minlength=terms)
        lengths.append(batch.lengths)
    starts = np.concatenate([[0], np.cumsum(frequency)]).astype(np.int64)
    sizes = np.concatenate(lengths)
    count = len(sizes)
    mean = float(sizes.sum(dtype=np.int64)) / count if count and sizes.any() else 1.0
    table = np.array(
        [lossy_length(int(size)) for size in range(int(sizes.max()) + 1 if count else 1)], np.float64
    )
    norms = K1 * (1 - B + B * table[sizes] / mean)
    inverse = np.log(1 + (count - frequency + 0.5) / (frequency + 0.5))

    def column(name: str, kind: type[Any]) -> Array:
        if folder is None:
            return np.zeros(int(starts[-1]), kind)
        if not starts[-1]:  # an empty file cannot be mapped
            np.save(folder / f"{name}.npy", np.zeros(0, kind))
            return np.zeros(0, kind)
        return np.lib.format.open_memmap(
            folder / f"{name}.npy", mode="w+", dtype=kind, shape=(int(starts[-1]),)
        )

    documents, impacts, bounds = (
        column("documents", np.uint32),
        column("impacts", np.float32),
        np.zeros(terms, np.float32),
    )
    cursor = starts[:-1].copy()
    for batch in map(opened, batches):
        own = np.bincount(batch.terms, minlength=terms)
        places = np.repeat(cursor - np.concatenate([[0], np.cumsum(own)[:-1]]), own) + np.arange(
            len(batch.terms)
        )
        documents[places] = batch.documents
        added = (inverse[batch.terms] * batch.counts / (batch.counts + norms[batch.documents])).astype(
            np.float32
        )
        impacts[places] = added
        if len(added):
            present = np.flatnonzero(own)
            first = np.concatenate([[0], np.cumsum(own[present])[:-1]])
            bounds[present] = np.maximum(bounds[present], np.maximum.reduceat(added, first))
        cursor += own
    if folder is not None:
        np.save(folder / "starts.npy", starts)
        np.save(folder / "bounds.npy", bounds)
    return Postings(starts, documents, impacts, bounds, count)
