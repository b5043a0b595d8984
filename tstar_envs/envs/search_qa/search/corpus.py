"""The file of passages, read without the retriever package, which may not be installed here."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tstar_envs.contents import digest_all
from tstar_envs.data.files import parse_json, read_lines


def first_contents(corpus: Path, count: int = 3) -> tuple[str, ...]:
    """The contents of the first passages of a shipped corpus."""
    lines = itertools.islice(read_lines(corpus), count)
    return tuple(str(parse_json(line, f"{corpus}, line {number}")["contents"]) for number, line in lines)


def corpus_digest(corpus: Path) -> str:
    """The digest that an ``EmbeddedSearcher`` over this file has, without an index; of a file that is not in the shipped form
    (``{"id", "contents"}`` a line) one of its lines.
    """
    # Not parse_json: its look at the depth would double the time; whatever is wrong with a line, its text counts instead.
    lines = [line for _, line in read_lines(corpus)]
    try:
        documents = [(record["id"], record["contents"].partition("\n")) for record in map(json.loads, lines)]
        return digest_all(
            text for id_, (heading, _, body) in documents for text in (id_, f"{heading}\n{body}")
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return digest_all(lines)
