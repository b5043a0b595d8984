"""Documents that stay on disk: the file of lines is mapped into memory, and only where each line begins is known.

A hundred passages are read from the page cache as fast as from a list, and a corpus of any size costs a
service 8 bytes a passage, shared by all processes that serve it.
"""

import json
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from retriever.corpus import Document
from retriever.errors import BadIndex

LINES = "documents.jsonl"
OFFSETS = "offsets.npy"


class StoredDocuments(Sequence[Document]):
    """The documents of an index folder, read one by one when asked for.

    Args:
        folder: Holds ``documents.jsonl`` (canonical lines) and ``offsets.npy`` (int64, shape (n + 1,)).

    Raises:
        BadIndex: The two files do not belong together; the message names them.
        OSError, ValueError: A file is missing or no such file.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LINES
        offsets: NDArray[np.int64] = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
        size = self._path.stat().st_size
        if (
            offsets.dtype != np.int64
            or offsets.ndim != 1
            or len(offsets) < 2
            or (offsets[0], offsets[-1]) != (0, size)
        ):
            raise BadIndex(f"{folder / OFFSETS}: not the offsets of {LINES}; copy or build the index again.")
        self._offsets = offsets
        with self._path.open("rb") as stream:
            self._lines = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, position: int) -> Document: ...
    @overload
    def __getitem__(self, position: slice) -> list[Document]: ...
    def __getitem__(self, position: int | slice) -> Document | list[Document]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        position = int(position)
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(position)
        try:
            line = json.loads(self._lines[self._offsets[position] : self._offsets[position + 1]])
            return Document(line["id"], line["contents"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadIndex(
                f"{self._path}: line {position + 1} is damaged; copy or build the index again."
            ) from error


def write_documents(documents: Iterable[Document], folder: Path) -> None:
    """Write the two files of `StoredDocuments` into an existing folder."""
    offsets = [0]
    with (folder / LINES).open("wb") as stream:
        for document in documents:
            offsets.append(offsets[-1] + stream.write(document_line(document)))
    np.save(folder / OFFSETS, np.array(offsets, np.int64))


def document_line(document: Document) -> bytes:
    """The canonical line of a document, ASCII, line break included."""
    return document.to_json().encode("ascii") + b"\n"
