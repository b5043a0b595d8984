r"""The files that hold a corpus: JSON lines, a JSON list, or DPR's table; plain or gzip-compressed, one passage at a time.

| form | file |
|---|---|
| Search-R1, FlashRAG, BEIR | lines ``{"id", "contents"}``, ``{"id", "text"}``, ``{"_id", "title", "text"}`` |
| HippoRAG, Pyserini | ``{"idx", "title", "text"}``, ``{"docid", "content"}`` |
| KILT | ``{"wikipedia_id", "wikipedia_title", "text": [paragraph, ...]}`` |
| a list | ``.json`` that begins with ``[``: the same objects |
| DPR | ``.tsv``: ``id``, ``text``, ``title``, with or without that line |

Only regular files are read, and bounds on lines keep a small archive from filling the memory; both can be raised.
"""

import csv
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from retriever.corpus import Document, document_from
from retriever.errors import BadCorpus, BadSetting
from retriever.file_kinds import kind_of_file

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
