"""How much data from outside is read before it is refused: one table, and the environment variable that raises each limit.

A file by path may be anything: a device that never ends, two gigabytes of line breaks in a small archive, a million objects.
A limit turns each of these into one sentence, and the variable that it names lets those pass who mean it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tstar_envs.errors import BadData, UnknownOption


class Limit(NamedTuple):
    """A bound on what is read.

    Attributes:
        variable: environment variable that sets another one.
        default: the bound without it.
        unit: what is counted, in the plural.
    """

    variable: str
    default: int
    unit: str

    def value(self) -> int:
        """The bound in force.

        Raises:
            UnknownOption: the variable holds no whole number of at least 1.
        """
        given = os.environ.get(self.variable, "")
        if not given:
            return self.default
        if not (given.isascii() and given.isdigit() and len(given) < 19 and int(given)):
            raise UnknownOption(
                f"{self.variable} must be a whole number of {self.unit}, at least 1, got {given!r:.60}"
            )
        return int(given)

    def check(self, count: int, where: object) -> None:
        """Refuse more than the bound.

        Args:
            count: how many there are (or at least how many).
            where: file, and line where known.

        Raises:
            BadData: more than the bound.
        """
        bound = self.value()
        if count > bound:
            raise BadData(
                f"{where}: more than {bound:,} {self.unit}; if that is meant, set {self.variable} to a higher number"
            )


# A catalogue of a million products has some 5 GB in two files.
FILE_BYTES = Limit("TSTAR_MAX_FILE_BYTES", 4 << 30, "bytes in one file")
# Levels, problems, games, settings: read at once.
TEXT_BYTES = Limit("TSTAR_MAX_TEXT_BYTES", 64 << 20, "bytes in one text file")
LINES = Limit("TSTAR_MAX_LINES", 50_000_000, "lines in one file")
JSON_DEPTH = Limit("TSTAR_MAX_JSON_DEPTH", 200, "brackets within one another")
LEVEL_LINES = Limit("TSTAR_MAX_LEVEL_LINES", 2_000_000, "lines in one file of levels")
LEVEL_CELLS = Limit("TSTAR_MAX_LEVEL_CELLS", 10_000, "cells in one level")
PROBLEM_BYTES = Limit("TSTAR_MAX_PROBLEM_BYTES", 4 << 20, "bytes in one problem")
# Optimal plans are NP-hard, observations bounded.
PROBLEM_OBJECTS = Limit("TSTAR_MAX_PROBLEM_OBJECTS", 100, "objects in one problem")
GAME_OBJECTS = Limit("TSTAR_MAX_GAME_OBJECTS", 10_000, "objects in one game")
FILES = Limit("TSTAR_MAX_FILES", 200_000, "files below one folder")
REPLY_BYTES = Limit("TSTAR_MAX_REPLY_BYTES", 256 << 20, "bytes in one reply of a search service")
PRICES_BYTES = Limit("TSTAR_MAX_PRICES_BYTES", 1 << 20, "bytes in one table of prices")
MODEL_REPLY_BYTES = Limit("TSTAR_MAX_MODEL_REPLY_BYTES", 16 << 20, "bytes in one answer of a model")
REPLY_SECONDS = Limit("TSTAR_MAX_REPLY_SECONDS", 120, "seconds for one reply of a search service")
QUESTIONS = Limit("TSTAR_MAX_QUESTIONS", 10_000_000, "questions in one file")
