"""The file of passages, read without the retriever package, which may not be installed here."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

from tstar_envs.contents import digest_all
from tstar_envs.data.files import read_lines


def first_contents(corpus: Path, count: int = 3) -> tuple[str, ...]:
    """The contents of a corpus' first passages."""
    with (
        gzip.open(corpus, "rt", encoding="utf-8")
        if corpus.suffix == ".gz"
        else corpus.open(encoding="utf-8") as lines
    ):
        return tuple(str(json.loads(line)["contents"]) for line in itertools.islice(lines, count))


def corpus_digest(corpus: Path) -> str:
    """The digest that an ``EmbeddedSearcher`` over this file has, without an index; of a file that is not in the shipped form
    (``{"id", "contents"}`` a line) one of its lines.
    """
    lines = [line for _, line in read_lines(corpus)]
    try:
        documents = [(record["id"], record["contents"].partition("\n")) for record in map(json.loads, lines)]
        return digest_all(
            text for id_, (heading, _, body) in documents for text in (id_, f"{heading}\n{body}")
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return digest_all(lines)
