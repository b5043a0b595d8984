"""Recall of an approximate index, and metrics of the service."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever.corpus import Document
from retriever.encoders import Encoder, encoded
from retriever.index import MOST_RESCORED, DenseIndex
from retriever.resume import to_disk

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STATM = Path("/proc/self/statm")


def _resident_bytes() -> int:
    """Read the resident memory of this process; 0 on systems other than Linux."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if _STATM.exists() else 0


class Metrics:
    """Counters of a running service; used only from the event loop's thread."""

    def __init__(self) -> None:
        """Start all counters at zero."""
        self.requests: Counter[int] = Counter()
        self.queries = 0
        self.cached = 0
        self.expired = 0
        self.searches = 0
        self.searched = 0
        self.search_seconds = 0.0

    def render(self, pending: int, ready: bool, ntotal: int) -> str:
        """Render counters and gauges in the Prometheus text format."""
        requests = [
            f'retriever_requests_total{{status="{status}"}} {count}'
            for status, count in sorted(self.requests.items())
        ]
        families = [
            ("retriever_requests_total", "counter", "Requests to /retrieve by HTTP status.", requests),
            _single("retriever_queries_total", "counter", "Queries answered.", self.queries),
            _single("retriever_cached_queries_total", "counter", "Queries from the cache.", self.cached),
            (
                "retriever_search_seconds",
                "summary",
                "Time in the search thread, one observation a batch.",
                [
                    f"retriever_search_seconds_sum {self.search_seconds:.6f}",
                    f"retriever_search_seconds_count {self.searches}",
                ],
            ),
            _single(
                "retriever_searched_queries_total",
                "counter",
                "Queries searched for, in batches.",
                self.searched,
            ),
            _single(
                "retriever_expired_requests_total", "counter", "Requests past their deadline.", self.expired
            ),
            _single("retriever_pending_requests", "gauge", "Requests searching or waiting.", pending),
            _single("retriever_ready", "gauge", "1 once the index is loaded.", int(ready)),
            _single("retriever_documents", "gauge", "Documents in the index.", ntotal),
            _single(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory, pages of mapped files included.",
                _resident_bytes(),
            ),
        ]
        lines: list[str] = []
        for name, kind, description, samples in families:
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}", *samples]
        return "\n".join(lines) + "\n"


def _single(name: str, kind: str, description: str, value: int) -> tuple[str, str, str, list[str]]:
    return name, kind, description, [f"{name} {value}"]


DEPTHS = (1, 3, 10)
_QUERIES = 200
_WORDS = 8


def cut_queries(documents: Sequence[Document], count: int = _QUERIES, between: bool = False) -> list[str]:
    """Cut test queries from a corpus: eight words from the middle of evenly spaced passages, or of those halfway between them."""
    count = min(count, len(documents))
    queries = []
    for number in range(count):
        words = documents[(2 * number + between) * len(documents) // (2 * count)].text.split()
        start = max(0, (len(words) - _WORDS) // 2)
        queries.append(" ".join(words[start : start + _WORDS]))
    return queries


class RecallProbe:
    """Recall probe: exact best passages of some queries, updated while vectors are encoded.

    Args:
        vectors: Encoded queries, shape (queries, dim).
        reported: Number of the first queries, whose recall is reported; an effort is chosen on the others. None: all.
    """

    def __init__(self, vectors: NDArray[np.float32], reported: int | None = None) -> None:
        self._vectors = vectors
        reported = len(vectors) if reported is None else reported
        self._reported, self._others = slice(0, reported), slice(reported, len(vectors))
        shape = (len(vectors), max(DEPTHS))
        self._scores = np.full(shape, -np.inf, np.float32)
        self._positions = np.full(shape, -1, np.int64)

    @classmethod
    def cut_from(cls, documents: Sequence[Document], encoder: Encoder, choosing: bool = False) -> RecallProbe:
        """Create a probe from `cut_queries`, without queries that have no known word.

        Args:
            documents: The corpus.
            encoder: Its encoder.
            choosing: True to add queries of other passages, for `choose_effort`.
        """
        parts = [
            encoded(encoder, cut_queries(documents, between=between), queries=True)
            for between in ((False, True) if choosing else (False,))
        ]
        parts = [vectors[vectors.any(axis=1)] for vectors in parts]
        return cls(np.concatenate(parts), len(parts[0]))

    def see(self, vectors: NDArray[np.float32], start: int) -> None:
        """Update with the vectors of passages from position ``start`` on, shape (n, dim)."""
        near = self._vectors @ vectors.T
        # Most passages are no candidate of any query; sorting only the others takes a tenth of the time.
        some = np.flatnonzero((near > self._scores[:, -1:]).any(axis=0))
        scores = np.concatenate([self._scores, near[:, some]], axis=1)
        places = np.broadcast_to(start + some, (len(self._vectors), len(some)))
        positions = np.concatenate([self._positions, places], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : max(DEPTHS)]
        self._scores = np.take_along_axis(scores, best, axis=1)
        self._positions = np.take_along_axis(positions, best, axis=1)

    def save(self, path: Path) -> None:
        """Save the current state."""
        temporary = path.with_name("." + path.name)
        with temporary.open("wb") as stream:
            np.savez(stream, scores=self._scores, positions=self._positions)
            to_disk(stream)
        temporary.replace(path)

    def load(self, path: Path, encoded: int) -> None:
        """Load a saved state and drop passages from position ``encoded`` on, which will be seen again."""
        with np.load(path, allow_pickle=False) as archive:
            scores, positions = archive["scores"], archive["positions"]
        again = positions >= encoded
        self._scores, self._positions = (
            np.where(again, -np.inf, scores).astype(np.float32),
            np.where(again, -1, positions),
        )

    def recall(self, index: DenseIndex) -> dict[str, float]:
        """Measure recall@k: the share of the exact best k that is in the index's best k."""
        return self._recall(index, self._reported)

    def _recall(self, index: DenseIndex, some: slice) -> dict[str, float]:
        found = index.search_vectors(self._vectors[some], max(DEPTHS))
        result: dict[str, float] = {}
        for depth in DEPTHS:
            shares = [
                len({place for place, _ in row[:depth]} & set(exact[:depth].tolist()))
                / np.count_nonzero(exact[:depth] >= 0)
                for row, exact in zip(found, self._positions[some], strict=True)
            ]
            result[f"@{depth}"] = round(float(np.mean(shares)), 4) if shares else 1.0
        return result

    def choose_effort(self, index: DenseIndex, target: float) -> str:
        """Set the smallest search effort of an approximate index whose recall@10 reaches a target.

        It is chosen on queries of their own, so that `recall` stays a fair measurement.

        Args:
            index: ``ivf_sq8``, ``ivf_pq`` or ``hnsw``.
            target: Recall@10 to reach, above 0 and at most 1.

        Returns:
            A sentence: the effort, its recall, and CPU time; if the target is not reached, that and the remedy.
        """

        def reaches(effort: int, rescored: int | None) -> bool:
            index.look_further(effort, rescored)
            return self._recall(index, self._others)[_TARGETED] >= target

        most, rescored = index.most_effort, None
        if index.kind == "ivf_pq":
            effort = _smallest(lambda lists: reaches(lists, MOST_RESCORED), most)
            # A quarter more lists takes less time than ten times the rows, which may come from a disk.
            more = min(most, effort + -(-effort // 4))
            rescored = _smallest(lambda rows: reaches(more, rows), MOST_RESCORED)
            effort = _smallest(lambda lists: reaches(lists, rescored), more)
        else:
            effort = _smallest(lambda nodes: reaches(nodes, None), most)
        reached = reaches(effort, rescored)
        share = self._recall(index, self._others)[_TARGETED]
        said = f"effort {effort} of {most}" + (
            "" if rescored is None else f", {rescored} candidates rescored per passage"
        )
        measured = f"recall@10 {self.recall(index)[_TARGETED]:.4f} on other queries, {self._milliseconds(index):.2f} ms of CPU a query"
        if reached:
            return f"recall {target:g}: {said} gives {share:.4f}; {measured}"
        return (
            f"recall {target:g} is not reached: the largest effort ({said}) gives {share:.4f}; {measured}. Accept a lower --recall, or "
            "build with --type sq8, which compares all vectors"
        )

    def _milliseconds(self, index: DenseIndex) -> float:
        """Measure the CPU time of a query, searched alone, in milliseconds."""
        vectors = self._vectors[self._reported][:_TIMED]
        start = time.process_time()
        for row in range(len(vectors)):
            index.search_vectors(vectors[row : row + 1], max(DEPTHS))
        return 1000 * (time.process_time() - start) / max(1, len(vectors))


_TARGETED = f"@{max(DEPTHS)}"
_TIMED = 50


def _smallest(reaches: Callable[[int], bool], most: int) -> int:
    """Find the smallest number from 1 to ``most`` that reaches a target, if larger ones do too; else ``most``."""
    low, high = 0, 1
    while not reaches(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high
