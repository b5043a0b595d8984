"""Dense, sharded and remote indexes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from retriever.corpus import Document, check_documents, corpus_sha256
from retriever.encoders import Encoder, HashedTfidfEncoder, encoded
from retriever.errors import BadIndex, BadSetting, Unavailable, import_optional
from retriever.product import RowFile
from retriever.vectors import (
    EXHAUSTIVE,
    NAMES,
    BlockScan,
    check_rows,
    kind_of,
    look_further,
    most_effort,
    open_vectors,
    settings_of,
    trained,
)

VECTORS = "vectors.faiss"
ROWS = "rows.faiss"  # of ivf_pq

# Scores are rounded to this many decimals: float32 sums differ in the seventh.
SCORE_DECIMALS = 6
# Maximum number of documents per query in the service.
MAX_TOPK = 100
_TIE = 1e-5
# Number of queries from which one product with decoded blocks takes less time than FAISS's scans.
_SCANNED_TOGETHER = 8
# Candidates beyond topk, so that exact scores decide near ties at the cut.
_SPARE = 16
# Candidates per wanted document that ivf_pq scores again: as built, and at most.
RESCORED = 10
MOST_RESCORED = 128


@cache
def _blas() -> Any:
    """Return the controller of the threads of NumPy's matrix products."""
    return import_optional("threadpoolctl").ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Hit:
    """Search hit: a document and its score (higher is better), rounded to `SCORE_DECIMALS`."""

    document: Document
    score: float


class Searcher(Protocol):
    """Interface of an index. ``search`` is called from one thread at a time."""

    @property
    def ntotal(self) -> int:
        """Number of documents."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Search for several queries.

        One list of hits per query, best first, equal scores in document order.
        ``topk`` is clamped to [1, ntotal]. A query without a known word has no hits.
        """

    def info(self) -> dict[str, str | int | float]:
        """Return the identity and settings of the index, for ``/info`` and the manifest."""


class DenseIndex:
    """Dense index: inner-product search over the vectors of an encoder, with FAISS.

    FAISS proposes candidates. Their scores are recomputed in float64 from the stored vectors, so the result
    depends neither on the batch nor on the BLAS library. To build one from a corpus file see `retriever.build.build_index`.

    Args:
        documents: Documents in the order of the vectors.
        encoder: Encoder of the documents.
        vectors: A FAISS index of one of the `retriever.vectors.KINDS`.
        threads: OpenMP threads of a search.
        corpus_sha256: Digest of the documents if known; else it is computed on demand.
        rows: Rows of an ``ivf_pq`` index, which score its candidates.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        encoder: Encoder,
        vectors: Any,
        threads: int = 1,
        corpus_sha256: str | None = None,
        rows: RowFile | None = None,
    ) -> None:
        self._faiss = import_optional("faiss")
        self.documents = documents
        self.encoder = encoder
        self.kind = kind_of(vectors)
        self._index = vectors
        self._threads = threads
        self._row_file = rows
        self._rescored = RESCORED
        self._known_sha256 = corpus_sha256
        # Called before every search; raises once damage to the files is known.
        self.check_files: Callable[[], None] = lambda: None
        # Views of FAISS's memory or of the mapped file, kept alive by `_index`.
        self._scan = BlockScan(vectors) if self.kind in EXHAUSTIVE else None

    @property
    def ntotal(self) -> int:
        """Number of documents."""
        return len(self.documents)

    def info(self) -> dict[str, str | int | float]:
        """Return type and settings of the index, the encoder's settings and the corpus digest."""
        settings = settings_of(self._index)
        if self.kind == "ivf_pq":
            settings["rescored"] = self._rescored
        about = {"index": NAMES[self.kind], **settings, **self.encoder.info()}
        return {**about, "corpus_sha256": self._corpus_sha256}

    @cached_property
    def _corpus_sha256(self) -> str:
        return self._known_sha256 or corpus_sha256(self.documents)

    @property
    def most_effort(self) -> int:
        """Largest search effort; 0 for an exhaustive index."""
        return most_effort(self._index)

    def look_further(self, effort: int | None = None, rescored: int | None = None) -> None:
        """Set the search effort of an approximate index.

        Args:
            effort: Lists or graph nodes visited per search; None keeps it.
            rescored: ``ivf_pq``: candidates per wanted document that are scored again with their stored rows; None keeps it.

        Raises:
            BadSetting: The index is exhaustive or has no such setting, or a value is out of range.
        """
        if effort is not None:
            look_further(self._index, effort)
        if rescored is not None:
            if self.kind != "ivf_pq":
                raise BadSetting(
                    f"rescored {rescored} was given, but only ivf_pq scores candidates again, not {self.kind}."
                )
            if not 1 <= rescored <= MOST_RESCORED:
                raise BadSetting(f"rescored {rescored} is out of range; choose from 1 to {MOST_RESCORED}.")
            self._rescored = rescored

    def restore(self, settings: Mapping[str, Any]) -> None:
        """Set the search effort that `info` of the index as built tells.

        Raises:
            ValueError, TypeError: A value is none of this index.
        """
        effort = settings.get("probes", settings.get("breadth"))
        if self.kind in EXHAUSTIVE or effort is None:
            return
        try:
            self.look_further(effort, settings.get("rescored"))
        except BadSetting as error:
            raise ValueError(str(error)) from error

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `Searcher.search`."""
        self.check_files()
        found = self.search_vectors(encoded(self.encoder, queries, queries=True), topk)
        return [[Hit(self.documents[place], score) for place, score in row] for row in found]

    def search_vectors(self, vectors: NDArray[np.float32], topk: int) -> list[list[tuple[int, float]]]:
        """Search for encoded queries, shape (n, dim).

        One list of (position, score) per row, empty for a row of zeros.
        """
        topk = max(1, min(topk, self.ntotal))
        known = np.flatnonzero(vectors.any(axis=1))
        hits: list[list[tuple[int, float]]] = [[] for _ in vectors]
        if known.size == 0:
            return hits
        if self.kind == "ivf_sq8":
            # FAISS must return the vectors too: a position does not tell in which list its code is.
            _, found, rows = self._with_threads(
                lambda index, wanted: index.search_and_reconstruct(wanted, min(topk + _SPARE, self.ntotal)),
                vectors[known],
            )
            for row, positions, decoded in zip(known, found, rows, strict=True):
                some = positions >= 0
                hits[row] = _best(positions[some], decoded[some], vectors[row], topk)
        else:
            wanted = topk * self._rescored if self.kind == "ivf_pq" else topk
            candidates = self.candidates(vectors[known], wanted + _SPARE)
            if self._row_file is not None:
                self._row_file.expect(candidates)
            for row, positions in zip(known, candidates, strict=True):
                hits[row] = self._rank(vectors[row], positions, topk)
        return hits

    def candidates(self, vectors: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Find the ``count`` nearest documents of each vector.

        Positions of shape (n, count), padded with -1.
        """
        if self._scan is not None and len(vectors) >= _SCANNED_TOGETHER:
            with _blas().limit(limits=self._threads, user_api="blas"):
                return self._scan.search(check_rows(vectors), min(count, self.ntotal))
        found: NDArray[np.int64] = self._with_threads(
            lambda index, wanted: index.search(wanted, min(count, self.ntotal)), vectors
        )[1]
        return found

    def _with_threads(
        self, search: Callable[[Any, NDArray[np.float32]], Any], vectors: NDArray[np.float32]
    ) -> Any:
        faiss = self._faiss
        # faiss 1.15 compares this with queries x dim; its default (128000) scans batches of up to
        # 160 queries one by one. From 3 queries on BLAS is faster (13x at 64).
        # Older versions compare the number of queries and have a sensible default.
        if tuple(int(part) for part in faiss.__version__.split(".")[:2]) >= (1, 15):
            faiss.cvar.distance_compute_blas_threshold = 3 * self.encoder.dim
        # OpenMP settings are per thread: set here, restored below.
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(self._threads)
        try:
            return search(self._index, check_rows(vectors))
        finally:
            faiss.omp_set_num_threads(before)

    def _rows(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        if self._row_file is not None:
            return self._row_file.read(positions)
        rows: NDArray[np.float32] = (
            self._scan.codes[positions]
            if self._scan is not None and self.kind == "flat"
            else self._index.reconstruct_batch(positions)
        )
        return rows

    def _rank(
        self, vector: NDArray[np.float32], positions: NDArray[np.int64], topk: int
    ) -> list[tuple[int, float]]:
        while True:
            # FAISS pads with -1, which as a Python index would be the last document.
            positions = np.sort(positions[positions >= 0])
            ranked = _best(positions, self._rows(positions), vector, len(positions))
            decided = (
                self.kind not in EXHAUSTIVE
                or len(positions) == self.ntotal
                or ranked[-1][1] < ranked[topk - 1][1] - _TIE
            )
            if decided:
                return ranked[:topk]
            # Ties extend beyond the candidates: fetch more until the cut is unambiguous.
            positions = self.candidates(vector[None], 4 * len(positions))[0]

    def save(self, folder: Path) -> None:
        """Save vectors and encoder into an existing folder, without the documents."""
        self._faiss.write_index(self._index, str(folder / VECTORS))
        if self._row_file is not None:
            self._faiss.write_index(self._row_file.codec, str(folder / ROWS))
        self.encoder.save(folder)

    @classmethod
    def open(
        cls, folder: Path, documents: Sequence[Document], encoder: Encoder, threads: int, corpus_sha256: str
    ) -> Self:
        """Memory-map a saved index.

        Raises:
            BadIndex: The vectors do not match the documents and the encoder.
            RuntimeError: FAISS cannot read the vectors.
            MissingDependency: faiss is not installed.
        """
        vectors, rows = open_vectors(folder / VECTORS), None
        files = {VECTORS: vectors}
        if kind_of(vectors) == "ivf_pq":
            files[ROWS] = open_vectors(folder / ROWS)
        expected = (len(documents), encoder.dim)
        for name, file in files.items():
            shape = (file.ntotal, file.d)
            if shape != expected or (name == ROWS and kind_of(file) != "sq8"):
                raise BadIndex(
                    f"{folder / name}: found {type(file).__name__} of shape {shape}, expected the shape "
                    f"{expected}; build the index again."
                )
        if ROWS in files:
            rows = RowFile(folder / ROWS, files[ROWS])
        return cls(documents, encoder, vectors, threads, corpus_sha256, rows)


class HashedIndex(DenseIndex):
    """Dense index of hashed TF-IDF vectors; scores are cosines.

    >>> from retriever import HashedIndex, read_corpus
    >>> from retriever.cli import mini_corpus
    >>> index = HashedIndex.build(read_corpus(mini_corpus()))
    >>> hits = index.search(["Who wrote the book?"], topk=3)[0]
    """

    @classmethod
    def build(
        cls, documents: Sequence[Document], dim: int = 512, seed: int = 0, threads: int = 1
    ) -> HashedIndex:
        """Build an exact index (float32, exhaustive) in memory.

        Args:
            documents: At least one, with unique ids.
            dim: Vector length, a positive multiple of 8.
            seed: Seed of the random projection.
            threads: OpenMP threads of a search.

        Raises:
            BadCorpus: No document, or an id twice.
            BadSetting: ``dim`` or ``seed`` is out of range.
            MissingDependency: faiss is not installed.
        """
        check_documents(documents)
        contents = [document.contents for document in documents]
        encoder = HashedTfidfEncoder(dim=dim, seed=seed).fit(contents)
        flat = trained("flat", dim, len(documents), np.empty((0, dim), np.float32))
        flat.add(encoder.encode_documents(contents))
        return cls(list(documents), encoder, flat, threads)


def index_class(encoder: Encoder) -> type[DenseIndex]:
    """Find the class of an index over the vectors of an encoder."""
    return HashedIndex if encoder.kind == "hashed" else DenseIndex


def _best(
    positions: NDArray[np.int64], rows: NDArray[np.float32], query: NDArray[np.float32], topk: int
) -> list[tuple[int, float]]:
    """Rank candidates by exact score, rounded; ties in order of position."""
    # Unlike a matrix product, einsum adds up each row in an order that does not depend on the other rows.
    exact = np.einsum("ij,j->i", rows.astype(np.float64), query.astype(np.float64))
    scores = np.round(exact, SCORE_DECIMALS) + 0.0
    order = np.lexsort((positions, -scores))[:topk]
    return list(zip(positions[order].tolist(), scores[order].tolist(), strict=True))


_TIMEOUT_SECONDS = 60.0
_TRIES = 3
_PAUSE_SECONDS = 0.2
_QUERIES_PER_REQUEST = 256
# Scores of two shards are comparable if their ``info()`` agrees except for these.
_OF_ONE_PART = frozenset(
    ("index", "lists", "probes", "rescored", "links", "breadth", "shards", "corpus_sha256")
)
_OF_A_SERVER = frozenset(("ntotal", "default_topk", "max_queries", "version"))


class ShardedSearcher:
    """Index split into shards. Results are merged by score; ties in order of the shards.

    If the shards are consecutive parts of a corpus in order, the result equals that of one index over the whole corpus.

    >>> from retriever import Document, HashedIndex, ShardedSearcher
    >>> shard = HashedIndex.build([Document("1", "red fox"), Document("2", "blue whale")])
    >>> [hit.document.id for hit in ShardedSearcher([shard]).search(["fox"], topk=1)[0]]
    ['1']

    Args:
        parts: At least one `RemoteShard` or local index. Remote shards are searched concurrently.

    Raises:
        BadIndex: The scores of the shards are not comparable; the message names the differing settings.
    """

    def __init__(self, parts: Sequence[Searcher]) -> None:
        self._parts = list(parts)
        for number, (first, second) in enumerate(pairwise(_comparable(part) for part in parts)):
            if different := sorted(
                name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
            ):
                raise BadIndex(
                    f"shards {number} and {number + 1} cannot be merged: they differ in {', '.join(different)} "
                    f"({[first.get(name) for name in different]} and {[second.get(name) for name in different]}). Build all "
                    "of them from one corpus file with --shard I/N and the same --encoder."
                )
            if first["encoder"] == "none":
                raise BadIndex(
                    "BM25 indexes cannot be merged: each counts words over its own passages only; build one index."
                )
        self._pool = ThreadPoolExecutor(
            max(1, sum(isinstance(part, RemoteShard) for part in parts)), thread_name_prefix="shard"
        )

    @property
    def ntotal(self) -> int:
        """Number of documents in all shards."""
        return sum(part.ntotal for part in self._parts)

    def info(self) -> dict[str, str | int | float]:
        """Return the number of shards, their encoder, and a digest of their corpora in order."""
        abouts = [part.info() for part in self._parts]
        kinds = sorted({str(about["index"]) for about in abouts})
        corpora = "".join(str(about["corpus_sha256"]) for about in abouts)
        merged = {
            "index": "sharded " + " ".join(kinds),
            "shards": len(self._parts),
            **_comparable(self._parts[0]),
        }
        return {**merged, "corpus_sha256": hashlib.sha256(corpora.encode()).hexdigest()}

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `retriever.index.Searcher.search`.

        Raises:
            Unavailable: A remote shard does not answer; partial results are never returned.
        """
        remote = {
            n: self._pool.submit(part.search, queries, topk)
            for n, part in enumerate(self._parts)
            if isinstance(part, RemoteShard)
        }
        answers = [
            remote[n].result() if n in remote else part.search(queries, topk)
            for n, part in enumerate(self._parts)
        ]
        topk = max(1, topk)
        # sorted() is stable, so ties keep the order of the shards.
        return [
            sorted((hit for row in rows for hit in row), key=lambda hit: -hit.score)[:topk]
            for rows in zip(*answers, strict=True)
        ]


def _comparable(part: Searcher) -> dict[str, str | int | float]:
    return {name: value for name, value in part.info().items() if name not in _OF_ONE_PART}


class RemoteShard:
    """Shard that is served by another ``retriever serve``.

    >>> from retriever import RemoteShard, ShardedSearcher
    >>> shards = [RemoteShard("http://host-a:8000"), RemoteShard("http://host-b:8000")]  # doctest: +SKIP
    >>> ShardedSearcher(shards).search(["who wrote Dune?"], topk=3)  # doctest: +SKIP

    Args:
        url: Address of the server, such as ``http://host:8000``. Its ``/info`` is read at once.
        patience_seconds: Timeout for the server to load its index.

    Raises:
        Unavailable: The server does not answer.
        BadIndex: The server is not one of this package.
        MissingDependency: requests is not installed.
    """

    def __init__(self, url: str, patience_seconds: float = 600.0) -> None:
        requests = import_optional("requests")
        self._url = url.rstrip("/").removesuffix("/retrieve")
        self._session = requests.Session()
        self._broken = requests.RequestException
        self._info = self._about(patience_seconds)
        try:
            self._ntotal = int(self._info["ntotal"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadIndex(
                f"{self._url}/info says {self._info!r:.200}: not a server of this package."
            ) from error

    def _about(self, patience_seconds: float) -> dict[str, Any]:
        until = time.monotonic() + patience_seconds
        while True:
            try:
                response = self._session.get(f"{self._url}/info", timeout=_TIMEOUT_SECONDS)
            except self._broken as error:
                raise Unavailable(
                    f"no server at {self._url} ({type(error).__name__}).", retry_after=5
                ) from error
            if response.status_code != 503 or time.monotonic() >= until:
                break
            time.sleep(1)
        if response.status_code == 503:
            raise Unavailable(f"{self._url} is not ready: {response.text[:200]}", retry_after=5)
        try:
            about = response.json()
        except ValueError:
            about = None
        if response.status_code != 200 or not isinstance(about, dict):
            raise BadIndex(
                f"{self._url}/info answers {response.status_code} {response.text[:100]!r}: not a server of this package."
            )
        return about

    @property
    def ntotal(self) -> int:
        """Number of documents, as reported by the server."""
        return self._ntotal

    def info(self) -> dict[str, str | int | float]:
        """Return the server's ``/info`` about its index."""
        return {name: value for name, value in self._info.items() if name not in _OF_A_SERVER}

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `retriever.index.Searcher.search`.

        Raises:
            Unavailable: The server does not answer, or its answer is malformed.
        """
        rows: list[list[Hit]] = []
        for start in range(0, len(queries), _QUERIES_PER_REQUEST):
            rows += self._ask(queries[start : start + _QUERIES_PER_REQUEST], topk)
        return rows

    def _ask(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        texts = [query.encode("utf-8", "replace").decode("utf-8") for query in queries]
        body = {"queries": texts, "topk": max(1, topk), "return_scores": True}
        problem = ""
        for number in range(_TRIES):
            if number:
                time.sleep(_PAUSE_SECONDS * 2**number)
            try:
                response = self._session.post(f"{self._url}/retrieve", json=body, timeout=_TIMEOUT_SECONDS)
                if response.status_code != 200:
                    problem = f"answers {response.status_code} {response.text[:100]!r}"
                    continue
                rows = [[_hit(entry) for entry in row] for row in response.json()["result"]]
            except self._broken as error:
                problem = f"does not answer ({type(error).__name__})"
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise Unavailable(
                    f"the shard at {self._url} sent a malformed answer ({error}).", retry_after=5
                ) from error
            if len(rows) == len(queries):
                return rows
            problem = f"answers {len(queries)} queries with {len(rows)} lists"
        raise Unavailable(f"the shard at {self._url} {problem}.", retry_after=5)


def _hit(entry: dict[str, Any]) -> Hit:
    document = entry["document"]
    return Hit(Document(document["id"], document["contents"]), float(entry["score"]))
