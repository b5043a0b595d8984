"""A corpus in several parts, on one host or on several, behind one front that merges the best of each part."""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from retriever.corpus import Document
from retriever.errors import BadIndex, Unavailable, import_optional
from retriever.index import Hit, Searcher

_TIMEOUT_SECONDS = 60.0
_TRIES = 3
_PAUSE_SECONDS = 0.2
_QUERIES_PER_REQUEST = 256
# What makes scores of two parts comparable: all of ``info()`` but these.
_OF_ONE_PART = frozenset(("index", "lists", "probes", "links", "breadth", "shards", "corpus_sha256"))
_OF_A_SERVER = frozenset(("ntotal", "default_topk", "max_queries", "version"))


class ShardedSearcher:
    """Asks every part for its best and merges them by score; equal scores stand in the order of the parts.

    So the answer is that of one index over the whole corpus, if the parts are its consecutive pieces in order.

    Args:
        parts: At least one; `RemoteShard` and indexes of this process. Remote ones search at the same time.

    Raises:
        BadIndex: The scores of the parts cannot be compared; the message says in what they differ.
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
                    "BM25 indexes cannot be merged: each has counted its words over its own passages; build one index."
                )
        self._pool = ThreadPoolExecutor(
            max(1, sum(isinstance(part, RemoteShard) for part in parts)), thread_name_prefix="shard"
        )

    @property
    def ntotal(self) -> int:
        """Number of documents of all parts."""
        return sum(part.ntotal for part in self._parts)

    def info(self) -> dict[str, str | int | float]:
        """Return the number of parts, their encoder, and a digest of their corpora in order."""
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
            Unavailable: A remote part does not answer: better no answer than one without its passages.
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
        # sorted() is stable, so equal scores keep the order of the parts.
        return [
            sorted((hit for row in rows for hit in row), key=lambda hit: -hit.score)[:topk]
            for rows in zip(*answers, strict=True)
        ]


def _comparable(part: Searcher) -> dict[str, str | int | float]:
    return {name: value for name, value in part.info().items() if name not in _OF_ONE_PART}


class RemoteShard:
    """An index behind another server of this package.

    Args:
        url: Its address, as ``http://host:8000``. It is asked at once what it serves.
        patience_seconds: How long to wait for it while it loads.

    Raises:
        Unavailable: It does not answer.
        BadIndex: What answers is no server of this package.
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
                f"{self._url}/info says {self._info!r:.200}: no server of this package."
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
                f"{self._url}/info answers {response.status_code} {response.text[:100]!r}: no server of this package."
            )
        return about

    @property
    def ntotal(self) -> int:
        """Number of documents it said it has."""
        return self._ntotal

    def info(self) -> dict[str, str | int | float]:
        """What it said of its index."""
        return {name: value for name, value in self._info.items() if name not in _OF_A_SERVER}

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `retriever.index.Searcher.search`.

        Raises:
            Unavailable: It does not answer, or not in the right form.
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
                    f"the shard at {self._url} answers in an unknown form ({error}).", retry_after=5
                ) from error
            if len(rows) == len(queries):
                return rows
            problem = f"answers {len(queries)} queries with {len(rows)} lists"
        raise Unavailable(f"the shard at {self._url} {problem}.", retry_after=5)


def _hit(entry: dict[str, Any]) -> Hit:
    document = entry["document"]
    return Hit(Document(document["id"], document["contents"]), float(entry["score"]))
