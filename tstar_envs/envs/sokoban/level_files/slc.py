"""Level collections in XML, with names in any case.

``.slc``: each ``Level`` has its rows in ``L`` elements. SokoSolve's ``.ssx``: each ``Map`` has them in ``Row`` elements, in symbols of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.parsers import expat

from tstar_envs.envs.sokoban.level_files.text_file import FoundLevel
from tstar_envs.errors import BadData


def is_collection(data: bytes) -> bool:
    """Whether a file is such a collection, by how it begins; XML may be in UTF-16."""
    head = data[:4000].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n").lower()
    return head.startswith(b"<?xml") or (head.startswith(b"<") and b"<sokobanlevels" in head)


def read_collection(data: bytes, where: str) -> Iterator[FoundLevel]:
    """The levels of a collection, each with the number of the line of its ``Level`` element.

    Args:
        data: the file's bytes; the XML says their encoding.
        where: the file.

    Raises:
        BadData: not well-formed, no level in it, or it defines entities, which no collection needs (a few lines of them can
            stand for gigabytes).
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
    except (LookupError, ValueError) as error:  # an encoding that nobody knows
        raise BadData(f"{where}: not readable as XML ({error})") from None
    if not reader.levels:
        raise BadData(
            f"{where}: XML without a Level element (or SokoSolve's Map), so it is no collection of levels"
        )
    yield from reader.levels


_LEVELS, _ROWS = ("level", "map"), ("l", "row")
_SOKOSOLVE = str.maketrans("~.XOP$*", "  $.@*+")


class _Reader:
    """What expat calls while it goes through a collection."""

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
