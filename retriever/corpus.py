"""Corpora: passages in files of many forms, and documents cut into passages."""

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
_MOST_KEPT = 1 << 16  # characters of the table, of a million that there are


class _SpaceTable(dict[int, int | str]):
    r"""A `str.translate` table that is filled as characters turn up.

    A regular expression on ``\w`` would be shorter, but it treats combining marks as punctuation and
    so would cut words of Indic scripts into pieces.
    """

    def __missing__(self, codepoint: int) -> int | str:
        category = unicodedata.category(chr(codepoint))
        value: int | str = " " if category[0] in _SPACE_CATEGORIES else codepoint
        if len(self) < _MOST_KEPT:
            self[codepoint] = value
        return value


_SPACES = _SpaceTable()


def normalise(text: str) -> str:
    """Return ``text`` in the form in which two queries are the same query.

    NFKC, case folding, punctuation and symbols to space, white space collapsed. Nothing is stemmed,
    sorted or dropped: word order and stop words matter to dense encoders.

    Args:
        text: Any string, lone surrogates included.

    Returns:
        Words separated by single spaces; ``""`` if there is no word character.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.translate(_SPACES).split())


def tokenise(text: str) -> list[str]:
    """Return the words of `normalise`, in order and with repetitions."""
    return normalise(text).split()


@dataclass(frozen=True, slots=True)
class Document:
    """One passage.

    Attributes:
        id: Unique name within its corpus.
        contents: Title line and body, as stored in the corpus.
    """

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The first line without the enclosing quotes, doubled quotes inside it made single."""
        line = self.contents.partition("\n")[0].strip()
        if len(line) >= 2 and line.startswith('"') and line.endswith('"'):
            return line[1:-1].replace('""', '"')
        return line

    @property
    def text(self) -> str:
        """Everything after the first line; ``""`` if there is only one line."""
        return self.contents.partition("\n")[2]

    def to_json(self) -> str:
        """The canonical corpus line, without a line break."""
        return json.dumps({"id": self.id, "contents": self.contents})


_IDS = ("id", "_id", "docid", "doc_id", "pid", "idx", "wikipedia_id")
_BODIES = ("contents", "content", "text", "passage", "body", "sentences")
_TITLES = ("title", "wikipedia_title")


def document_from(value: object, where: str) -> Document:
    """A document of any form that is published.

    ``id``, ``_id`` (BEIR), ``docid`` (Pyserini), ``idx`` (HippoRAG) or ``wikipedia_id`` (KILT); and ``contents`` (Search-R1,
    FlashRAG), or ``text`` or ``content``, with ``title`` or alone. A list of paragraphs (KILT) is one text.

    Raises:
        BadCorpus: It is of none; the message begins with ``where``.
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
    # Public corpora number their passages; bool is an int to Python but a mistake here.
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
        # The title is one line of the contents, in quotes as wiki-18 has it.
        doubled = " ".join(title.split()).replace('"', '""')
        contents = f'"{doubled}"\n{contents}'
    return Document(str(identifier), contents)


def check_documents(documents: Sequence[Document]) -> None:
    """Refuse what no index can hold.

    Raises:
        BadCorpus: There is no document, an id occurs twice, or no document holds a word.
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
    """SHA-256 (hex) of the canonical lines, so that a corpus and its compressed copy agree."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.to_json().encode("ascii") + b"\n")
    return digest.hexdigest()


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


_Stream: TypeAlias = gzip.GzipFile | io.BufferedReader
_DPR = ("id", "text", "title")
_MOST_LISTED = 20
_BOM = b"\xef\xbb\xbf"
# variable of the environment -> bound
_LIMITS = {
    "RETRIEVER_MAX_LINE_BYTES": 64 << 20,
    "RETRIEVER_MAX_LINES": 1_000_000_000,
    "RETRIEVER_MAX_BLANK_LINES": 1_000_000,
}


class Line(NamedTuple):
    """One document of a corpus file and where its line stands."""

    document: Document
    number: int
    """Counted from 1."""
    end: int
    """Where to go on: offset of the next line in the (uncompressed) file, in bytes; of a list, the number of the entry."""


def stream_corpus(
    path: str | Path, start: int = 0, number: int = 0, faults: list[str] | None = None
) -> Iterator[Line]:
    """Read a corpus, one passage at a time.

    Blank lines are skipped. Ids are not compared: that takes memory, and each caller has its own way.

    Args:
        path: The file; its form is known by its ending and keys. Other fields are ignored.
        start: Where to go on from, the ``end`` of a line.
        number: The number of that line.
        faults: Takes what is wrong with single lines, so that the others are read; else the first is raised.

    Yields:
        The documents in file order.

    Raises:
        FileNotFoundError: There is no such file.
        BadCorpus: No regular file, damaged, beyond a limit, or a line is malformed; the message names file, line and field.
    """
    path = Path(path)
    _require_regular(path)
    packed = path.suffix == ".gz"
    kind = kind_of_file(path)
    if kind and not (packed and kind.startswith("packed with gzip")):
        raise BadCorpus(f"{path}: no corpus but {kind}.")
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
    """(offset behind it, number, line) of the lines that are not blank."""
    longest, most, most_blank = (_limit(name) for name in _LIMITS)
    end, blank = start, 0
    while line := stream.readline(longest + 1):
        number += 1
        end += len(line)
        if len(line) > longest:
            raise BadCorpus(
                f"{path}, line {number}: more than {longest:,} bytes; if that is meant, set RETRIEVER_MAX_LINE_BYTES."
            )
        if number > most:
            raise BadCorpus(f"{path}: more than {most:,} lines; if that is meant, set RETRIEVER_MAX_LINES.")
        if end == len(line):
            line = line.removeprefix(_BOM)
        if line.strip():
            yield end, number, line
            continue
        blank += 1
        if blank > most_blank:
            raise BadCorpus(
                f"{path}: more than {most_blank:,} blank lines; if that is meant, set RETRIEVER_MAX_BLANK_LINES."
            )


def _json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # not JSON, not UTF-8, a number of thousands of digits; too deep
        raise BadCorpus(f"{where}: not a line of JSON in UTF-8 ({error}).") from error


def _first_sign(stream: _Stream, path: Path) -> bytes:
    """The first character that is not blank; the stream stands at its beginning again."""
    first = next((line.lstrip()[:1] for _, _, line in _lines(stream, path, 0, 0)), b"")
    stream.seek(0)
    return first


def _entries(stream: _Stream, path: Path, start: int, faults: list[str] | None) -> Iterator[Line]:
    """The objects of a list, which is read at once."""
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
    """The columns of a table: those of the first line if it names an id and a text, else DPR's."""
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
    """Read a whole corpus into memory; see `stream_corpus` for its forms.

    Returns:
        The documents in file order.

    Raises:
        FileNotFoundError: There is no such file.
        BadCorpus: Lines are malformed, ids occur twice, or there is no document; the message names
            file, line and field, of 20 faults at most.
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
    """What is said of an id that occurs on two lines."""
    return (
        f'{path}, line {number}: the field "id" repeats {identifier!r} of line {first}; ids must be unique.'
    )
