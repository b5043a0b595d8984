"""The index in this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tstar_envs.contents import digest_all
from tstar_envs.data.locate import stamped
from tstar_envs.envs.search_qa.search.passage import Passage
from tstar_envs.errors import BadData, MissingData, MissingExtra

EMBEDDED_BACKENDS = ("hashed", "bm25")


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
            (open_index, (corpus, backend))
            if isinstance(corpus, Path)
            else (EmbeddedSearcher, (corpus, backend))
        )


def open_index(corpus: Path, backend: str) -> EmbeddedSearcher:
    """The index over a file that all environments of this process share; one whose file has changed is built anew.

    Raises:
        MissingData: there is no such file.
    """
    if not corpus.is_file():
        raise MissingData(f"no corpus at {corpus}: pass data='mini', or a folder that holds corpus.jsonl")
    return _shared_index(stamped([corpus])[0], backend)


@lru_cache(maxsize=8)
def _shared_index(corpus: tuple[Path, int, int], backend: str) -> EmbeddedSearcher:
    return EmbeddedSearcher(corpus[0], backend)
