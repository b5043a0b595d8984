"""Corpora: reading corpus files of many formats, and text normalisation."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import mmap
import os
import stat
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from retriever.errors import BadCorpus, BadIndex, BadSetting
from retriever.file_kinds import kind_of_file

# Separators, punctuation, symbols, control characters and (lone) surrogates.
_SPACE_CATEGORIES = frozenset("ZPSC")
_MOST_KEPT = 1 << 16  # cached characters (Unicode has a million)


class _SpaceTable(dict[int, int | str]):
    r"""Lazy `str.translate` table.

    A regular expression on ``\w`` would be shorter, but it treats combining marks as punctuation, which splits words of Indic scripts.
    """

    def __missing__(self, codepoint: int) -> int | str:
        category = unicodedata.category(chr(codepoint))
        value: int | str = " " if category[0] in _SPACE_CATEGORIES else codepoint
        if len(self) < _MOST_KEPT:
            self[codepoint] = value
        return value


_SPACES = _SpaceTable()


def normalise(text: str) -> str:
    """Normalise a query; two queries with the same normal form get the same answer.

    Steps: NFKC, case folding, punctuation and symbols to space, white space collapsed. Nothing is stemmed,
    sorted or dropped, because word order and stop words matter to dense encoders.

    Args:
        text: Any string, lone surrogates included.

    Returns:
        Words separated by single spaces; ``""`` if the text has no word character.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.translate(_SPACES).split())


def tokenise(text: str) -> list[str]:
    """Split a text into normalised words, in order and with repetitions."""
    return normalise(text).split()


@dataclass(frozen=True, slots=True)
class Document:
    r"""One passage of a corpus.

    >>> from retriever import Document
    >>> Document("7", '"Dune"\nA novel.').title
    'Dune'

    Attributes:
        id: Identifier, unique in the corpus.
        contents: Title line and body, as stored in the corpus.
    """

    id: str
    contents: str

    @property
    def title(self) -> str:
        """First line, without the enclosing quotes; doubled quotes become single."""
        line = self.contents.partition("\n")[0].strip()
        if len(line) >= 2 and line.startswith('"') and line.endswith('"'):
            return line[1:-1].replace('""', '"')
        return line

    @property
    def text(self) -> str:
        """Text after the first line; ``""`` if there is only one line."""
        return self.contents.partition("\n")[2]

    def to_json(self) -> str:
        """Serialize as a canonical corpus line, without a line break."""
        return json.dumps({"id": self.id, "contents": self.contents})


_IDS = ("id", "_id", "docid", "doc_id", "pid", "idx", "wikipedia_id")
_BODIES = ("contents", "content", "text", "passage", "body", "sentences")
_TITLES = ("title", "wikipedia_title")


def document_from(value: object, where: str) -> Document:
    """Parse a corpus record of any published format.

    The id field is ``id``, ``_id`` (BEIR), ``docid`` (Pyserini), ``idx`` (HippoRAG) or ``wikipedia_id`` (KILT). The text field is
    ``contents`` (Search-R1, FlashRAG), or ``text`` or ``content`` with an optional ``title``. Lists of paragraphs (KILT) are joined.

    Raises:
        BadCorpus: The record has none of these formats; the message begins with ``where``.
    """
    if not isinstance(value, dict):
        raise BadCorpus(
            f'{where}: expected an object with "id" and "contents", found {type(value).__name__}.'
        )
    name = next((name for name in _IDS if name in value), "id")
    body = next((body for body in _BODIES if value.get(body) is not None), "contents")
    for field in (name, body):
        if field not in value:
            raise BadCorpus(
                f'{where}: the field "{field}" is missing; every line needs "id" and "contents" (or "title" and "text").'
            )
    identifier, contents = value[name], value[body]
    # Public corpora number their passages. bool is a subclass of int, but a mistake here.
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise BadCorpus(
            f'{where}: the field "{name}" must be a string or an integer, found {identifier!r:.80}.'
        )
    if isinstance(contents, list) and all(isinstance(sentences, list) for sentences in contents):
        contents = [sentence for sentences in contents for sentence in sentences]  # HotpotQA's abstracts
    if isinstance(contents, list) and all(isinstance(paragraph, str) for paragraph in contents):
        contents = " ".join(" ".join(paragraph.split()) for paragraph in contents)
    if not isinstance(contents, str):
        raise BadCorpus(f'{where}: the field "{body}" must be a string, found {contents!r:.80}.')
    titled = next((title for title in _TITLES if value.get(title) is not None), "")
    if body != "contents" and titled:
        title = value[titled]
        if not isinstance(title, str):
            raise BadCorpus(f'{where}: the field "{titled}" must be a string, found {title!r:.80}.')
        # The title becomes the first line of the contents, in quotes as in wiki-18.
        doubled = " ".join(title.split()).replace('"', '""')
        contents = f'"{doubled}"\n{contents}'
    return Document(str(identifier), contents)


def check_documents(documents: Sequence[Document]) -> None:
    """Check that an index can be built over documents.

    Raises:
        BadCorpus: No document, a repeated id, or no word in any document.
    """
    if not documents:
        raise BadCorpus("an index needs at least one document, found 0.")
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise BadCorpus(f'two documents have the field "id" {document.id!r}; ids must be unique.')
        seen.add(document.id)
    if not any(tokenise(document.contents) for document in documents):
        raise BadCorpus(f'none of the {len(documents)} documents has a word in the field "contents".')


def corpus_sha256(documents: Iterable[Document]) -> str:
    """Compute the SHA-256 (hex) of the canonical lines; a corpus and its compressed copy agree."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.to_json().encode("ascii") + b"\n")
    return digest.hexdigest()


LINES = "documents.jsonl"
OFFSETS = "offsets.npy"


class StoredDocuments(Sequence[Document]):
    """Documents of an index folder, read on access.

    Args:
        folder: Folder with ``documents.jsonl`` (canonical lines) and ``offsets.npy`` (int64, shape (n + 1,)).

    Raises:
        BadIndex: The two files do not match; the message names them.
        OSError, ValueError: A file is missing or malformed.
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
    """Serialize a document as a canonical ASCII line, with its line break."""
    return document.to_json().encode("ascii") + b"\n"


_Stream: TypeAlias = gzip.GzipFile | io.BufferedReader
_DPR = ("id", "text", "title")
_MOST_LISTED = 20
_BOM = b"\xef\xbb\xbf"
# environment variable -> default limit
_LIMITS = {
    "RETRIEVER_MAX_LINE_BYTES": 64 << 20,
    "RETRIEVER_MAX_LINES": 1_000_000_000,
    "RETRIEVER_MAX_BLANK_LINES": 1_000_000,
}


class Line(NamedTuple):
    """One document of a corpus file, and its position."""

    document: Document
    number: int
    """Line number, from 1."""
    end: int
    """Position to resume from: byte offset of the next line in the uncompressed file, or number of the entry in a JSON list."""


def stream_corpus(
    path: str | Path, start: int = 0, number: int = 0, faults: list[str] | None = None
) -> Iterator[Line]:
    """Stream a corpus, one passage at a time.

    Blank lines are skipped. Repeated ids are not detected, because that takes memory.

    >>> from retriever import stream_corpus
    >>> from retriever.cli import mini_corpus
    >>> next(iter(stream_corpus(mini_corpus()))).number
    1

    Args:
        path: Corpus file, plain or ``.gz``: JSON Lines, a JSON list (``.json``) or a table (``.tsv``). Unknown fields are ignored.
        start: Where to resume, the ``end`` of a line; 0 reads from the beginning.
        number: Number of that line.
        faults: Collects the errors of single lines, which are then skipped; None raises the first one.

    Yields:
        The documents in file order.

    Raises:
        FileNotFoundError: The file is missing.
        BadCorpus: Not a regular file, damaged, beyond a limit, or a malformed line; the message names file, line and field.
    """
    path = Path(path)
    _require_regular(path)
    packed = path.suffix == ".gz"
    kind = kind_of_file(path)
    if kind and not (packed and kind.startswith("packed with gzip")):
        raise BadCorpus(f"{path}: not a corpus but {kind}.")
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            if _suffix(path) == ".json" and _first_sign(stream, path) == b"[":
                yield from _entries(stream, path, start, faults)
                return
            columns = _columns(stream, path) if _suffix(path) == ".tsv" else None
            stream.seek(start)
            for end, at, line in _lines(stream, path, start, number):
                where = f"{path}, line {at}"
                try:
                    value = _json(line, where) if columns is None else _row(line, columns, where, at)
                    document = None if value is None else document_from(value, where)
                except BadCorpus as error:
                    if faults is None:
                        raise
                    faults.append(str(error))
                    continue
                if document is not None:
                    yield Line(document, at, end)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadCorpus(f"{path}: damaged gzip ({error}); fetch it again.") from error


def _require_regular(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise BadCorpus(
            f"{str(path)[:200]}: cannot be read: {error if isinstance(error, ValueError) else error.strerror}."
        ) from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise BadCorpus(f"{path}: {what}, not a regular file; name the file of the corpus.")


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _limit(variable: str) -> int:
    given = os.environ.get(variable, "")
    if not given:
        return _LIMITS[variable]
    if not (given.isascii() and given.isdigit() and len(given) < 19 and int(given)):
        raise BadSetting(f"{variable} must be a whole number of at least 1, got {given!r:.60}.")
    return int(given)


def _lines(stream: _Stream, path: Path, start: int, number: int) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over non-blank lines as (offset of the next line, number, line)."""
    longest, most, most_blank = (_limit(name) for name in _LIMITS)
    end, blank = start, 0
    while line := stream.readline(longest + 1):
        number += 1
        end += len(line)
        if len(line) > longest:
            raise BadCorpus(
                f"{path}, line {number}: more than {longest:,} bytes; to allow that, set RETRIEVER_MAX_LINE_BYTES."
            )
        if number > most:
            raise BadCorpus(f"{path}: more than {most:,} lines; to allow that, set RETRIEVER_MAX_LINES.")
        if end == len(line):
            line = line.removeprefix(_BOM)
        if line.strip():
            yield end, number, line
            continue
        blank += 1
        if blank > most_blank:
            raise BadCorpus(
                f"{path}: more than {most_blank:,} blank lines; to allow that, set RETRIEVER_MAX_BLANK_LINES."
            )


def _json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # not JSON, not UTF-8, a number with too many digits, or nested too deep
        raise BadCorpus(f"{where}: not a line of JSON in UTF-8 ({error}).") from error


def _first_sign(stream: _Stream, path: Path) -> bytes:
    """Peek at the first non-blank character, then rewind the stream."""
    first = next((line.lstrip()[:1] for _, _, line in _lines(stream, path, 0, 0)), b"")
    stream.seek(0)
    return first


def _entries(stream: _Stream, path: Path, start: int, faults: list[str] | None) -> Iterator[Line]:
    """Iterate over the objects of a JSON list; the whole file is read at once."""
    longest = 16 * _limit("RETRIEVER_MAX_LINE_BYTES")
    content = stream.read(longest + 1)
    if len(content) > longest:
        raise BadCorpus(
            f"{path}: a list of more than {longest:,} bytes; write one object a line, or set RETRIEVER_MAX_LINE_BYTES."
        )
    for number, value in enumerate(_json(content.removeprefix(_BOM), str(path)), start=1):
        if number <= start:
            continue
        try:
            yield Line(document_from(value, f"{path}, entry {number}"), number, number)
        except BadCorpus as error:
            if faults is None:
                raise
            faults.append(str(error))


def _columns(stream: _Stream, path: Path) -> tuple[str, ...]:
    """Read the columns of a table from its first line.

    Without a header they are DPR's.
    """
    cells = next(
        (_cells(line, f"{path}, line {number}") for _, number, line in _lines(stream, path, 0, 0)), []
    )
    named = tuple(cell.strip().lower() for cell in cells)
    return named if {"id", "_id"} & set(named) and {"text", "contents"} & set(named) else _DPR


def _row(line: bytes, columns: tuple[str, ...], where: str, number: int) -> dict[str, str] | None:
    cells = _cells(line, where)
    if number == 1 and tuple(cell.strip().lower() for cell in cells) == columns:
        return None
    if len(cells) != len(columns):
        raise BadCorpus(f"{where}: {len(cells)} columns, expected {len(columns)} ({', '.join(columns)}).")
    return dict(zip(columns, cells, strict=True))


def _cells(line: bytes, where: str) -> list[str]:
    csv.field_size_limit(_limit("RETRIEVER_MAX_LINE_BYTES"))
    try:
        return next(csv.reader([line.decode("utf-8").rstrip("\r\n")], delimiter="\t"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadCorpus(f"{where}: not a line of a table in UTF-8 ({error}).") from error


def read_corpus(path: str | Path) -> list[Document]:
    """Read a whole corpus into memory; see `stream_corpus` for the formats.

    >>> from retriever import read_corpus
    >>> from retriever.cli import mini_corpus
    >>> documents = read_corpus(mini_corpus())

    Returns:
        The documents in file order.

    Raises:
        FileNotFoundError: The file is missing.
        BadCorpus: Malformed lines, repeated ids, or no document; the message names file, line and field of up to 20 errors.
    """
    documents: list[Document] = []
    first_line: dict[str, int] = {}
    faults: list[str] = []
    for document, number, _ in stream_corpus(path, faults=faults):
        if document.id in first_line:
            faults.append(repeated_id(path, number, document.id, first_line[document.id]))
            continue
        first_line[document.id] = number
        documents.append(document)
    if faults:
        more = f"\nand {len(faults) - _MOST_LISTED:,} more" if len(faults) > _MOST_LISTED else ""
        raise BadCorpus("\n".join(faults[:_MOST_LISTED]) + more)
    if not documents:
        raise BadCorpus(f"{path}: no documents in this file.")
    return documents


def repeated_id(path: str | Path, number: int, identifier: str, first: int) -> str:
    """Format the error message for a repeated id."""
    return (
        f'{path}, line {number}: the field "id" repeats {identifier!r} of line {first}; ids must be unique.'
    )
