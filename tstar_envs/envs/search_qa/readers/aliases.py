"""The other names of 2WikiMultihopQA's answers, which it publishes in a file of their own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tstar_envs.data.files import parse_json, read_lines
from tstar_envs.envs.search_qa.readers.answers import Record
from tstar_envs.errors import BadData


def read_aliases(path: Path, wanted: Collection[str]) -> dict[str, tuple[str, ...]]:
    """2Wiki's ``id_aliases.json``: other names of the entities that are answers, lines of ``Q_id``, ``aliases`` and ``demonyms``.

    Args:
        path: the file.
        wanted: the entities that are asked for (``Entry.answer_id``).

    Raises:
        BadData: a line is of another form.
    """
    found: dict[str, tuple[str, ...]] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        record = parse_json(line, f"{path}, line {number}")
        if record.get("Q_id") not in wanted:
            continue
        names = [*_names(record, "aliases", path, number), *_names(record, "demonyms", path, number)]
        found[record["Q_id"]] = tuple(dict.fromkeys(name for name in names if name.strip()))
    return found


def _names(record: Record, field: str, path: Path, number: int) -> list[str]:
    names = record.get(field) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadData(f"{path}, line {number}: field {field!r} must be a list of texts, found {names!r:.80}")
    return names
