"""Making an index: postings of some documents at a time, then one index of all.

BM25 as Lucene computes it: k1 0.9, b 0.4, lengths kept in one byte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tstar_envs.data.files import whole_file
from tstar_envs.envs.webshop.catalogue.postings import Array, Postings

K1, B = 0.9, 0.4
_EXACT_LENGTHS = 24  # Lucene keeps shorter lengths exactly, longer ones with four significant bits


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
        with whole_file(path) as handle:
            np.savez(
                handle, terms=self.terms, documents=self.documents, counts=self.counts, lengths=self.lengths
            )

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
