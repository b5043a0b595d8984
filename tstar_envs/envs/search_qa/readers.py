"""Public question files as they are published, recognised by their keys.

| form | keys |
|---|---|
| FlashRAG lines | ``id``, ``question``, ``golden_answers`` |
| NQ-open lines | ``question``, ``answer`` (a list) |
| TriviaQA, official JSON | ``Data`` with ``QuestionId``, ``Question``, ``Answer`` |
| PopQA TSV | ``id``, ``question``, ``possible_answers`` (JSON in a column) |
| HotpotQA and 2WikiMultihopQA JSON | ``_id``, ``question``, ``answer``, ``type`` |
| MuSiQue lines | ``id``, ``question``, ``answer``, ``answer_aliases``, ``answerable`` |
| Bamboogle CSV | ``Question``, ``Answer`` |
| Search-R1 parquet | ``question``, ``golden_answers`` or ``reward_model.ground_truth.target`` |

Lines, JSON lists, tables and parquet rows all come out as records; one function then reads a record of any form. What cannot be
read is named by file, line (entry, row) and field.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.errors import BadData, MissingExtra

Record = Mapping[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".tsv", ".csv", ".parquet")
_LONGEST_FIELD = 10_000_000  # characters; the csv module's own limit is too low for long alias lists


class Entry(NamedTuple):
    """A question as published; ``metadata`` is what the file says beyond it, ``where`` names file and line for errors."""

    where: str
    id: str
    question: str
    answers: tuple[str, ...]
    kind: str
    metadata: Record


def read_entries(path: Path) -> Iterator[Entry]:
    """The questions of a file, in order.

    Args:
        path: a file with one of ``SUFFIXES``.

    Raises:
        BadData: the file, or something in it, cannot be read.
        MissingExtra: a parquet file, and pyarrow is not installed.
    """
    stem = path.name.partition(".")[0]
    for where, number, record in _records(path):
        entry = _entry(record, f"{stem}-{number}", f"{path}, {where}")
        if entry is not None:
            yield entry


def _entry(record: Any, unnamed: str, where: str) -> Entry | None:
    """One record of any form; None for MuSiQue's questions that cannot be answered."""
    if not isinstance(record, Mapping):
        raise BadData(
            f"{where}: expected an object with 'id', 'question' and 'golden_answers' (or another known form), found {record!r:.80}"
        )
    if record.get("answerable") is False:
        return None
    question = _text(record, ("question", "Question"), where)
    named = next((key for key in ("id", "_id", "QuestionId") if record.get(key) not in (None, "")), "id")
    id_ = record.get(named) if record.get(named) not in (None, "") else unnamed
    if isinstance(id_, bool) or not isinstance(id_, str | int) or ("golden_answers" in record and "id" not in record):
        raise BadData(f"{where}: field {named!r} must be a string or a whole number, found {id_!r:.80}")
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise BadData(f"{where}: field 'metadata' must be an object, found {metadata!r:.80}")
    kind = metadata.get("kind") or metadata.get("type") or record.get("type") or record.get("prop") or ""
    return Entry(where, str(id_), question, _answers(record, where), str(kind), metadata)


def _text(record: Record, names: tuple[str, ...], where: str) -> str:
    for name in names:
        if name in record:
            if not isinstance(record[name], str) or not record[name].strip():
                raise BadData(f"{where}: field {name!r} must be a text, found {record[name]!r:.80}")
            return str(record[name])
    raise BadData(f"{where}: field {names[0]!r} is missing; found {', '.join(map(str, record)) or 'no field'}")


def _answers(record: Record, where: str) -> tuple[str, ...]:
    """Every accepted answer, the main one first, each once."""
    for name, read in _ANSWERS.items():
        if name in record:
            try:
                found = read(record[name])
            except (KeyError, TypeError, json.JSONDecodeError) as error:
                raise BadData(f"{where}: field {name!r} is not what its form has there: {record[name]!r:.80} ({error!r})") from error
            break
    else:
        raise BadData(f"{where}: no field with answers ({', '.join(_ANSWERS)}); found {', '.join(map(str, record))}")
    texts = _texts(found, name, where)
    if not texts:
        raise BadData(f"{where}: field {name!r} holds no answer")
    aliases = record.get("answer_aliases") or []
    if not isinstance(aliases, list):
        raise BadData(f"{where}: field 'answer_aliases' must be a list, found {aliases!r:.80}")
    return tuple(dict.fromkeys((*texts, *_texts(aliases, "answer_aliases", where))))


def _texts(found: list[Any], name: str, where: str) -> list[str]:
    """The answers of a field that are not blank, each once."""
    for answer in found:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise BadData(f"{where}: field {name!r} holds {answer!r:.80}; every answer must be a text")
    return list(dict.fromkeys(str(answer) for answer in found if str(answer).strip()))


# A text would come apart into its letters and an object into its keys, each of which would count as an answer.
def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is expected")
    return value


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int | float) else _listed(value)


def _triviaqa(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else [value["Value"], *_listed(value.get("Aliases") or [])]


def _popqa(value: Any) -> list[Any]:
    return _several(json.loads(value)) if isinstance(value, str) else _several(value)


def _search_r1(value: Any) -> list[Any]:
    return _several(value["ground_truth"]["target"])


# In order of preference; "answer" is a list in NQ-open and one text elsewhere.
_ANSWERS: dict[str, Callable[[Any], list[Any]]] = {
    "golden_answers": _listed, "possible_answers": _popqa, "reward_model": _search_r1, "answer": _several, "Answer": _triviaqa,
}  # fmt: skip


def _records(path: Path) -> Iterator[tuple[str, int, Any]]:
    """(where, number from 1, record) of each line, entry or row."""
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if suffix == ".parquet":
        yield from _parquet(path)
    elif suffix in (".tsv", ".csv"):
        yield from _table(path, "\t" if suffix == ".tsv" else ",")
    elif suffix.startswith(".jsonl"):
        for number, line in enumerate(text_lines(path), start=1):
            if line.strip():
                yield f"line {number}", number, _json(line, f"{path}, line {number}")
    elif suffix.startswith(".json"):
        content = _json("".join(text_lines(path)), str(path))
        entries = content.get("Data") if isinstance(content, dict) else content
        if not isinstance(entries, list):
            raise BadData(f"{path}: expected a list of questions, or an object with one under 'Data', found {type(content).__name__}")
        for number, record in enumerate(entries, start=1):
            yield f"entry {number}", number, record
    else:
        raise BadData(f"{path}: question files end in {', '.join(SUFFIXES)}")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadData(f"{where}: not JSON ({error})") from error


def _table(path: Path, delimiter: str) -> Iterator[tuple[str, int, Any]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.DictReader(text_lines(path), delimiter=delimiter)
    try:
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                columns = len(reader.fieldnames or ())
                raise BadData(f"{path}, line {reader.line_num}: {columns} columns expected, as the first line names them")
            yield f"line {reader.line_num}", number, row
    except csv.Error as error:
        raise BadData(f"{path}, line {reader.line_num}: {error}") from error


def _parquet(path: Path) -> Iterator[tuple[str, int, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtra(f"reading {path.name}", "pyarrow", "parquet") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for record in batch.to_pylist():
                    number += 1
                    yield f"row {number}", number, record
    except ArrowException as error:
        raise BadData(f"{path}, after row {number}: {error}") from error


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file in UTF-8, plain or gzipped.

    Raises:
        BadData: it is neither.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as handle:
            yield from handle
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadData(f"{path}: not a text file in UTF-8, or a damaged gzip ({error})") from error
