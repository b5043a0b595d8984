"""Readers of public question files; the format is detected from the keys."""

from __future__ import annotations

import ast
import csv
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.data.faults import Faults
from tstar_envs.data.files import FILE_BYTES, QUESTIONS, parse_json, read_lines, read_text, regular_file
from tstar_envs.errors import BadData, MissingExtra

_LONGEST_FIELD = 10_000_000  # characters; the csv module's own limit is too low for long alias lists
# Columns, besides "question", that identify a header line.
_QUESTION_COLUMNS = {"question", "query", "problem", "input", "prompt"}
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
    "reward_model",
}


def read_table(path: Path, delimiter: str, faults: Faults | None) -> Iterator[tuple[str, int, Any]]:
    """Read a table; yields (place, number from 1, record) for each row.

    Args:
        path: the file.
        delimiter: column separator; a tab-separated .csv file is detected.
        faults: collects rows that cannot be read; None raises the first error.

    Raises:
        BadData: the table, or a row, cannot be read.
    """
    csv.field_size_limit(_LONGEST_FIELD)
    lines = (f"{line}\n" for _, line in read_lines(path))
    first = next(lines, "")
    header = next(csv.reader([first], delimiter=delimiter), [])
    # DPR's tab-separated tables end in .csv.
    if delimiter == "," and "\t" in first and "question" not in (cell.strip().lower() for cell in header):
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
    """Detect the column names; [] for a two-column table without a header."""
    cells = {cell.strip().lower() for cell in header}
    if cells & _QUESTION_COLUMNS and cells & _COLUMNS:
        return [cell.strip() for cell in header]
    if len(header) == len(_NO_HEADER) and not cells & _COLUMNS:
        return []
    raise BadData(
        f"{path}, line 1: no column 'question' in {', '.join(header)[:200]!r}; name the columns in the first line (a table of questions "
        "and answers alone needs no names)"
    )


Record = Mapping[str, Any]
_WHOLE = re.compile(r"-?\d+\.0+")
# A list printed by NumPy, as pandas writes it into a table: no commas, or wrapped in "array(...)".
_ARRAY = re.compile(r"array\((\[.*\])(?:,\s{0,20}dtype=[^()]{1,40})?\)", re.DOTALL)
_NUMPY_TEXT = re.compile(r"'([^'\\]*+)'|\"([^\"\\]*+)\"")
_NUMPY_LIST = re.compile(rf"\[\s*+(?:{_NUMPY_TEXT.pattern})(?:\s++(?:{_NUMPY_TEXT.pattern}))++\s*+\]")
_EMPTY_CELLS = ("nan", "NaN")
_LONGEST_LIST = 1_000_000  # characters of a list in a table cell


def answers_of(record: Record, where: str, table: bool = False) -> tuple[str, ...]:
    """Extract all accepted answers of a record, the main one first, without duplicates.

    Args:
        record: a question in any published format.
        where: its place, for error messages.
        table: True for a row of a table, where all cells are texts, lists and numbers too.

    Raises:
        BadData: an answer is missing or malformed; the message names the field.
    """
    # An empty column of a merged file is not a field of this record.
    name = next((name for name in _ANSWERS if record.get(name) is not None), None)
    if name is None:
        empty = next((name for name in _ANSWERS if name in record), "")
        if empty:
            raise BadData(f"{where}: field {empty!r} is not what its form has there: None (no answer)")
        raise BadData(
            f"{where}: no field with answers ({', '.join(_ANSWERS)}); found {', '.join(map(str, record))}"
        )
    value = record[name]
    try:
        written = _cell(value) if table or _is_list(value) else value
        # A text in braces that is not an answer object is taken literally.
        plain = isinstance(value, str) and isinstance(written, Mapping) and not _is_struct(written)
        found = _flat(_ANSWERS[name](value if plain else written))
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"{where}: field {name!r} is not what its form has there: {value!r:.80} ({error!r:.200})"
        ) from error
    if len(found) == 1 and isinstance(found[0], str) and found[0] == value:
        found = _alternatives(found[0])
    texts = list(_texts(found, name, where, table))
    if not texts:
        raise BadData(f"{where}: field {name!r} holds no answer")
    for field in _ALIASES:
        aliases = record.get(field)
        aliases = [] if aliases is None or _is_nan(aliases) else aliases
        if isinstance(aliases, str):
            aliases = _cell(aliases) if aliases.strip() else []
        if not isinstance(aliases, list):
            raise BadData(f"{where}: field {field!r} must be a list, found {aliases!r:.80}")
        texts += _texts(aliases, field, where, table)
    return tuple(dict.fromkeys(texts))


def _alternatives(text: str) -> list[Any]:
    """Split answers that some sets join by ``||``, if each part has a word."""
    parts = [part.strip() for part in text.split("||")]
    return parts if len(parts) > 1 and all(any(map(str.isalnum, part)) for part in parts) else [text]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _texts(found: list[Any], name: str, where: str, table: bool) -> Iterator[str]:
    """Iterate over the non-blank answers of a field."""
    for answer in found:
        if (isinstance(answer, float) and not math.isfinite(answer)) or (table and answer in _EMPTY_CELLS):
            raise BadData(
                f"{where}: field {name!r} holds {answer}, an empty cell of a spreadsheet; give the answer or leave the line out"
            )
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise BadData(f"{where}: field {name!r} holds {answer!r:.80}; every answer must be a text")
        text = str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
        if table and _WHOLE.fullmatch(text.strip()):
            text = text.strip().partition(".")[0]
        if text.strip() in _NO_ANSWER:
            raise BadData(
                f"{where}: field {name!r} holds {text.strip()!r}, which marks a question without an answer; leave the line out"
            )
        if text.strip():
            yield text


def _is_list(value: object) -> bool:
    """Check for a list or object that was serialized as text: ``"['a', 'b']"``, ``"array(['a'], dtype=object)"``."""
    if not isinstance(value, str):
        return False
    text = value.strip()
    return (text[:1], text[-1:]) in (("[", "]"), ("{", "}")) or (
        text[-1:] == ")" and text.startswith(("array([", "('", '("'))
    )


def _flat(found: list[Any]) -> list[Any]:
    """Flatten answers and their aliases, from objects ``{"answer", "aliases"}`` or ``{"text"}``."""
    flat: list[Any] = []
    for answer in found:
        if not isinstance(answer, Mapping):
            flat.append(answer)
            continue
        main = next((answer[key] for key in ("answer", "text", "value") if key in answer), None)
        flat += [answer if main is None else main, *_listed(answer.get("aliases") or [])]
    return flat


def _cell(text: Any) -> Any:
    """Parse a list in a table cell, JSON (PopQA) or Python (DPR).

    Anything else is returned as it is.
    """
    if not isinstance(text, str) or not text.strip().startswith(("[", "{", "array([", "('", '("')):
        return text
    if len(text) > _LONGEST_LIST:
        raise ValueError(f"a cell of {len(text)} characters")
    if (array := _ARRAY.fullmatch(text.strip())) is not None:
        text = array[1]
    if _NUMPY_LIST.fullmatch(text.strip()) is not None:  # Python concatenates adjacent string literals
        return [found[1] or found[2] for found in _NUMPY_TEXT.finditer(text)]
    try:
        return parse_json(text, "the cell", object)
    except BadData as error:
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            # Plain text in brackets, such as the film title [REC].
            if text.lstrip("[ ")[:1] not in ("'", '"'):
                return text
            raise ValueError(str(error)) from None
        return list(value) if isinstance(value, list | tuple) else text


# list() would split a text into letters and an object into keys, each an answer.
def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is expected")
    return value


def _several(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return _struct(value)
    return [value] if isinstance(value, str | int | float) else _listed(value)


def _is_struct(value: Mapping[str, Any]) -> bool:
    return any(str(key).lower() in ("value", "text", "ground_truth") for key in value)


def _struct(value: Mapping[str, Any]) -> list[Any]:
    """Read TriviaQA's answer object; its own script compares with the normalised aliases."""
    named = {str(key).replace("_", "").lower(): found for key, found in value.items()}
    if "text" in named:  # SQuAD: accepted texts with their offsets
        return _several(named["text"])
    if not isinstance(named["value"], str | int | float):
        raise TypeError("'value' is a text")
    return [
        named["value"],
        *(
            alias
            for key in ("aliases", "normalizedaliases", "humananswers")
            for alias in _listed(named.get(key) or [])
        ),
    ]


def _popqa(value: Any) -> list[Any]:
    return _several(parse_json(value, "the list", object)) if isinstance(value, str) else _several(value)


def _search_r1(value: Any) -> list[Any]:
    if isinstance(value, str):
        raise ValueError("an object printed by Python; save the table as parquet or JSON lines")
    truth = value["ground_truth"]
    return _several(truth["target"]) if isinstance(truth, Mapping) else _several(truth)


def _kilt(value: Any) -> list[Any]:
    return [output["answer"] for output in _listed(value) if output.get("answer") is not None]


_ALIASES = ("answer_aliases", "aliases", "aug_answer", "aug_answers", "answer_alias")
_NO_ANSWER = ("No Answer Present.",)  # MS MARCO
# In order of preference. "answer" is a list in NQ-open, an object in Hugging Face's trivia_qa, and a text elsewhere.
_ANSWERS: dict[str, Callable[[Any], list[Any]]] = {
    "golden_answers": _listed,
    "possible_answers": _popqa,
    "reward_model": _search_r1,
    "answers": _several,
    "answer": _several,
    "Answer": _several,
    "Answers": _several,
    "output": _kilt,
    **dict.fromkeys(
        (
            "ground_truth",
            "ground_truths",
            "gold_answer",
            "gold_answers",
            "answer_list",
            "correct_answer",
            "target",
            "targets",
        ),
        _several,
    ),
}


SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".tsv", ".csv", ".parquet")


def read_records(path: Path, faults: Faults | None) -> Iterator[tuple[str, int, Any]]:
    """Read a question file.

    Yields (where, number from 1, record) for each line, entry or row.
    """
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if suffix == ".parquet":
        yield from _parquet(regular_file(path))
    elif suffix in (".tsv", ".csv"):
        yield from read_table(path, "\t" if suffix == ".tsv" else ",", faults)
    elif suffix.startswith(".jsonl"):
        yield from _lines(path, read_lines(path), faults)
    elif suffix.startswith(".json"):
        text = read_text(path, FILE_BYTES)
        if _is_lines(text):
            yield from _lines(path, enumerate(text.split("\n"), start=1), faults)
            return
        for number, record in enumerate(_entries(_json(text, str(path)), path), start=1):
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


_LISTS = ("Data", "data", "questions", "rows", "examples")  # keys under which an object holds the questions


def _entries(content: Any, path: Path) -> list[Any]:
    """Extract the questions of a JSON file.

    The file is a list, an object with a list, columns, or questions by id.
    """
    if isinstance(content, list):
        return [question for entry in content for question in _in_paragraphs(entry)]
    name = next((name for name in _LISTS if isinstance(content, Mapping) and name in content), "")
    if name and isinstance(content[name], list):
        # The Hugging Face viewer wraps each record in an object.
        return [
            entry["row"] if isinstance(entry, Mapping) and isinstance(entry.get("row"), Mapping) else entry
            for listed in content[name]
            for entry in _in_paragraphs(listed)
        ]
    if isinstance(content, Mapping) and content:
        values = list(content.values())
        if all(isinstance(value, Mapping) for value in values):
            if "question" in content:  # columns with row labels, as pandas writes them
                return [
                    {name: column.get(row) for name, column in content.items()} for row in content["question"]
                ]
            return [{"id": str(key), **value} for key, value in content.items()]
        lengths = {len(value) for value in values if isinstance(value, list)}
        if "question" in content and len(lengths) == 1 and all(isinstance(value, list) for value in values):
            return [dict(zip(content, row, strict=True)) for row in zip(*values, strict=True)]
        if all(isinstance(value, list) for value in values):
            listed = ", ".join(map(repr, list(content)[:8]))
            raise BadData(
                f"{path}: holds several lists ({listed}); write each split to a file of its own, as test.json"
            )
    raise BadData(
        f"{path}: expected a list of questions, an object with one under {' or '.join(map(repr, _LISTS[:3]))}, columns of equal "
        f"length or questions by id, found {type(content).__name__}"
    )


def _in_paragraphs(entry: Any) -> list[Any]:
    """Extract the questions from the paragraphs of a SQuAD article.

    Any other entry is a question.
    """
    paragraphs = entry.get("paragraphs") if isinstance(entry, Mapping) else None
    if isinstance(paragraphs, list) and paragraphs and all(_has_questions(part) for part in paragraphs):
        return [question for part in paragraphs for question in part["qas"]]
    return [entry]


def _has_questions(paragraph: Any) -> bool:
    return isinstance(paragraph, Mapping) and isinstance(paragraph.get("qas"), list)


def _is_lines(text: str) -> bool:
    """Check whether a file has one JSON object per line, whatever its suffix."""
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
            if number == 1 and line.strip() in ("{", "["):
                raise BadData(
                    f"{path}, {where}: an object over several lines, and JSON lines have one on each; convert it: "
                    "jq -c . FILE, or name a list .json"
                ) from None
            if faults is None:
                raise
            faults.add(f"{path}, {where}", str(error).removeprefix(f"{path}, {where}: "))
            continue
        yield where, number, record


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


_IDS = ("id", "_id", "QuestionId", "question_id", "qid", "query_id", "example_id")
_QUESTIONS = ("question", "Question", "input", "query", "problem", "Problem", "Prompt", "prompt", "messages")
_YES = ("true", "1", "1.0", "yes", "y", "t")
_ASKED = "Question:"  # precedes the question in Search-R1's prompt


class Entry(NamedTuple):
    """One question of a public file.

    ``metadata`` holds the other fields, ``where`` names file and line for errors. ``source`` is the question set and ``answer_id``
    the answer entity (2Wiki); both are "" if the file does not say.
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
    """Read the questions of a file, in order.

    Args:
        path: a file with one of ``SUFFIXES``.
        faults: collects what cannot be read, so that the rest can; None raises the first error.

    Raises:
        BadData: the file or a part of it cannot be read.
        MissingExtra: the file is parquet and pyarrow is not installed.
    """
    stem = path.name.partition(".")[0]
    table = path.suffix in (".tsv", ".csv")
    for where, number, record in read_records(path, faults):
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


def _entry(record: Any, unnamed: str, where: str, table: bool) -> Entry | None:
    """Parse one record of any format; None for an unanswerable question (MuSiQue, SQuAD)."""
    if not isinstance(record, Mapping):
        raise BadData(
            f"{where}: expected an object with 'id', 'question' and 'golden_answers' (or another known form), found {record!r:.80}"
        )
    if _says(record.get("answerable")) == "no" or _says(record.get("is_impossible")) == "yes":
        return None
    extra = record.get("extra_info")
    asked = (
        record if "question" in record or not isinstance(extra, Mapping) or "question" not in extra else extra
    )
    question = _question(asked, where)
    named = next((key for key in _IDS if record.get(key) not in (None, "")), "id")
    id_ = record.get(named) if record.get(named) not in (None, "") else unnamed
    if isinstance(id_, float) and id_.is_integer():
        id_ = int(id_)
    # FlashRAG's lines have ids; merged files of Search-R1 may lack them.
    if "golden_answers" in record and id_ is unnamed and "data_source" not in record:
        raise BadData(
            f"{where}: field 'id' is missing; lines with 'golden_answers' have one, by which results are recorded"
        )
    if isinstance(id_, bool) or not isinstance(id_, str | int):
        raise BadData(f"{where}: field {named!r} must be a string or a whole number, found {id_!r:.80}")
    metadata = record.get("metadata")
    if isinstance(metadata, str) and (table or metadata[:1] in ("", "{")):  # an object serialized as text
        metadata = {}
    metadata = {} if metadata is None else metadata
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


def _says(value: Any) -> str:
    """Normalise a closed answer to ``yes`` or ``no``; "" for anything else."""
    said = str(value).strip().lower()
    return "no" if said in ("false", "0", "0.0", "no", "n", "f") else "yes" if said in _YES else ""


def _question(record: Record, where: str) -> str:
    """Extract the question from any known field; from a conversation, its only user message."""
    name = next((name for name in _QUESTIONS if name in record), "")
    if not name:
        raise BadData(
            f"{where}: field 'question' is missing; found {', '.join(map(str, record))[:300] or 'no field'}"
        )
    said = record[name]
    if name in ("prompt", "messages"):
        if isinstance(said, str) and said.lstrip()[:2] == "[{":  # serialized in a table
            said = parse_json(said, where, object)
        said = said.rpartition(_ASKED)[2].strip() if isinstance(said, str) else _asked_in(said)
    if not isinstance(said, str) or not said.strip():
        raise BadData(f"{where}: field {name!r} must be a text, found {record[name]!r:.80}")
    return said


def _asked_in(messages: Any) -> str | None:
    """Extract the question from a one-message conversation (Search-R1's prompt ends in it).

    None for anything else.
    """
    if not isinstance(messages, list):
        return None
    asked = [m.get("content") for m in messages if isinstance(m, Mapping) and m.get("role") == "user"]
    if len(asked) != 1 or not isinstance(asked[0], str):
        return None
    return asked[0].rpartition(_ASKED)[2].strip()


def read_aliases(path: Path, wanted: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Read answer aliases from 2Wiki's ``id_aliases.json``: lines with ``Q_id``, ``aliases`` and ``demonyms``.

    Args:
        path: the file.
        wanted: answer entities (``Entry.answer_id``); others are skipped.

    Raises:
        BadData: a line is malformed.
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
