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


def _lines(path: Path) -> Iterator[bytes]:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as stream:
            yield from stream
    else:
        with path.open("rb") as stream:
            yield from stream


def read_corpus(path: str | Path) -> list[Document]:
    """Read a corpus of JSON lines, plain or gzip-compressed (``.gz``), UTF-8; blank lines are skipped.

    Args:
        path: The file. Fields other than ``id`` and ``contents`` are ignored.

    Returns:
        The documents in file order.

    Raises:
        FileNotFoundError: There is no such file.
        BadCorpus: A line is malformed, an id occurs twice, or there is no document; the message names
            file, line and field.
    """
    path = Path(path)
    documents: list[Document] = []
    first_line: dict[str, int] = {}
    number = 0
    try:
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                document = _document(json.loads(line), where)
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadCorpus(f"{where}: not a line of JSON in UTF-8 ({error}).") from error
            if document.id in first_line:
                raise BadCorpus(
                    f'{where}: the field "id" repeats {document.id!r} of line {first_line[document.id]}; '
                    "ids must be unique."
                )
            first_line[document.id] = number
            documents.append(document)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadCorpus(f"{path}: damaged gzip after line {number} ({error}); fetch it again.") from error
    if not documents:
        raise BadCorpus(f"{path}: no documents in this file.")
    return documents


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
