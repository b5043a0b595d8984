"""Lines, JSON lists, tables and parquet rows as records with their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tstar_envs.data.faults import Faults
from tstar_envs.data.files import parse_json, read_lines, read_text, regular_file
from tstar_envs.data.limits import FILE_BYTES
from tstar_envs.envs.search_qa.readers.tables import read_table
from tstar_envs.errors import BadData, MissingExtra

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".tsv", ".csv", ".parquet")


def read_records(path: Path, faults: Faults | None) -> Iterator[tuple[str, int, Any]]:
    """(where, number from 1, record) of each line, entry or row; lines that are no record are faults."""
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


_LISTS = ("Data", "data", "questions", "rows", "examples")  # where an object holds the questions


def _entries(content: Any, path: Path) -> list[Any]:
    """The questions of a JSON file: a list, an object that holds one, columns, or questions by id."""
    if isinstance(content, list):
        return [question for entry in content for question in _in_paragraphs(entry)]
    name = next((name for name in _LISTS if isinstance(content, Mapping) and name in content), "")
    if name and isinstance(content[name], list):
        # The rows of a Hugging Face viewer hold each record in an object.
        return [
            entry["row"] if isinstance(entry, Mapping) and isinstance(entry.get("row"), Mapping) else entry
            for listed in content[name]
            for entry in _in_paragraphs(listed)
        ]
    if isinstance(content, Mapping) and content:
        values = list(content.values())
        if all(isinstance(value, Mapping) for value in values):
            if "question" in content:  # columns with a name for each row, as pandas writes them
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
    """SQuAD's questions, which stand in the paragraphs of an article; any other entry is one."""
    paragraphs = entry.get("paragraphs") if isinstance(entry, Mapping) else None
    if isinstance(paragraphs, list) and paragraphs and all(_has_questions(part) for part in paragraphs):
        return [question for part in paragraphs for question in part["qas"]]
    return [entry]


def _has_questions(paragraph: Any) -> bool:
    return isinstance(paragraph, Mapping) and isinstance(paragraph.get("qas"), list)


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
