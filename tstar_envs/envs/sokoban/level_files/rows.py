"""Rows of levels in text files, in all the ways in which they are written.

Rows are XSB text, plain or run-length encoded (``5#|#@$.#|5#``, one row or one whole level a line, spaces too), in its
letters (``p b o`` for ``@ $ .``, ``P B`` for ``+ *``), or with walls written as ``X`` (``*`` box, ``&`` box on target), as in
the oldest collection. An empty row inside a level is written with ``-`` or ``_``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from tstar_envs.data.limits import LEVEL_CELLS
from tstar_envs.envs.sokoban.level_files.symbols import FLOOR_SYMBOLS, VALID_SYMBOLS, XSB_LETTERS, XSB_SYMBOLS

BOX_AND_PLAYER_SIGNS = frozenset("$*@+")  # what no banner or number of a level is likely to have
_PLAYERS = "@+pP"
# A row with runs of symbols, as Sokoban programs write them to files: "4#" is "####", and "|" ends a row.
_PACKED = re.compile(rf"(?:[0-9]*+[- _$.*@+#{XSB_LETTERS}]|\|)++")
_COUNT_OR_END = re.compile(r"[0-9|]")
_RUN = re.compile(r"(?<![0-9])([0-9]*+)(.)")
_ROW = XSB_SYMBOLS | set(XSB_LETTERS)
_WITH_X = frozenset("X*&@.+ -_")  # + is not in the old collection, but in files that imitate it
_FROM_X = str.maketrans("X*&", "#$*")


class Line(NamedTuple):
    """A line of a level: its number, the rows that it stands for, and what is wrong with it."""

    number: int
    rows: list[str]
    fault: str = ""

    @property
    def is_gap(self) -> bool:
        """Whether it may stand between two levels as well as inside one."""
        return not self.fault and not any("#" in row for row in self.rows)

    @property
    def players(self) -> int:
        """How many players stand in it."""
        return sum(row.count(symbol) for row in self.rows for symbol in _PLAYERS)


def read_line(number: int, line: str, block: list[Line]) -> Line | None:
    """A line of a level, or None if it is none; below other rows, ``block``, more must be one."""
    if not line:
        return None
    if FLOOR_SYMBOLS.issuperset(line):
        return Line(number, [line]) if block else None
    if "#" in line and XSB_SYMBOLS.issuperset(line):
        return Line(number, [line])
    if "#" not in line and "X" in line and _WITH_X.issuperset(line):
        return Line(number, [line.translate(_FROM_X)])
    if _COUNT_OR_END.search(line) and _PACKED.fullmatch(line):
        # Python turns no text of thousands of digits into a number.
        size = sum(10**10 if len(count) > 10 else int(count or 1) for count, _ in _RUN.findall(line))
        if size > LEVEL_CELLS.value() and ("|" in line or " " not in line):  # else a title, such as "20000 #"
            return Line(
                number,
                [line[:80]],
                f"a run-length encoded row of {size:,} cells; {LEVEL_CELLS.variable} allows more",
            )
        rows = _unpacked(line) if size <= LEVEL_CELLS.value() else None
        if rows is not None:
            return Line(number, rows)
    if "#" in line and _ROW.issuperset(line) and _walled(line):
        return Line(number, [line])
    wrong = "" if block and _is_number_in_a_banner(line, block) else _wrong_symbol(line, bool(block))
    if not wrong:
        return None
    advice = (
        "; a tab may stand for any number of spaces: write them out (expand FILE)" if wrong == "\t" else ""
    )
    return Line(number, [line], f"a level row holds {wrong!r}; {VALID_SYMBOLS}{advice}")


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
        not BOX_AND_PLAYER_SIGNS.isdisjoint(line)
        or set(foreign) == {"\t"}
        or (inside and bare.endswith("#") and len(bare) > 1)
    )
    return foreign[0] if is_row and foreign else ""


def _is_number_in_a_banner(line: str, block: list[Line]) -> bool:
    """Whether a line such as "## 12 ##" follows the first line of a banner, or the last of a level."""
    over = set(block[-1].rows[-1].strip()) == {"#"} and (
        len(block) == 1 or any(above.players for above in block)
    )
    return over and set(line) <= set("# 0123456789")
