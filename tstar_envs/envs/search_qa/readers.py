"""Public question files as they are published, recognised by their keys.

| form | keys |
|---|---|
| FlashRAG lines | ``id``, ``question``, ``golden_answers`` |
| NQ-open lines | ``question``, ``answer`` (a list) |
| DPR's lists | ``question``, ``answers``; its CSV has no header: question, list |
| KILT lines | ``id``, ``input``, ``output`` (a list of objects with ``answer``) |
| TriviaQA, official JSON | ``Data`` with ``QuestionId``, ``Question``, ``Answer`` |
| TriviaQA of Hugging Face | ``question_id``, ``question``, ``answer`` (an object with ``value``, ``aliases``, ``normalized_aliases``) |
| PopQA TSV | ``id``, ``question``, ``possible_answers`` (JSON in a column) |
| HotpotQA and 2WikiMultihopQA JSON | ``_id``, ``question``, ``answer``, ``type``; 2Wiki: ``answer_id``, see ``read_aliases`` |
| MuSiQue lines | ``id``, ``question``, ``answer``, ``answer_aliases``, ``answerable`` |
| Bamboogle CSV | ``Question``, ``Answer`` |
| Search-R1 parquet | ``data_source``, ``question`` (or ``extra_info.question``), ``golden_answers`` or ``reward_model.ground_truth`` |

Lines, JSON lists, tables and parquet rows all come out as records; one function then reads a record of any form. What cannot be
read is named by file, line (entry, row) and field.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.data.faults import Faults
from tstar_envs.data.files import parse_json, read_lines, read_text, regular_file
from tstar_envs.data.limits import FILE_BYTES, QUESTIONS
from tstar_envs.envs.search_qa.answers import Record, answers_of
from tstar_envs.errors import BadData, MissingExtra

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".tsv", ".csv", ".parquet")
_IDS = ("id", "_id", "QuestionId", "question_id")
_LONGEST_FIELD = 10_000_000  # characters; the csv module's own limit is too low for long alias lists
# What the first line of a table with a header may name besides "question".
_COLUMNS = {
    "id",
    "_id",
    "query",
    "input",
    "title",
    "text",
    "answer",
    "answers",
    "golden_answers",
    "possible_answers",
    "contents",
}


class Entry(NamedTuple):
    """A question as published; ``metadata`` is what the file says beyond it, ``where`` names file and line for errors.

    ``source`` is the set that the file says it is of, ``answer_id`` the entity (2Wiki), "" where it does not say.
    """

    where: str
    id: str
    question: str
    answers: tuple[str, ...]
    kind: str
    metadata: Record
    source: str = ""
    answer_id: str = ""


def read_entries(path: Path, faults: Faults | None = None) -> Iterator[Entry]:
    """The questions of a file, in order.

    Args:
        path: a file with one of ``SUFFIXES``.
        faults: takes what cannot be read, so that the rest is; without it the first fault is raised.

    Raises:
        BadData: the file, or something in it, cannot be read.
        MissingExtra: a parquet file, and pyarrow is not installed.
    """
    stem = path.name.partition(".")[0]
    table = path.suffix in (".tsv", ".csv")
    for where, number, record in _records(path, faults):
        QUESTIONS.check(number, path)
        place = f"{path}, {where}"
        try:
            entry = _entry(record, f"{stem}-{number}", place, table)
        except BadData as error:
            if faults is None:
                raise
            faults.add(place, str(error).removeprefix(f"{place}: "))
            continue
        if entry is not None:
            yield entry


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


def _entry(record: Any, unnamed: str, where: str, table: bool) -> Entry | None:
    """One record of any form; None for MuSiQue's questions that cannot be answered."""
    if not isinstance(record, Mapping):
        raise BadData(
            f"{where}: expected an object with 'id', 'question' and 'golden_answers' (or another known form), found {record!r:.80}"
        )
    if record.get("answerable") is False:
        return None
    extra = record.get("extra_info")
    asked = (
        record if "question" in record or not isinstance(extra, Mapping) or "question" not in extra else extra
    )
    question = _text(asked, ("question", "Question", "input"), where)
    named = next((key for key in _IDS if record.get(key) not in (None, "")), "id")
    id_ = record.get(named) if record.get(named) not in (None, "") else unnamed
    if isinstance(id_, float) and id_.is_integer():
        id_ = int(id_)
    # FlashRAG's lines have ids; a merged file of Search-R1 may leave them out.
    unsaid = "golden_answers" in record and "id" not in record and "data_source" not in record
    if isinstance(id_, bool) or not isinstance(id_, str | int) or unsaid:
        raise BadData(f"{where}: field {named!r} must be a string or a whole number, found {id_!r:.80}")
    metadata = record.get("metadata")
    metadata = {} if metadata is None or metadata == "" else metadata
    if not isinstance(metadata, Mapping):
        raise BadData(f"{where}: field 'metadata' must be an object, found {metadata!r:.80}")
    kinds = (metadata.get("kind"), metadata.get("type"), record.get("type"), record.get("prop"))
    source, answer_id = (
        value if isinstance(value := record.get(key), str) else "" for key in ("data_source", "answer_id")
    )
    return Entry(
        where,
        str(id_),
        question,
        answers_of(record, where, table),
        next((k for k in kinds if isinstance(k, str) and k), ""),
        metadata,
        source,
        answer_id,
    )


def _text(record: Record, names: tuple[str, ...], where: str) -> str:
    for name in names:
        if name in record:
            if not isinstance(record[name], str) or not record[name].strip():
                raise BadData(f"{where}: field {name!r} must be a text, found {record[name]!r:.80}")
            return str(record[name])
    raise BadData(
        f"{where}: field {names[0]!r} is missing; found {', '.join(map(str, record)) or 'no field'}"
    )


def _records(path: Path, faults: Faults | None) -> Iterator[tuple[str, int, Any]]:
    """(where, number from 1, record) of each line, entry or row; lines that are no record are faults."""
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if suffix == ".parquet":
        yield from _parquet(regular_file(path))
    elif suffix in (".tsv", ".csv"):
        yield from _table(path, "\t" if suffix == ".tsv" else ",", faults)
    elif suffix.startswith(".jsonl"):
        yield from _lines(path, read_lines(path), faults)
    elif suffix.startswith(".json"):
        text = read_text(path, FILE_BYTES)
        if _is_lines(text):
            yield from _lines(path, enumerate(text.split("\n"), start=1), faults)
            return
        content = _json(text, str(path))
        entries = content.get("Data") if isinstance(content, dict) else content
        if not isinstance(entries, list):
            raise BadData(
                f"{path}: expected a list of questions, or an object with one under 'Data', found {type(content).__name__}"
            )
        for number, record in enumerate(entries, start=1):
            yield f"entry {number}", number, record
    else:
        raise BadData(f"{path}: question files end in {', '.join(SUFFIXES)}")


def _json(text: str, where: str) -> Any:
    try:
        return parse_json(text, where, object)
    except BadData as error:
        reason = str(error).removeprefix(f"{where}: ")
        raise BadData(
            f"{where}: {reason if reason.startswith('not JSON') else f'not JSON that can be used ({reason})'}"
        ) from None


def _is_lines(text: str) -> bool:
    """Whether a file is one object a line, whatever its ending says."""
    first, _, rest = text.lstrip().partition("\n")
    if not first.startswith("{") or not rest.strip():
        return False
    try:
        parse_json(first, "")
    except BadData:  # an object over several lines
        return False
    return True


def _lines(
    path: Path, lines: Iterator[tuple[int, str]], faults: Faults | None
) -> Iterator[tuple[str, int, Any]]:
    for number, line in lines:
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            record = _json(line, f"{path}, {where}")
        except BadData as error:
            if faults is None:
                raise
            faults.add(f"{path}, {where}", str(error).removeprefix(f"{path}, {where}: "))
            continue
        yield where, number, record


def _table(path: Path, delimiter: str, faults: Faults | None) -> Iterator[tuple[str, int, Any]]:
    csv.field_size_limit(_LONGEST_FIELD)
    lines = (f"{line}\n" for _, line in read_lines(path))
    first = next(lines, "")
    header = next(csv.reader([first], delimiter=delimiter), [])
    if (
        delimiter == "," and "\t" in first and "question" not in (cell.strip().lower() for cell in header)
    ):  # DPR's tables end in .csv
        delimiter = "\t"
        header = next(csv.reader([first], delimiter=delimiter), [])
    names = _columns(header, path)
    above = 1 if names else 0
    reader = csv.reader(lines if names else itertools.chain([first], lines), delimiter=delimiter)
    names = names or _NO_HEADER
    number = 0
    try:
        for row in reader:
            if not row:
                continue
            number += 1
            where = f"line {reader.line_num + above}"
            if len(row) == len(names):
                yield where, number, dict(zip(names, row, strict=True))
                continue
            said = f"{len(names)} columns expected, {'as in the first line' if not above else 'as the first line names them'}"
            if faults is None:
                raise BadData(f"{path}, {where}: {said}")
            faults.add(f"{path}, {where}", said)
    except csv.Error as error:
        raise BadData(f"{path}, line {reader.line_num + above}: {error}") from error


_NO_HEADER = ["question", "answer"]


def _columns(header: list[str], path: Path) -> list[str]:
    """The names of the columns; [] for a table of two that goes without a header."""
    cells = {cell.strip().lower() for cell in header}
    if "question" in cells:
        return [cell.strip() for cell in header]
    if len(header) == len(_NO_HEADER) and not cells & _COLUMNS:
        return []
    raise BadData(
        f"{path}, line 1: no column 'question' in {', '.join(header)[:200]!r}; name the columns in the first line (a table of questions "
        "and answers alone needs no names)"
    )


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
