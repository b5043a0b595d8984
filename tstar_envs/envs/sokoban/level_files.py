"""Level files: XSB and Boxoban text in many variants, and XML collections (.slc, .ssx)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple
from xml.parsers import expat

from tstar_envs.data.files import LEVEL_CELLS
from tstar_envs.envs.sokoban.level import (
    FLOOR_SYMBOLS,
    VALID_SYMBOLS,
    XSB_LETTERS,
    XSB_SYMBOLS,
)
from tstar_envs.errors import BadData

BOX_AND_PLAYER_SIGNS = frozenset("$*@+")  # unlikely in banners and titles
_PLAYERS = "@+pP"
# A run-length encoded row: "4#" is "####", and "|" ends a row.
_PACKED = re.compile(rf"(?:[0-9]*+[- _$.*@+#{XSB_LETTERS}]|\|)++")
_COUNT_OR_END = re.compile(r"[0-9|]")
_RUN = re.compile(r"(?<![0-9])([0-9]*+)(.)")
_ROW = XSB_SYMBOLS | set(XSB_LETTERS)
_WITH_X = frozenset("X*&@.+ -_")  # "+" occurs only in files that imitate the old collection
_FROM_X = str.maketrans("X*&", "#$*")


class Line(NamedTuple):
    """Line of a level: its number, its decoded rows, and an error message."""

    number: int
    rows: list[str]
    fault: str = ""

    @property
    def is_gap(self) -> bool:
        """True if it may be between levels as well as inside one."""
        return not self.fault and not any("#" in row for row in self.rows)

    @property
    def players(self) -> int:
        """Number of players in it."""
        return sum(row.count(symbol) for row in self.rows for symbol in _PLAYERS)


def read_line(number: int, line: str, block: list[Line]) -> Line | None:
    """Parse a line of a level; None for other text.

    After rows of a level (``block``) more lines count as rows.
    """
    if not line:
        return None
    if FLOOR_SYMBOLS.issuperset(line):
        return Line(number, [line]) if block else None
    if "#" in line and XSB_SYMBOLS.issuperset(line):
        return Line(number, [line])
    if "#" not in line and "X" in line and _WITH_X.issuperset(line):
        return Line(number, [line.translate(_FROM_X)])
    if _COUNT_OR_END.search(line) and _PACKED.fullmatch(line):
        # int() refuses thousands of digits.
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
    """Decode a run-length encoded line to rows; None if it is a title."""
    runs = _RUN.findall(line)
    whole = "".join(int(count or 1) * symbol for count, symbol in runs)
    if "|" in line:
        rows = [row.rstrip() for row in whole.rstrip("|").split("|")]
        return rows if any("#" in row for row in rows) else None
    kinds = [" " if symbol in FLOOR_SYMBOLS else symbol for _, symbol in runs]
    # Titles use the same characters: "# 12 #". An encoded row has complete runs and a wall at both ends.
    whole_runs = " " not in line or all(left != right for left, right in pairwise(kinds))
    return [whole.rstrip()] if whole_runs and _walled(whole) else None


def _walled(row: str) -> bool:
    """Check whether a row begins and ends with a wall."""
    bare = row.strip(" -_")
    return bare[:1] == "#" == bare[-1:]


def _wrong_symbol(line: str, inside: bool) -> str:
    """Find the first invalid symbol of a row; "" if the line is a title."""
    bare = line.strip(" -_\t")
    if not bare.startswith("#") or 2 * sum(map(str.isalpha, line)) > len("".join(line.split())):
        return ""  # more than half letters: prose, not a faulty row
    foreign = [symbol for symbol in line if symbol not in XSB_SYMBOLS]
    is_row = (
        not BOX_AND_PLAYER_SIGNS.isdisjoint(line)
        or set(foreign) == {"\t"}
        or (inside and bare.endswith("#") and len(bare) > 1)
    )
    return foreign[0] if is_row and foreign else ""


def _is_number_in_a_banner(line: str, block: list[Line]) -> bool:
    """Check for a numbered banner line such as "## 12 ##"."""
    over = set(block[-1].rows[-1].strip()) == {"#"} and (
        len(block) == 1 or any(above.players for above in block)
    )
    return over and set(line) <= set("# 0123456789")


_COMMENT_BEGINS = re.compile(r"\s*+comment\s*+:\s*+", re.IGNORECASE)
_COMMENT_ENDS = re.compile(r"\s*+comment[-_ ]?end\b.*+", re.IGNORECASE)


class FoundLevel(NamedTuple):
    """Level of a file.

    It has the number of its first line, its text, and an error message with its line ("" if valid).
    """

    line: int
    text: str
    fault: str = ""
    fault_line: int = 0


def split_levels(lines: Iterable[str]) -> Iterator[FoundLevel]:
    """Split a file into levels, in order. Of the levels only the symbols are checked."""
    block: list[Line] = []
    rows = _from_observations([line.rstrip().lstrip("\v\f") for line in lines])
    comments = _comment_lines(rows)
    for number, line in enumerate(rows, start=1):
        found = None if number in comments else read_line(number, line, block)
        if found is not None:
            block.append(found)
        elif block:
            yield from _levels_of(block)
            block = []
    if block:
        yield from _levels_of(block)


def _from_observations(rows: list[str]) -> list[str]:
    """Convert levels in the symbols of observations (this project's and RAGEN's) to XSB.

    Such a level has walls ``#`` and at least one box ``X`` or ``\u221a``, a combination that no other format has.
    """
    found, start = list(rows), 0
    while start < len(rows):
        end = start
        while end < len(rows) and rows[end] and _OBSERVED.issuperset(rows[end]):
            end += 1
        level = "".join(rows[start:end])
        if "#" in level and ("X" in level or "\u221a" in level):
            found[start:end] = [row.translate(_FROM_OBSERVED) for row in rows[start:end]]
        start = end + 1
    return found


_OBSERVED = frozenset("#_ OX\u221aPS")
_FROM_OBSERVED = str.maketrans("_OX\u221aPS", " .$*@+")


def _comment_lines(rows: list[str]) -> set[int]:
    """Find the lines between ``Comment:`` and ``Comment-End:``, which may contain partial levels."""
    found: set[int] = set()
    first = 0
    for number, line in enumerate(rows, start=1):
        if _COMMENT_BEGINS.fullmatch(line):  # a start without an end is ignored: the last start counts
            first = number
        elif first and _COMMENT_ENDS.fullmatch(line):
            found.update(range(first, number))
            first = 0
    return found


def _levels_of(block: list[Line]) -> Iterator[FoundLevel]:
    """Extract the levels of consecutive lines."""
    while block and block[-1].is_gap:
        block = block[:-1]
    if sum(line.players for line in block) > 1:
        yield from _several(block)
    else:
        yield from _one(block)


def _several(block: list[Line]) -> Iterator[FoundLevel]:
    """Extract levels without blank lines between them: one per line, or separated by rows of ``-``."""
    part: list[Line] = []
    for line in block:
        whole = len(line.rows) > 2 and line.players == 1
        if whole or line.is_gap:
            yield from _one(part)
            part = []
        if whole:
            yield from _one([line])
        elif not line.is_gap:
            part.append(line)
    yield from _one(part)


def _one(block: list[Line]) -> Iterator[FoundLevel]:
    """Extract the level of some lines, unless they are only a banner or a title."""
    signs = any(not BOX_AND_PLAYER_SIGNS.isdisjoint(row) for line in block for row in line.rows)
    if signs:  # a title such as "# bob #" above a level without letters
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
    """Check for the edge of a banner.

    It is a row of walls longer than the level, next to the level's own edge.
    """
    return set(row.strip()) == set(beside.strip()) == {"#"} and len(row) > max(map(len, level))


def is_collection(data: bytes) -> bool:
    """Check whether a file is an XML collection, possibly in UTF-16."""
    head = data[:4000].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n").lower()
    return head.startswith(b"<?xml") or (head.startswith(b"<") and b"<sokobanlevels" in head)


def read_collection(data: bytes, where: str) -> Iterator[FoundLevel]:
    """Read the levels of a collection, each with the line number of its ``Level`` element.

    Args:
        data: bytes of the file; the XML declares their encoding.
        where: name of the file in error messages.

    Raises:
        BadData: not well-formed, no level, or entity definitions, which are refused because a few lines of them can
            expand to gigabytes.
    """
    reader = _Reader(where)
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        raise BadData(
            f"{where}, line {error.lineno}: not well-formed XML ({what} at column {error.offset})"
        ) from None
    except BadData:
        raise
    except (LookupError, ValueError) as error:  # unknown encoding
        raise BadData(f"{where}: not readable as XML ({error})") from None
    if not reader.levels:
        raise BadData(
            f"{where}: XML without a Level element (or SokoSolve's Map), so it is not a collection of levels"
        )
    yield from reader.levels


_LEVELS, _ROWS = ("level", "map"), ("l", "row")
_SOKOSOLVE = str.maketrans("~.XOP$*", "  $.@*+")


class _Reader:
    """Expat handlers for a collection."""

    def __init__(self, where: str) -> None:
        self.levels: list[FoundLevel] = []
        self._where = where
        self._line = 0
        self._rows: list[str] = []
        self._row: list[str] | None = None
        self._symbols: dict[int, int] = {}
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._refuse

    def _start(self, name: str, _: dict[str, str]) -> None:
        kind = name.lower()
        if kind == "sokobanlibrary":
            self._symbols = _SOKOSOLVE
        elif kind in _LEVELS:
            self._line, self._rows = self.parser.CurrentLineNumber, []
        elif kind in _ROWS:
            self._row = []

    def _end(self, name: str) -> None:
        kind = name.lower()
        if kind in _ROWS and self._row is not None:
            self._rows.append("".join(self._row).translate(self._symbols).rstrip())
            self._row = None
        elif kind in _LEVELS:
            self.levels.append(FoundLevel(self._line, "\n".join(self._rows)))

    def _text(self, data: str) -> None:
        if self._row is not None:
            self._row.append(data)

    def _refuse(self, name: str, *_: object) -> None:
        raise BadData(
            f"{self._where}, line {self.parser.CurrentLineNumber}: the XML defines an entity ({name!r:.40}), which is not read"
        )
