"""Tables of questions: columns by the names in the first line, or questions and answers without names."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tstar_envs.data.faults import Faults
from tstar_envs.data.files import read_lines
from tstar_envs.errors import BadData

_LONGEST_FIELD = 10_000_000  # characters; the csv module's own limit is too low for long alias lists
# What the first line of a table with a header may name besides "question".
_ASKED = {"question", "query", "problem", "input", "prompt"}
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
    """(place, number from 1, record) of each row.

    Args:
        path: the file.
        delimiter: between its columns; a table of tabs that ends in .csv is read as it is.
        faults: takes rows that cannot be read; without it the first is raised.

    Raises:
        BadData: the table, or a row, cannot be read.
    """
    csv.field_size_limit(_LONGEST_FIELD)
    lines = (f"{line}\n" for _, line in read_lines(path))
    first = next(lines, "")
    header = next(csv.reader([first], delimiter=delimiter), [])
    # DPR's tables end in .csv.
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
    """The names of the columns; [] for a table of two that goes without a header."""
    cells = {cell.strip().lower() for cell in header}
    if cells & _ASKED and cells & _COLUMNS:
        return [cell.strip() for cell in header]
    if len(header) == len(_NO_HEADER) and not cells & _COLUMNS:
        return []
    raise BadData(
        f"{path}, line 1: no column 'question' in {', '.join(header)[:200]!r}; name the columns in the first line (a table of questions "
        "and answers alone needs no names)"
    )
