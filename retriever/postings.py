"""BM25 for a corpus of any size: words are counted while it is read, then every score is put where bm25s looks for it.

`retriever.bm25` lets bm25s score documents in memory; here the same numbers come chunk by chunk, so that memory holds
the words of the corpus (each once) and a killed build goes on at its last chunk. A score is the "lucene" variant of
Kamphuis et al. (2020),

    log(1 + (N - df + .5) / (df + .5)) * tf / (tf + k1 (1 - b + b length / mean length)),

and the tests compare the files with those that bm25s writes, byte by byte.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from retriever.bm25 import K1, B, import_bm25s
from retriever.corpus import Document
from retriever.resume import Marks, Report, reserve, to_disk, turns
from retriever.text import tokenise

_POSTING = np.dtype([("word", "<u4"), ("frequency", "<u4")])
_LENGTH = np.dtype([("words", "<u4"), ("postings", "<u4")])
_FILES = ("words", "postings", "lengths")
_BLOCK = 1 << 22


class WordCounts:
    """The first pass: which words are in which document, and how often.

    Args:
        marks: ``words`` (bytes of the file of words), ``postings``, ``lengths`` (documents).
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
        # Words are numbered as they turn up: the order of a set would depend on PYTHONHASHSEED.
        self._numbers = _numbers(marks)

    def add(self, documents: Sequence[Document]) -> dict[str, int]:
        """Count the words of further documents and return the marks that stand for them, which are not set yet."""
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
    """The number of each word that was written down."""
    words = (marks.work / "words").read_text("utf-8", "surrogatepass").split("\n")[:-1]
    return {word: number for number, word in enumerate(words)}


def place_scores(folder: Path, chunk: int, marks: Marks, report: Report) -> None:
    """The second pass: write the files of a BM25 index.

    Args:
        folder: Where to; bm25s loads it.
        chunk: Documents between two marks.
        marks: Those of `WordCounts`, complete, and ``scores_placed`` (documents).
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
    """How often each of ``count`` numbers occurs in an array that need not fit into memory."""
    found = np.zeros(count, np.int64)
    for start in range(0, len(words), _BLOCK):
        found += np.bincount(words[start : start + _BLOCK], minlength=count)
    return found


def _empty(folder: Path, numbers: dict[str, int], starts: NDArray[np.int64], documents: int) -> None:
    """All that bm25s writes, but for the two arrays with a number for each posting, which have no length yet."""
    scorer = import_bm25s().BM25(k1=K1, b=B, method="lucene", backend="numpy")
    none: dict[str, Any] = {"data": np.empty(0, np.float32), "indices": np.empty(0, np.int32)}
    scorer.scores = {**none, "indptr": starts, "num_docs": documents}
    scorer.vocab_dict = numbers
    scorer.nonoccurrence_array = None
    scorer.save(str(folder), show_progress=False)


def _arrays(folder: Path, count: int, new: bool) -> list[Any]:
    """Scores and document numbers, under the names that bm25s gives them."""
    found = []
    for name, dtype in (("data", np.float32), ("indices", np.int32)):
        path = folder / f"{name}.csc.index.npy"
        array = open_memmap(path, "w+", dtype, (count,)) if new else open_memmap(path, "r+")
        if new:
            reserve(path, path.stat().st_size)
        found.append(array)
    return found
