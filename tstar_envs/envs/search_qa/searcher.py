"""Where passages come from: an index in this process, or a search service over HTTP."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tstar_envs.contents import digest_all
from tstar_envs.data.files import read_lines
from tstar_envs.errors import BadData, MissingData, MissingExtra, UnknownOption

EMBEDDED_BACKENDS = ("hashed", "bm25")


class _Shown(NamedTuple):
    id: str
    title: str
    text: str


class Passage(_Shown):
    """One search result.

    Attributes:
        id: unique in its corpus.
        title: without quotes around it.
        text: the rest.
        heading: the title as the first line of the corpus has it, mostly in quotes; by default the title in quotes.
    """

    heading: str

    def __new__(cls, id: str, title: str, text: str, heading: str | None = None) -> Passage:
        """A passage of these texts."""
        passage = super().__new__(cls, id, title, text)
        passage.heading = f'"{title}"' if heading is None else heading
        return passage


class Searcher(Protocol):
    """What the environment asks of a search engine.

    One that tells queries apart in its own way has a method ``query_key(query) -> str`` as well: two queries of one key have one
    answer, and an episode asks for it once. Without it ``rules.query_key`` decides, which fits search by words.
    """

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """At most ``topk`` passages for each query, best first."""


class EmbeddedSearcher:
    """The retriever package used in this process: no server, no torch.

    Args:
        corpus: Search-R1 corpus lines (``.jsonl`` or ``.jsonl.gz``), or the documents themselves as (id, contents).
        backend: ``hashed`` (FAISS over hashed TF-IDF) or ``bm25``.
    """

    def __init__(self, corpus: Path | Sequence[tuple[str, str]], backend: str = "hashed") -> None:
        try:
            # The one lazy import of the retriever in this package: who brings a server needs neither it nor faiss.
            import retriever
        except ImportError as error:
            raise MissingExtra("the embedded searcher", "retriever", "search") from error
        if isinstance(corpus, Path):
            if not corpus.is_file():
                raise MissingData(
                    f"no corpus at {corpus}: pass data='mini', or a folder that holds corpus.jsonl"
                )
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
        """A digest of all passages in their order, which decides between equally good ones; equal to ``corpus_digest`` of their file."""
        return digest_all(text for p in self._passages.values() for text in (p.id, f"{p.heading}\n{p.text}"))

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddedSearcher:
        return self  # an index never changes, so copies of an environment share it

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # An index holds foreign objects that no pickle takes; it is built again (once per process) from its corpus.
        corpus, backend = self._source
        return (
            (open_searcher, (backend, corpus))
            if isinstance(corpus, Path)
            else (EmbeddedSearcher, (corpus, backend))
        )


@lru_cache(maxsize=8)
def open_searcher(retriever: str, corpus: Path, invented: bool = False) -> Searcher:
    """The searcher for an environment's ``retriever`` option, shared by all environments of the process.

    Args:
        retriever: a back end's name or an address.
        corpus: the passages that the questions are asked over.
        invented: they are of an invented world, so that a service with another corpus cannot have the answers: it is refused.

    Raises:
        UnknownOption: neither a back end's name nor an http(s) address.
    """
    if retriever in EMBEDDED_BACKENDS:
        return EmbeddedSearcher(corpus, retriever)
    if retriever.startswith(("http://", "https://")):
        from tstar_envs.envs.search_qa.http_searcher import HttpSearcher

        return HttpSearcher(retriever, expected=_first_contents(corpus) if invented else ())
    raise UnknownOption(
        f"retriever must be 'hashed', 'bm25' or an address starting with http://, got {retriever!r}"
    )


def _first_contents(corpus: Path, count: int = 3) -> tuple[str, ...]:
    """The contents of a corpus' first passages; the retriever package, which reads whole ones, may not be installed here."""
    with (
        gzip.open(corpus, "rt", encoding="utf-8")
        if corpus.suffix == ".gz"
        else corpus.open(encoding="utf-8") as lines
    ):
        return tuple(str(json.loads(line)["contents"]) for line in itertools.islice(lines, count))


def corpus_digest(corpus: Path) -> str:
    """The digest that an ``EmbeddedSearcher`` over this file has, without an index; of a file that is not in the shipped form
    (``{"id", "contents"}`` a line) one of its lines.
    """
    lines = [line for _, line in read_lines(corpus)]
    try:
        documents = [(record["id"], record["contents"].partition("\n")) for record in map(json.loads, lines)]
        return digest_all(
            text for id_, (heading, _, body) in documents for text in (id_, f"{heading}\n{body}")
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return digest_all(lines)
