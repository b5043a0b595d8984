"""Level files as they are in the world: which lines of a text are rows of a level, and how the rows may be written.

Between levels stand titles, comments, banners of ``#`` and blank lines. Rows are XSB text, plain or run-length encoded
(``5#|#@$.#|5#``, one row or one whole level a line, spaces too), in its letters (``p b o`` for ``@ $ .``, ``P B`` for ``+ *``),
or with walls written as ``X`` (``*`` box, ``&`` box on target), as in the oldest collection. An empty row inside a level is
written with ``-`` or ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tstar_envs.data.limits import LEVEL_CELLS
from tstar_envs.envs.sokoban.levels import FLOOR_SYMBOLS, VALID_SYMBOLS, XSB_LETTERS, XSB_SYMBOLS

# A row with runs of symbols, as Sokoban programs write them to files: "4#" is "####", and "|" ends a row.
_PACKED = re.compile(rf"(?:[0-9]*+[- _$.*@+#{XSB_LETTERS}]|\|)++")
_COUNT_OR_END = re.compile(r"[0-9|]")
_RUN = re.compile(r"([0-9]*+)(.)")
_COMMENT_BEGINS = re.compile(r"\s*+comment\s*+:\s*+", re.IGNORECASE)
_COMMENT_ENDS = re.compile(r"\s*+comment[-_ ]?end\b.*+", re.IGNORECASE)
_ROW = XSB_SYMBOLS | set(XSB_LETTERS)
_WITH_X = frozenset("X*&@.+ -_")  # + is not in the old collection, but in files that imitate it
_FROM_X = str.maketrans("X*&", "#$*")
_SIGNS = frozenset("$*@+")  # what no banner or number of a level is likely to have
_PLAYERS = "@+pP"


class FoundLevel(NamedTuple):
    """A level in a file: the number of its first line, its text, and what is wrong with one of its rows ("" if nothing is), and where."""

    line: int
    text: str
    fault: str = ""
    fault_line: int = 0


class _Line(NamedTuple):
    """A line of a level: its number, the rows that it stands for, and what is wrong with it."""

    number: int
    rows: list[str]
    fault: str = ""

    @property
    def is_gap(self) -> bool:
        """Whether it may stand between two levels as well as inside one."""
        return not self.fault and not any("#" in row for row in self.rows)


def split_levels(lines: Iterable[str]) -> Iterator[FoundLevel]:
    """The levels of a file, in its order; nothing of a level itself is checked but the symbols of its rows."""
    block: list[_Line] = []
    rows = [line.rstrip().lstrip("\v\f") for line in lines]
    comments = _comment_lines(rows)
    for number, line in enumerate(rows, start=1):
        found = None if number in comments else _read_line(number, line, block)
        if found is not None:
            block.append(found)
        elif block:
            yield from _levels_of(block)
            block = []
    if block:
        yield from _levels_of(block)


def _comment_lines(rows: list[str]) -> set[int]:
    """The numbers of the lines between ``Comment:`` and ``Comment-End:``, which may hold drawings of half a level."""
    found: set[int] = set()
    first = 0
    for number, line in enumerate(rows, start=1):
        if _COMMENT_BEGINS.fullmatch(line):  # one without an end hides nothing: the last one counts
            first = number
        elif first and _COMMENT_ENDS.fullmatch(line):
            found.update(range(first, number))
            first = 0
    return found


def _read_line(number: int, line: str, block: list[_Line]) -> _Line | None:
    """A line of a level, or None if it is none; below other rows, ``block``, more must be one."""
    if not line:
        return None
    if FLOOR_SYMBOLS.issuperset(line):
        return _Line(number, [line]) if block else None
    if "#" in line and XSB_SYMBOLS.issuperset(line):
        return _Line(number, [line])
    if "#" not in line and "X" in line and _WITH_X.issuperset(line):
        return _Line(number, [line.translate(_FROM_X)])
    if _COUNT_OR_END.search(line) and _PACKED.fullmatch(line):
        # Python turns no text of thousands of digits into a number.
        size = sum(10**10 if len(count) > 10 else int(count or 1) for count, _ in _RUN.findall(line))
        if size > LEVEL_CELLS.value() and ("|" in line or " " not in line):  # else a title, such as "20000 #"
            return _Line(
                number,
                [line[:80]],
                f"a run-length encoded row of {size:,} cells; {LEVEL_CELLS.variable} allows more",
            )
        rows = _unpacked(line) if size <= LEVEL_CELLS.value() else None
        if rows is not None:
            return _Line(number, rows)
    if "#" in line and _ROW.issuperset(line) and _walled(line):
        return _Line(number, [line])
    wrong = "" if block and _is_number_in_a_banner(line, block) else _wrong_symbol(line, bool(block))
    if not wrong:
        return None
    advice = (
        "; a tab may stand for any number of spaces: write them out (expand FILE)" if wrong == "\t" else ""
    )
    return _Line(number, [line], f"a level row holds {wrong!r}; {VALID_SYMBOLS}{advice}")


def _unpacked(line: str) -> list[str] | None:
    """The rows that a run-length encoded line stands for, None if it is a title after all."""
    runs = _RUN.findall(line)
    whole = "".join(int(count or 1) * symbol for count, symbol in runs)
    if "|" in line:
        rows = [row.rstrip() for row in whole.rstrip("|").split("|")]
        return rows if any("#" in row for row in rows) else None
    kinds = [" " if symbol in FLOOR_SYMBOLS else symbol for _, symbol in runs]
    # Titles are made of the same characters: "# 12 #". A packed row has every run whole, and is walled at both ends.
    whole_runs = " " not in line or all(left != right for left, right in pairwise(kinds))
    return [whole.rstrip()] if whole_runs and _walled(whole) else None


def _walled(row: str) -> bool:
    """Whether a row begins and ends with a wall."""
    bare = row.strip(" -_")
    return bare[:1] == "#" == bare[-1:]


def _wrong_symbol(line: str, inside: bool) -> str:
    """The first symbol of a row that no row may hold; "" if the line is none at all but a title."""
    bare = line.strip(" -_\t")
    if not bare.startswith("#") or 2 * sum(map(str.isalpha, line)) > len("".join(line.split())):
        return ""  # letters are more than half of what prose shows, which no row with a fault in it is likely to be
    foreign = [symbol for symbol in line if symbol not in XSB_SYMBOLS]
    is_row = (
        not _SIGNS.isdisjoint(line)
        or set(foreign) == {"\t"}
        or (inside and bare.endswith("#") and len(bare) > 1)
    )
    return foreign[0] if is_row and foreign else ""


def _is_number_in_a_banner(line: str, block: list[_Line]) -> bool:
    """Whether a line such as "## 12 ##" follows the first line of a banner, or the last of a level."""
    over = set(block[-1].rows[-1].strip()) == {"#"} and (len(block) == 1 or any(map(_players, block)))
    return over and set(line) <= set("# 0123456789")


def _levels_of(block: list[_Line]) -> Iterator[FoundLevel]:
    """The levels of lines that follow one another."""
    while block and block[-1].is_gap:
        block = block[:-1]
    if sum(_players(line) for line in block) > 1:
        yield from _several(block)
    else:
        yield from _one(block)


def _players(line: _Line) -> int:
    return sum(row.count(symbol) for row in line.rows for symbol in _PLAYERS)


def _several(block: list[_Line]) -> Iterator[FoundLevel]:
    """Levels without a blank line between them: one a line, or parted by rows of ``-``."""
    part: list[_Line] = []
    for line in block:
        whole = len(line.rows) > 2 and _players(line) == 1
        if whole or line.is_gap:
            yield from _one(part)
            part = []
        if whole:
            yield from _one([line])
        elif not line.is_gap:
            part.append(line)
    yield from _one(part)


def _one(block: list[_Line]) -> Iterator[FoundLevel]:
    """The level of some lines, if they are more than a banner or a title."""
    signs = any(not _SIGNS.isdisjoint(row) for line in block for row in line.rows)
    if signs:  # a title such as "# bob #" above a level that is not written in letters
        while block and not block[0].fault and any(symbol in XSB_LETTERS for symbol in block[0].rows[0]):
            block = block[1:]
    rows = [row for line in block for row in line.rows]
    spoilt = next((line for line in block if line.fault), None)
    ornament = all(set(row.strip()) <= {"#"} for row in rows) or (not signs and len(rows) < 3)
    if not rows or (ornament and spoilt is None):
        return
    first = block[0].number
    if len(block) > 3 and _is_edge_of_a_banner(rows[0], rows[1], rows[1:]):
        rows, first = rows[1:], block[1].number
    if len(block) > 3 and _is_edge_of_a_banner(rows[-1], rows[-2], rows[:-1]):
        rows = rows[:-1]
    yield FoundLevel(first, "\n".join(rows), *((spoilt.fault, spoilt.number) if spoilt else ()))


def _is_edge_of_a_banner(row: str, beside: str, level: list[str]) -> bool:
    """Whether a row is walls only and longer than all of a level whose own edge, beside it, is walls only."""
    return set(row.strip()) == set(beside.strip()) == {"#"} and len(row) > max(map(len, level))
