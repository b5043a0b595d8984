"""Answers of a search service that are kept, bounded by their number, their passages and their bytes."""

import sys
from collections import OrderedDict

from retriever.index import Hit

__all__ = ["AnswerCache", "Key", "Row"]
# Answers kept are bounded by their passages and by their bytes too, and a very large one is not kept.
MOST_HITS = 1 << 16
MOST_BYTES = 64 << 20
LARGEST = 1 << 20
Key = tuple[str, int]
Row = list[Hit]


class AnswerCache:
    """The least recently used answer goes first.

    Args:
        size: The most answers that are kept.

    Attributes:
        hits: Passages in all answers together.
        bytes: What all answers take in memory, nearly.
    """

    def __init__(self, size: int) -> None:
        """Start with an empty cache."""
        self.hits = self.bytes = 0
        self._size = size
        self._rows: OrderedDict[Key, Row] = OrderedDict()

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._rows)

    def get(self, key: Key) -> Row | None:
        """The answer to a query, which counts as a use of it; None if it is not kept."""
        if key in self._rows:
            self._rows.move_to_end(key)
        return self._rows.get(key)

    def keep(self, key: Key, answer: Row) -> None:
        """Keep an answer unless it is very large, and let go of the oldest until all bounds hold."""
        size = _bytes_of(key, answer)
        if size > LARGEST:
            return
        self._rows[key] = answer
        self.hits += len(answer)
        self.bytes += size
        while len(self) > self._size or self.hits > MOST_HITS or self.bytes > MOST_BYTES:
            oldest, row = self._rows.popitem(last=False)
            self.hits -= len(row)
            self.bytes -= _bytes_of(oldest, row)


def _bytes_of(key: Key, answer: Row) -> int:
    """What an answer takes in memory, nearly."""
    texts = sum(sys.getsizeof(hit.document.contents) + sys.getsizeof(hit.document.id) for hit in answer)
    return sys.getsizeof(key[0]) + texts + 200 * (1 + len(answer))
