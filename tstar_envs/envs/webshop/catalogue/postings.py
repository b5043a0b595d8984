"""BM25 as Lucene computes it (k1 0.9, b 0.4, lengths kept in one byte), over postings that may lie in mapped files.

Each term has its documents in ascending order and, beside them, what the term adds to their scores, computed once. A
search gives the documents of the greatest sums, ties by document, exactly; it draws nothing and depends on the multiset of
terms alone. It adds up whole terms, those that can add most first, only until no further document can be among the best
(MaxScore: Turtle and Flood 1995); the other terms are then looked up for the documents that still can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

NEARLY = 1 - 1e-4  # sums of so many 4-byte numbers are exact to this share
POSTING_BYTES = 8  # a document and its impact
LOOK_UP_COST = 16  # adding so many documents of a term takes as long as looking one up
MOST_TERMS = 1024  # different terms of a query that count; Lucene refuses longer queries
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Postings:
    """An index: ``starts[t]:starts[t + 1]`` is where term t's documents and their impacts are, ``bounds[t]`` the greatest impact.

    ``order[d]`` decides between documents of equal scores; None: the document number does.
    """

    starts: Array
    documents: Array
    impacts: Array
    bounds: Array
    count: int
    order: Array | None = None

    def search(self, terms: Sequence[int], limit: int) -> tuple[int, ...]:
        """The best ``limit`` documents that hold any of the terms, best first, ties by ``order``.

        Args:
            terms: numbers of the query's terms; a repeated term counts as often.
            limit: how many at most.
        """
        weights: dict[int, int] = {}
        for term in sorted(terms):
            weights[term] = weights.get(term, 0) + 1
        weights = {
            term: weight for term, weight in list(weights.items())[:MOST_TERMS] if self.bounds[term] > 0
        }
        found = self.candidates(weights, limit)
        scores = np.zeros(len(found), np.float64)
        for term, weight in weights.items():  # in one order for all, so that equal documents have equal sums
            scores += self._looked_up(term, weight, found)
        kept = scores.astype(np.float32)
        places = found if self.order is None else self.order[found]
        return tuple(int(document) for document in found[np.lexsort((places, -kept))[:limit]])

    def size_of(self, terms: Iterable[int]) -> int:
        """Bytes of the rows of some terms."""
        return sum(int(self.starts[term + 1] - self.starts[term]) for term in set(terms)) * POSTING_BYTES

    def _row(self, term: int) -> slice:
        return slice(int(self.starts[term]), int(self.starts[term + 1]))

    def _looked_up(self, term: int, weight: int, wanted: Array) -> Array:
        """What a term adds to the given documents (ascending)."""
        row = self._row(term)
        documents = self.documents[row]
        places = np.minimum(np.searchsorted(documents, wanted), len(documents) - 1)
        return np.where(
            documents[places] == wanted, self.impacts[row][places] * np.float32(weight), np.float32(0)
        )

    def _add(self, term: int, weight: int, sums: Array) -> Array:
        """Add a whole term to the sums of all documents; the new sums of its own documents."""
        row = self._row(term)
        documents = self.documents[row].astype(np.intp)  # once, instead of within each of the two accesses
        # No document stands twice in a term's row, so that plain indexing adds up rightly.
        here: Array = sums.take(documents)
        here += self.impacts[row] if weight == 1 else self.impacts[row] * np.float32(weight)
        sums[documents] = here
        return here

    def candidates(self, weights: Mapping[int, int], limit: int) -> Array:
        """Documents, ascending, among which are the best ``limit``; sums are rounded here, so all are kept that come near.

        Args:
            weights: how often each term of the query counts, for terms that some document has.
            limit: how many are wanted.
        """
        most = {term: float(self.bounds[term]) * weight for term, weight in weights.items()}
        order = sorted(most, key=lambda term: (-most[term], term))
        left = sum(most.values())
        sums = np.zeros(self.count, np.float32)
        reached = 0.0  # what at least ``limit`` documents have already
        done = 0
        for term in order:
            if left < reached * NEARLY:
                break
            reached = _raised(reached, self._add(term, weights[term], sums), limit)
            left -= most[term]
            done += 1
        # The rows' type: no row is copied.
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
    """The limit-th greatest of the sums, if that is more than ``reached``."""
    more = sums[sums > reached]
    return float(np.partition(more, -limit)[-limit]) if len(more) >= limit else reached
