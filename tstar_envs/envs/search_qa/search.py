"""Search engines: the embedded index, prefetching, and the option ``retriever``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.data.files import parse_json, read_lines
from tstar_envs.data.locate import Stamped, stamped
from tstar_envs.envs.search_qa.tasks import Passage, Searcher, State, query_key
from tstar_envs.errors import (
    BadData,
    InfrastructureError,
    MissingData,
    MissingExtra,
    RetrieverError,
    UnknownOption,
)
from tstar_envs.utils import digest_all


def first_contents(corpus: Path, count: int = 3) -> tuple[str, ...]:
    """Read the contents of the first passages of a shipped corpus."""
    lines = itertools.islice(read_lines(corpus), count)
    return tuple(str(parse_json(line, f"{corpus}, line {number}")["contents"]) for number, line in lines)


def corpus_digest(corpus: Path) -> str:
    """Compute the digest of an ``EmbeddedSearcher`` over a file, without building it.

    A file that is not in the shipped format (``{"id", "contents"}`` per line) gets a digest of its raw lines.
    """
    # Not parse_json: its depth check would double the time. A malformed line counts with its raw text.
    lines = [line for _, line in read_lines(corpus)]
    try:
        documents = [(record["id"], record["contents"].partition("\n")) for record in map(json.loads, lines)]
        return digest_all(
            text for id_, (heading, _, body) in documents for text in (id_, f"{heading}\n{body}")
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return digest_all(lines)


EMBEDDED_BACKENDS = ("hashed", "bm25")


class EmbeddedSearcher:
    r"""Embedded search engine: the retriever package in this process, without a server or torch.

    >>> searcher = EmbeddedSearcher([("1", '"Dune"\nA novel by Herbert.'), ("2", '"Solaris"\nA novel by Lem.')])
    >>> searcher.search(["Dune"], topk=1)[0][0].title
    'Dune'

    Args:
        corpus: corpus file in Search-R1's format (``.jsonl`` or ``.jsonl.gz``), or the documents as (id, contents).
        backend: ``hashed`` (FAISS over hashed TF-IDF) or ``bm25``.
    """

    def __init__(self, corpus: Path | Sequence[tuple[str, str]], backend: str = "hashed") -> None:
        try:
            # Lazy import: users of an external search service need neither the retriever nor faiss.
            import retriever
        except ImportError as error:
            raise MissingExtra("the embedded searcher", "retriever", "search") from error
        if isinstance(corpus, Path):
            try:
                documents = retriever.read_corpus(corpus)
            except retriever.BadCorpus as error:
                raise BadData(str(error)) from error
        else:
            documents = [retriever.Document(id=id_, contents=contents) for id_, contents in corpus]
        try:
            index = retriever.HashedIndex if backend == "hashed" else retriever.Bm25Index
            self._index: Any = index.build(documents)
        except retriever.MissingDependency as error:
            raise MissingExtra("the embedded searcher", error.name or "faiss", "search") from error
        except retriever.BadCorpus as error:
            raise BadData(f"{corpus}: {error}" if isinstance(corpus, Path) else str(error)) from error
        self._source = (corpus, backend)
        self._passages = {
            d.id: Passage(d.id, d.title, d.text, d.contents.partition("\n")[0]) for d in documents
        }

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """See ``Searcher``."""
        return [
            [self._passages[hit.document.id] for hit in hits]
            for hits in self._index.search(list(queries), topk)
        ]

    def digest(self) -> str:
        """Digest of all passages in order; order decides ties. Equal to ``corpus_digest`` of their file."""
        return digest_all(text for p in self._passages.values() for text in (p.id, f"{p.heading}\n{p.text}"))

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddedSearcher:
        return self  # immutable, so copies of an environment share it

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # FAISS objects cannot be pickled; the index is rebuilt from its corpus, once per process.
        corpus, backend = self._source
        return (
            (open_index, (corpus, backend))
            if isinstance(corpus, Path)
            else (EmbeddedSearcher, (corpus, backend))
        )


def open_index(corpus: Path, backend: str) -> EmbeddedSearcher:
    """Open the index over a file, shared by all environments of the process.

    It is rebuilt when the file changes.

    Raises:
        MissingData: the file is missing.
    """
    if not corpus.is_file():
        raise MissingData(f"no corpus at {corpus}: pass data='mini', or a folder that holds corpus.jsonl")
    return _shared_index(stamped([corpus])[0], backend)


@lru_cache(maxsize=8)
def _shared_index(corpus: tuple[Path, int, int], backend: str) -> EmbeddedSearcher:
    return EmbeddedSearcher(corpus[0], backend)


class PrefetchedSearch:
    """Search engine of one environment, with prefetched results.

    Args:
        searcher: the search engine.
        topk: maximum number of passages per query.
    """

    def __init__(self, searcher: Searcher, topk: int) -> None:
        self.searcher = searcher
        self.topk = topk
        self.prefetched: dict[str, list[Passage]] = {}

    def key(self, query: str) -> str:
        """Compute the cache key of a query; equal keys share a result within an episode."""
        key: Callable[[str], str] = getattr(self.searcher, "query_key", query_key)
        return key(query)

    def search(self, query: str) -> list[Passage]:
        """Search for the best passages, best first; a prefetched result is used once."""
        if query in self.prefetched:
            return self.prefetched.pop(query)
        return self.searcher.search([query], self.topk)[0]


class SearchRequest(NamedTuple):
    """Upcoming search of one row of a group."""

    row: int
    engine: PrefetchedSearch
    state: State
    query: str


def prefetch(requests: Sequence[SearchRequest]) -> dict[int, InfrastructureError]:
    """Prefetch the new queries of all rows in one request to the retriever.

    Returns:
        Row -> error; if the request fails, every row that searches has failed.
    """
    rows: dict[str, list[SearchRequest]] = {}
    try:
        for each in requests:
            if each.state.cached(each.engine.key(each.query)) is None:
                rows.setdefault(each.query, []).append(each)
    except RetrieverError as error:  # the service's cache keys are unknown, so nothing is cached yet
        return {each.row: error for each in requests}
    if not rows:
        return {}
    first = next(iter(rows.values()))[0].engine
    try:
        found = first.searcher.search(list(rows), first.topk)
    except RetrieverError as error:  # all retries failed: rows must not retry one by one
        return {each.row: error for same in rows.values() for each in same}
    for (query, same), passages in zip(rows.items(), found, strict=True):
        for each in same:
            each.engine.prefetched = {query: passages}
    return {}


def open_searcher(retriever: str, corpus: Path, invented: bool = False) -> Searcher:
    """Open the search engine of the ``retriever`` option, shared by all environments of the process.

    Args:
        retriever: "hashed", "bm25" or an http(s) address.
        corpus: corpus file of the questions.
        invented: True for an invented world. A service with another corpus cannot know the answers and is refused.

    Raises:
        UnknownOption: ``retriever`` is neither a back end nor an http(s) address.
    """
    if retriever in EMBEDDED_BACKENDS:
        return open_index(corpus, retriever)
    if retriever.startswith(("http://", "https://")):
        return _shared_client(retriever, stamped([corpus] if invented else ()))
    raise UnknownOption(
        f"retriever must be 'hashed', 'bm25' or an address starting with http://, got {retriever!r}"
    )


@lru_cache(maxsize=8)
def _shared_client(url: str, corpus: Stamped) -> Searcher:
    from tstar_envs.envs.search_qa.service import HttpSearcher

    return HttpSearcher(url, expected=first_contents(corpus[0][0]) if corpus else ())
