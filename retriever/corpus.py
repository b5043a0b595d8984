r"""Documents in Search-R1's form and the JSON-lines files that hold them.

A line is ``{"id": "0", "contents": "\"Title\"\nbody"}``: the title is the first line of the contents
and keeps its double quotes, quotes inside the title are doubled (the wiki-18 corpus of Search-R1).
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from retriever.errors import BadCorpus
from retriever.text import tokenise


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


def _document(value: object, where: str) -> Document:
    if not isinstance(value, dict):
        raise BadCorpus(
            f'{where}: expected an object with "id" and "contents", found {type(value).__name__}.'
        )
    for field in ("id", "contents"):
        if field not in value:
            raise BadCorpus(f'{where}: the field "{field}" is missing; every line needs "id" and "contents".')
    identifier, contents = value["id"], value["contents"]
    # Public corpora number their passages; bool is an int to Python but a mistake here.
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise BadCorpus(f'{where}: the field "id" must be a string or an integer, found {identifier!r}.')
    if not isinstance(contents, str):
        raise BadCorpus(f'{where}: the field "contents" must be a string, found {contents!r:.80}.')
    return Document(str(identifier), contents)


class Line(NamedTuple):
    """One document of a corpus file and where its line stands."""

    document: Document
    number: int
    """Counted from 1."""
    end: int
    """Offset of the next line in the (uncompressed) file, in bytes."""


def stream_corpus(path: str | Path, start: int = 0, number: int = 0) -> Iterator[Line]:
    """Read a corpus of JSON lines, plain or gzip-compressed (``.gz``), UTF-8, one line at a time.

    Blank lines are skipped. Ids are not compared: that takes memory, and each caller has its own way.

    Args:
        path: The file. Fields other than ``id`` and ``contents`` are ignored.
        start: Offset in the (uncompressed) file to go on from, the ``end`` of a line.
        number: The number of that line.

    Yields:
        The documents in file order.

    Raises:
        FileNotFoundError: There is no such file.
        BadCorpus: A line is malformed; the message names file, line and field.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            stream.seek(start)
            end = start
            for number, line in enumerate(stream, start=number + 1):  # noqa: B020  # goes on from where it stands
                end += len(line)
                if line.strip():
                    yield Line(_parse(line, f"{path}, line {number}"), number, end)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadCorpus(f"{path}: damaged gzip after line {number} ({error}); fetch it again.") from error


def _parse(line: bytes, where: str) -> Document:
    try:
        return _document(json.loads(line), where)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCorpus(f"{where}: not a line of JSON in UTF-8 ({error}).") from error


def read_corpus(path: str | Path) -> list[Document]:
    """Read a whole corpus into memory; see `stream_corpus` for its form.

    Returns:
        The documents in file order.

    Raises:
        FileNotFoundError: There is no such file.
        BadCorpus: A line is malformed, an id occurs twice, or there is no document; the message names
            file, line and field.
    """
    documents: list[Document] = []
    first_line: dict[str, int] = {}
    for document, number, _ in stream_corpus(path):
        if document.id in first_line:
            raise BadCorpus(repeated_id(path, number, document.id, first_line[document.id]))
        first_line[document.id] = number
        documents.append(document)
    if not documents:
        raise BadCorpus(f"{path}: no documents in this file.")
    return documents


def repeated_id(path: str | Path, number: int, identifier: str, first: int) -> str:
    """What is said of an id that occurs on two lines."""
    return f'{path}, line {number}: the field "id" repeats {identifier!r} of line {first}; ids must be unique.'


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
