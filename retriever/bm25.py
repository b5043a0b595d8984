"""BM25 over the same documents and words: no vectors, the best quality on generated names.

Scoring is the "lucene" variant of Kamphuis et al. (2020) with bm25s' defaults k1 = 1.5, b = 0.75.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retriever.corpus import Document, check_documents, corpus_sha256
from retriever.errors import BadIndex, import_optional
from retriever.index import SCORE_DECIMALS, Hit
from retriever.text import tokenise

# bm25s' defaults.
K1, B = 1.5, 0.75


def import_bm25s() -> Any:
    """Import bm25s without JAX, also where that is installed.

    bm25s has JAX sort five numbers when it is imported, for a search that is not used here, and JAX takes three quarters of a GPU's
    memory with its first number. A program that uses JAX itself still has it.

    Raises:
        MissingDependency: bm25s is not installed.
    """
    if "bm25s" in sys.modules:
        return import_optional("bm25s")
    loaded = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]  # to Python a module that is not installed
    try:
        return import_optional("bm25s")
    finally:
        del sys.modules["jax"]
        if loaded is not None:
            sys.modules["jax"] = loaded


class Bm25Index:
    """BM25 search by the bm25s library.

    Only documents that share a word with the query are hits, so a list may be shorter than ``topk``.
    """

    def __init__(self, documents: Sequence[Document], scorer: Any, corpus_sha256: str | None = None) -> None:
        """Join parts that belong together; use `build` or `load`."""
        self.documents = documents
        self._scorer = scorer
        self._known_sha256 = corpus_sha256
        # Called before every search; raises once the files on disk are known to be damaged.
        self.check_files: Callable[[], None] = lambda: None

    @classmethod
    def build(cls, documents: Sequence[Document], k1: float = K1, b: float = B) -> "Bm25Index":
        """Index documents.

        Args:
            documents: At least one, with unique ids.
            k1: Saturation of the term frequency.
            b: Strength of the length normalisation, in [0, 1].

        Raises:
            BadCorpus: No document, or an id twice.
            MissingDependency: bm25s is not installed.
        """
        check_documents(documents)
        return cls(list(documents), cls.score(documents, k1, b))

    @staticmethod
    def score(documents: Iterable[Document], k1: float, b: float) -> Any:
        """Make the scorer for documents that need not fit into memory; their words do, at 4 bytes each.

        Raises:
            MissingDependency: bm25s is not installed.
        """
        bm25s = import_bm25s()
        # The ids are ours because bm25s numbers the words of a set, whose order PYTHONHASHSEED decides.
        vocabulary: dict[str, int] = {}
        ids = [
            array(
                "i", [vocabulary.setdefault(token, len(vocabulary)) for token in tokenise(document.contents)]
            )
            for document in documents
        ]
        scorer = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
        scorer.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        return scorer

    @property
    def ntotal(self) -> int:
        """Number of documents."""
        return len(self.documents)

    def info(self) -> dict[str, str | int | float]:
        """Return the kind of index, its parameters and the corpus' digest."""
        parameters: dict[str, float] = {"k1": self._scorer.k1, "b": self._scorer.b}
        return {
            "index": "bm25",
            "encoder": "none",
            "dim": 0,
            **parameters,
            "corpus_sha256": self._corpus_sha256,
        }

    @cached_property
    def _corpus_sha256(self) -> str:
        return self._known_sha256 or corpus_sha256(self.documents)

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `retriever.index.Searcher.search`."""
        self.check_files()
        topk = max(1, min(topk, self.ntotal))
        return [self._search_one(query, topk) for query in queries]

    def _search_one(self, query: str, topk: int) -> list[Hit]:
        vocabulary: dict[str, int] = self._scorer.vocab_dict
        ids = [vocabulary[token] for token in tokenise(query) if token in vocabulary]
        if not ids:
            return []
        scores = np.round(np.asarray(self._scorer.get_scores_from_ids(ids), np.float64), SCORE_DECIMALS)
        # Everything that ties with the last place stays in until the order of documents decides.
        last = np.partition(scores, -topk)[-topk]
        positions = np.flatnonzero((scores >= last) & (scores > 0))
        order = positions[np.lexsort((positions, -scores[positions]))][:topk]
        return [Hit(self.documents[position], float(scores[position])) for position in order]

    def save(self, folder: Path) -> None:
        """Write the index into an existing folder (documents are not written)."""
        self._scorer.save(str(folder), show_progress=False)

    @classmethod
    def load(
        cls, folder: Path, documents: Sequence[Document], corpus_sha256: str | None = None
    ) -> "Bm25Index":
        """Map what `save` wrote into memory; only the words are read.

        Raises:
            BadIndex: The index was built over another number of documents.
            MissingDependency: bm25s is not installed.
        """
        bm25s = import_bm25s()
        scorer = bm25s.BM25.load(str(folder), mmap=True, show_progress=False)
        if scorer.scores["num_docs"] != len(documents):
            raise BadIndex(
                f"{folder}: the BM25 index holds {scorer.scores['num_docs']} documents, the corpus "
                f"{len(documents)}; build the index again."
            )
        return cls(documents, scorer, corpus_sha256)
