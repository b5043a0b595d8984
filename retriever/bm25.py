"""BM25 index: chunked, resumable build, and search."""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from retriever.corpus import Document, check_documents, corpus_sha256, tokenise
from retriever.errors import BadIndex, import_optional
from retriever.index import SCORE_DECIMALS, Hit
from retriever.resume import Marks, Report, reserve, to_disk, turns

# bm25s' defaults.
K1, B = 1.5, 0.75


def import_bm25s() -> Any:
    """Import bm25s without JAX, even if JAX is installed.

    At import bm25s runs a JAX function that is not needed here, and JAX reserves three quarters of a GPU's memory at its first
    call. A program that uses JAX itself still can.

    Raises:
        MissingDependency: bm25s is not installed.
    """
    if "bm25s" in sys.modules:
        return import_optional("bm25s")
    loaded = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]  # Python treats None as "not installed"
    try:
        return import_optional("bm25s")
    finally:
        del sys.modules["jax"]
        if loaded is not None:
            sys.modules["jax"] = loaded


class Bm25Index:
    r"""BM25 index on the bm25s library.

    Only documents that share a word with the query are hits, so a result may be shorter than ``topk``.

    >>> from retriever import Bm25Index, Document
    >>> index = Bm25Index.build([Document("1", '"Dune"\nA novel by Herbert.'), Document("2", '"Lem"\nA writer.')])
    >>> [hit.document.id for hit in index.search(["who wrote Dune?"], topk=2)[0]]
    ['1']
    """

    def __init__(self, documents: Sequence[Document], scorer: Any, corpus_sha256: str | None = None) -> None:
        """Wrap existing parts. Use `build` or `load` instead."""
        self.documents = documents
        self._scorer = scorer
        self._known_sha256 = corpus_sha256
        # Called before every search; raises once damage to the files is known.
        self.check_files: Callable[[], None] = lambda: None

    @classmethod
    def build(cls, documents: Sequence[Document], k1: float = K1, b: float = B) -> Bm25Index:
        """Index documents in memory.

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
        """Build the scorer. The documents are streamed; their words need 4 bytes of memory each.

        Raises:
            MissingDependency: bm25s is not installed.
        """
        bm25s = import_bm25s()
        # Own word ids: bm25s numbers the words of a set, so its ids depend on PYTHONHASHSEED.
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
        # Ties with the last hit stay in until document order decides.
        last = np.partition(scores, -topk)[-topk]
        positions = np.flatnonzero((scores >= last) & (scores > 0))
        order = positions[np.lexsort((positions, -scores[positions]))][:topk]
        return [Hit(self.documents[position], float(scores[position])) for position in order]

    def save(self, folder: Path) -> None:
        """Write the index into an existing folder (documents are not written)."""
        self._scorer.save(str(folder), show_progress=False)

    @classmethod
    def load(cls, folder: Path, documents: Sequence[Document], corpus_sha256: str | None = None) -> Bm25Index:
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


_POSTING = np.dtype([("word", "<u4"), ("frequency", "<u4")])
_LENGTH = np.dtype([("words", "<u4"), ("postings", "<u4")])
_FILES = ("words", "postings", "lengths")
_BLOCK = 1 << 22


class WordCounts:
    """First pass of a build: count the words of each document.

    Args:
        marks: Uses ``words`` (bytes of the vocabulary file), ``postings``, ``lengths`` (documents).
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        sizes = (marks["words"], _POSTING.itemsize * marks["postings"], _LENGTH.itemsize * marks["lengths"])
        with ExitStack() as stack:
            self._streams = [
                stack.enter_context(marks.growing(name, size))
                for name, size in zip(_FILES, sizes, strict=True)
            ]
            self.close = stack.pop_all().close
        # Words are numbered by first occurrence: the order of a set depends on PYTHONHASHSEED.
        self._numbers = _numbers(marks)

    def add(self, documents: Sequence[Document]) -> dict[str, int]:
        """Count the words of more documents and return the new marks, which the caller sets."""
        fresh, lengths, postings = [], [], []
        for document in documents:
            words = tokenise(document.contents)
            frequencies = Counter(words)
            lengths.append((len(words), len(frequencies)))
            for word, frequency in frequencies.items():
                if word not in self._numbers:
                    self._numbers[word] = len(self._numbers)
                    fresh.append(word)
                postings.append((self._numbers[word], frequency))
        words_file, postings_file, lengths_file = self._streams
        words_file.write("".join(word + "\n" for word in fresh).encode("utf-8", "surrogatepass"))
        postings_file.write(np.array(postings, _POSTING).tobytes())
        lengths_file.write(np.array(lengths, _LENGTH).tobytes())
        to_disk(*self._streams)
        return {
            "words": words_file.tell(),
            "postings": self._marks["postings"] + len(postings),
            "lengths": self._marks["lengths"] + len(lengths),
        }


def _numbers(marks: Marks) -> dict[str, int]:
    """Read the word ids from the vocabulary file."""
    words = (marks.work / "words").read_text("utf-8", "surrogatepass").split("\n")[:-1]
    return {word: number for number, word in enumerate(words)}


def place_scores(folder: Path, chunk: int, marks: Marks, report: Report) -> None:
    """Write the files of a BM25 index (second pass of a build).

    Args:
        folder: Target folder, in bm25s' format.
        chunk: Documents between two marks.
        marks: Uses the complete marks of `WordCounts`, and ``scores_placed`` (documents).
        report: Called after every chunk.

    Raises:
        MissingDependency: bm25s is not installed.
    """
    numbers = _numbers(marks)
    lengths = np.memmap(marks.work / "lengths", _LENGTH, "r")
    postings = np.memmap(marks.work / "postings", _POSTING, "r")
    containing = _in_blocks(postings["word"], len(numbers))
    starts = np.concatenate([[0], np.cumsum(containing)])
    weights = np.array(
        [math.log(1 + (len(lengths) - df + 0.5) / (df + 0.5)) for df in containing.tolist()], np.float32
    )
    mean = float(lengths["words"].sum(dtype=np.int64) / len(lengths))
    done = marks.placed("scores_placed")
    if not done:
        _empty(folder, numbers, starts, len(lengths))
    first = int(lengths["postings"][:done].sum(dtype=np.int64))
    taken = _in_blocks(postings["word"][:first], len(numbers))
    scores, places = _arrays(folder, len(postings), new=not done)
    while done < len(lengths):
        rows = np.array(lengths[done : done + chunk])
        mine = np.array(postings[first : first + int(rows["postings"].sum(dtype=np.int64))])
        word, frequency = mine["word"].astype(np.int64), mine["frequency"].astype(np.float32)
        document = np.repeat(np.arange(done, done + len(rows), dtype=np.int32), rows["postings"])
        spread = np.repeat(K1 * ((1 - B) + B * rows["words"].astype(np.float64) / mean), rows["postings"])
        at = starts[word] + taken[word] + turns(word)
        scores[at] = weights[word] * (frequency / (spread + frequency))
        places[at] = document
        np.add.at(taken, word, 1)
        first, done = first + len(mine), done + len(rows)
        marks.place("scores_placed", done)
        report("scoring", done, len(lengths))
    scores.flush()
    places.flush()


def _in_blocks(words: NDArray[np.uint32], count: int) -> NDArray[np.int64]:
    """Count how often each of ``count`` word ids occurs, block by block."""
    found = np.zeros(count, np.int64)
    for start in range(0, len(words), _BLOCK):
        found += np.bincount(words[start : start + _BLOCK], minlength=count)
    return found


def _empty(folder: Path, numbers: dict[str, int], starts: NDArray[np.int64], documents: int) -> None:
    """Write all files of bm25s except the two arrays that have one entry per posting."""
    scorer = import_bm25s().BM25(k1=K1, b=B, method="lucene", backend="numpy")
    none: dict[str, Any] = {"data": np.empty(0, np.float32), "indices": np.empty(0, np.int32)}
    scorer.scores = {**none, "indptr": starts, "num_docs": documents}
    scorer.vocab_dict = numbers
    scorer.nonoccurrence_array = None
    scorer.save(str(folder), show_progress=False)


def _arrays(folder: Path, count: int, new: bool) -> list[Any]:
    """Map the arrays of scores and document numbers, under bm25s' file names."""
    found = []
    for name, dtype in (("data", np.float32), ("indices", np.int32)):
        path = folder / f"{name}.csc.index.npy"
        array = open_memmap(path, "w+", dtype, (count,)) if new else open_memmap(path, "r+")
        if new:
            reserve(path, path.stat().st_size)
        found.append(array)
    return found
