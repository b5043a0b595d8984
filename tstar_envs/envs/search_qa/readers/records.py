"""Lines, JSON lists, tables and parquet rows as records with their places."""

from __future__ import annotations

from collections.abc import Iterator
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
