r"""Documents in Search-R1's form, and the files that hold them or others that can be read as such (`retriever.corpus_files`).

A line is ``{"id": "0", "contents": "\"Title\"\nbody"}``: the title is the first line of the contents
and keeps its double quotes, quotes inside the title are doubled (the wiki-18 corpus of Search-R1).
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
