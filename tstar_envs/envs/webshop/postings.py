"""BM25 as Lucene computes it (k1 0.9, b 0.4, lengths kept in one byte), over postings that may lie in mapped files.

Each term has its documents in ascending order and, beside them, what the term adds to their scores, computed once. A
search adds these up and takes the best, ties by document; it draws nothing and depends on the multiset of terms alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

K1, B = 0.9, 0.4
_EXACT_LENGTHS = 24  # Lucene keeps shorter lengths exactly, longer ones with four significant bits
MOST_TERMS = 1024  # different terms of a query that count; Lucene refuses longer queries

Array = npt.NDArray[Any]


def lossy_length(length: int) -> int:
    """A document length after Lucene's SmallFloat byte and back."""
    if length < _EXACT_LENGTHS:
        return length
    rest = length - _EXACT_LENGTHS
    shift = max(0, rest.bit_length() - 4)
    return _EXACT_LENGTHS + (rest >> shift << shift)


@dataclass(frozen=True)
class Batch:
    """Postings of consecutive documents: (term, document, count) sorted by term, then document, and the documents' lengths."""

    terms: Array
    documents: Array
    counts: Array
    lengths: Array

    def save(self, path: Path) -> None:
        """Write the batch; under its name only when it is whole, so that an interrupted build can go on."""
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, terms=self.terms, documents=self.documents, counts=self.counts, lengths=self.lengths)
        partial.replace(path)

    @staticmethod
    def load(path: Path) -> Batch:
        """Read what ``save`` wrote."""
        with np.load(path) as kept:
            return Batch(kept["terms"], kept["documents"], kept["counts"], kept["lengths"])


def make_batch(documents: Iterable[Iterable[int]], first: int) -> Batch:
    """The batch of documents given as numbers of their terms; they are numbered from ``first``."""
    terms, lengths = array("I"), array("I")
    for document in documents:
        before = len(terms)
        terms.extend(document)
        lengths.append(len(terms) - before)
    sizes = np.frombuffer(lengths, dtype=np.uint32) if lengths else np.zeros(0, np.uint32)
    owners = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    keys = (np.frombuffer(terms, dtype=np.uint32) if terms else np.zeros(0, np.uint32)).astype(np.uint64) << np.uint64(32) | owners
    unique, counts = np.unique(keys, return_counts=True)
    return Batch(
        (unique >> np.uint64(32)).astype(np.uint32), (unique & np.uint64(0xFFFFFFFF)).astype(np.uint32) + np.uint32(first),
        counts.astype(np.uint32), sizes,
    )  # fmt: skip


def merge(batches: Sequence[Batch | Path], terms: int, folder: Path | None = None) -> Postings:
    """One index of all batches, in memory or as files in ``folder``; batches given as paths are read one at a time."""

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
    table = np.array([lossy_length(int(size)) for size in range(int(sizes.max()) + 1 if count else 1)], np.float64)
    norms = K1 * (1 - B + B * table[sizes] / mean)
    inverse = np.log(1 + (count - frequency + 0.5) / (frequency + 0.5))

    def column(name: str, kind: type[Any]) -> Array:
        if folder is None or not starts[-1]:
            return np.zeros(int(starts[-1]), kind)
        return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=(int(starts[-1]),))

    documents, impacts = column("documents", np.uint32), column("impacts", np.float32)
    cursor = starts[:-1].copy()
    for batch in map(opened, batches):
        own = np.bincount(batch.terms, minlength=terms)
        places = np.repeat(cursor - np.concatenate([[0], np.cumsum(own)[:-1]]), own) + np.arange(len(batch.terms))
        documents[places] = batch.documents
        impacts[places] = inverse[batch.terms] * batch.counts / (batch.counts + norms[batch.documents])
        cursor += own
    return Postings(starts, documents, impacts, count)


@dataclass(frozen=True)
class Postings:
    """An index: ``starts[t]:starts[t + 1]`` is where term t's documents and their impacts are."""

    starts: Array
    documents: Array
    impacts: Array
    count: int

    def search(self, terms: Sequence[int], limit: int) -> tuple[int, ...]:
        """The best ``limit`` documents that hold any of the terms, best first, ties by document number.

        Args:
            terms: numbers of the query's terms; a repeated term counts as often.
            limit: how many at most.
        """
        wanted: dict[int, int] = {}
        for term in sorted(terms):
            wanted[term] = wanted.get(term, 0) + 1
        scores = np.zeros(self.count, np.float64)
        for term, weight in list(wanted.items())[:MOST_TERMS]:
            where = slice(int(self.starts[term]), int(self.starts[term + 1]))
            # No document stands twice in a term's row, so that plain indexing adds up rightly.
            scores[self.documents[where]] += self.impacts[where] if weight == 1 else self.impacts[where] * np.float32(weight)
        found = np.flatnonzero(scores)
        kept = scores[found].astype(np.float32)
        if len(found) > limit:
            chosen = kept >= np.partition(kept, -limit)[-limit]
            found, kept = found[chosen], kept[chosen]
        return tuple(int(document) for document in found[np.lexsort((found, -kept))[:limit]])
