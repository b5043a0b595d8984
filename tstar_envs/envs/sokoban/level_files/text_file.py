"""Level files in plain text, as they are in the world: which lines are rows of a level (see ``rows``), and where one level ends.

Between levels stand titles, comments, banners of ``#`` and blank lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tstar_envs.envs.sokoban.level_files.rows import BOX_AND_PLAYER_SIGNS, Line, read_line
from tstar_envs.envs.sokoban.level_files.symbols import XSB_LETTERS

_COMMENT_BEGINS = re.compile(r"\s*+comment\s*+:\s*+", re.IGNORECASE)
_COMMENT_ENDS = re.compile(r"\s*+comment[-_ ]?end\b.*+", re.IGNORECASE)


class FoundLevel(NamedTuple):
    """A level in a file: the number of its first line, its text, and what is wrong with one of its rows ("" if nothing is), and where."""

    line: int
    text: str
    fault: str = ""
    fault_line: int = 0


def split_levels(lines: Iterable[str]) -> Iterator[FoundLevel]:
    """The levels of a file, in its order; nothing of a level itself is checked but the symbols of its rows."""
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
    """Rows with levels in the symbols of this project's observations, which RAGEN's are too, written as XSB.

    Such a level has walls ``#`` and at least one box ``X`` or ``\u221a``, which no other form has together.
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


def _levels_of(block: list[Line]) -> Iterator[FoundLevel]:
    """The levels of lines that follow one another."""
    while block and block[-1].is_gap:
        block = block[:-1]
    if sum(line.players for line in block) > 1:
        yield from _several(block)
    else:
        yield from _one(block)


def _several(block: list[Line]) -> Iterator[FoundLevel]:
    """Levels without a blank line between them: one a line, or parted by rows of ``-``."""
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
    """The level of some lines, if they are more than a banner or a title."""
    signs = any(not BOX_AND_PLAYER_SIGNS.isdisjoint(row) for line in block for row in line.rows)
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
