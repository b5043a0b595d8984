"""Searching an index: what every back end answers, and the FAISS flat index over encoded documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever.corpus import Document, check_documents, corpus_sha256
from retriever.encoders import Encoder, HashedTfidfEncoder
from retriever.errors import BadIndex, import_optional

# Scores are compared and reported to this many decimals: float32 sums differ in the seventh.
SCORE_DECIMALS = 6
# The most documents per query that the service gives.
MAX_TOPK = 100
_TIE = 1e-5
# Candidates fetched beyond topk, so that near ties at the cut are decided by exact scores.
_SPARE = 16


@dataclass(frozen=True, slots=True)
class Hit:
    """One document found, with its score (higher is better), rounded to `SCORE_DECIMALS`."""

    document: Document
    score: float


class Searcher(Protocol):
    """What the service asks of an index. ``search`` is called from one thread at a time."""

    @property
    def ntotal(self) -> int:
        """Number of documents."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Return one list per query, best first; equal scores stand in document order.

        ``topk`` is clamped to [1, ntotal]. A query without any known word has no hits.
        """

    def info(self) -> dict[str, str | int | float]:
        """Return what identifies the index and its scoring, for ``/info`` and the manifest."""


class HashedIndex:
    """Exact inner-product search (FAISS IndexFlatIP) over hashed TF-IDF vectors.

    Scores are cosines. FAISS proposes candidates and their scores are computed again in float64, so
    that neither the batch a query travels in nor the BLAS at hand can change an answer.
    """

    def __init__(self, documents: Sequence[Document], encoder: Encoder, flat: Any, threads: int = 1) -> None:
        """Join parts that belong together; use `build` or `load`."""
        self._faiss = import_optional("faiss")
        self.documents = documents
        self.encoder = encoder
        self._flat = flat
        self._threads = threads
        # A view of FAISS's own memory, no copy; `_flat` lives as long as this object does.
        size = flat.ntotal * flat.d
        self._vectors = self._faiss.rev_swig_ptr(flat.get_xb(), size).reshape(flat.ntotal, flat.d)

    @classmethod
    def build(
        cls, documents: Sequence[Document], dim: int = 512, seed: int = 0, threads: int = 1
    ) -> "HashedIndex":
        """Encode and index documents.

        Args:
            documents: At least one, with unique ids.
            dim: Length of the vectors, a positive multiple of 8.
            seed: Seed of the random projection.
            threads: OpenMP threads of a search.

        Raises:
            BadCorpus: No document, or an id twice.
            BadSetting: ``dim`` or ``seed`` is out of range.
            MissingDependency: faiss is not installed.
        """
        check_documents(documents)
        faiss = import_optional("faiss")
        contents = [document.contents for document in documents]
        encoder = HashedTfidfEncoder(dim=dim, seed=seed).fit(contents)
        flat = faiss.IndexFlatIP(dim)
        flat.add(encoder.encode_documents(contents))
        return cls(list(documents), encoder, flat, threads)

    @property
    def ntotal(self) -> int:
        """Number of documents."""
        return len(self.documents)

    def info(self) -> dict[str, str | int | float]:
        """Return the kind of index, the encoder's settings and the corpus' digest."""
        return {"index": "flat_ip", **self.encoder.info(), "corpus_sha256": self._corpus_sha256}

    @cached_property
    def _corpus_sha256(self) -> str:
        return corpus_sha256(self.documents)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `Searcher.search`."""
        topk = max(1, min(topk, self.ntotal))
        vectors = self.encoder.encode_queries(queries)
        known = np.flatnonzero(vectors.any(axis=1))
        hits: list[list[Hit]] = [[] for _ in queries]
        if known.size:
            candidates = self._candidates(vectors[known], topk + _SPARE)
            for row, positions in zip(known, candidates, strict=True):
                hits[row] = self._rank(vectors[row], positions, topk)
        return hits

    def _candidates(self, vectors: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        faiss = self._faiss
        # faiss 1.15 compares this with queries x dim and its default (128000) keeps batches of up to
        # 160 queries on the one-by-one scan; from 3 queries on, BLAS is faster (13x at 64).
        # Older versions compare the number of queries and have a sensible default.
        if tuple(int(part) for part in faiss.__version__.split(".")[:2]) >= (1, 15):
            faiss.cvar.distance_compute_blas_threshold = 3 * self.encoder.dim
        # OpenMP settings belong to the calling thread, so they are set here and given back.
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(self._threads)
        try:
            _, positions = self._flat.search(np.ascontiguousarray(vectors), min(count, self.ntotal))
        finally:
            faiss.omp_set_num_threads(before)
        found: NDArray[np.int64] = positions
        return found

    def _rank(self, vector: NDArray[np.float32], positions: NDArray[np.int64], topk: int) -> list[Hit]:
        query = vector.astype(np.float64)
        while True:
            # FAISS fills up with -1; as a Python index that would be the last document.
            positions = np.sort(positions[positions >= 0])
            exact = self._vectors[positions].astype(np.float64) @ query
            scores = np.round(exact, SCORE_DECIMALS) + 0.0
            order = np.lexsort((positions, -scores))[:topk]
            decided = exact.min() < scores[order[-1]] - _TIE
            if decided or len(positions) == self.ntotal:
                return [Hit(self.documents[positions[i]], float(scores[i])) for i in order]
            # Ties reach beyond the candidates: ask for more until the cut is unambiguous.
            positions = self._candidates(vector[None], 4 * len(positions))[0]

    def save(self, folder: Path) -> None:
        """Write the vectors and the encoder into an existing folder (documents are not written)."""
        self._faiss.write_index(self._flat, str(folder / "vectors.faiss"))
        self.encoder.save(folder / "encoder.npz")

    @classmethod
    def load(cls, folder: Path, documents: Sequence[Document], threads: int = 1) -> "HashedIndex":
        """Read what `save` wrote.

        Raises:
            BadIndex: The vectors are not those of these documents and this encoder.
            MissingDependency: faiss is not installed.
        """
        faiss = import_optional("faiss")
        encoder = HashedTfidfEncoder.load(folder / "encoder.npz")
        flat = faiss.read_index(str(folder / "vectors.faiss"))
        shape = (flat.ntotal, flat.d)
        if not isinstance(flat, faiss.IndexFlatIP) or shape != (len(documents), encoder.dim):
            raise BadIndex(
                f"{folder / 'vectors.faiss'}: found {type(flat).__name__} of shape {shape}, expected "
                f"IndexFlatIP of shape {(len(documents), encoder.dim)}; build the index again."
            )
        return cls(list(documents), encoder, flat, threads)
