"""Files that others may have made: bounded reading, and writing whole."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from tstar_envs.errors import BadData, MissingData, UnknownOption


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


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_PIECE = 1 << 20  # bytes read at a time
_NAMES: dict[Any, str] = {dict: "an object {...}", list: "a list [...]", str: "a text"}


def regular_file(path: str | os.PathLike[str]) -> Path:
    """The path, once it is known to be a regular file (or a link to one).

    Raises:
        MissingData: nothing there, or a link that leads nowhere.
        BadData: a folder, a pipe, a device, or a name that the system refuses.
    """
    found = Path(path)
    try:
        kind = stat.S_IFMT(found.stat().st_mode)
    except FileNotFoundError:
        what = "is a link that leads nowhere" if found.is_symlink() else "there is no such file"
        raise MissingData(f"{shown(found)}: {what}") from None
    except (
        OSError,
        ValueError,
    ) as error:  # a name too long, no permission, a loop of links; a NUL in the name
        raise BadData(f"{shown(found)}: cannot be read: {_reason(error)}") from None
    if kind != stat.S_IFREG:
        raise BadData(f"{shown(found)}: {_KINDS.get(kind, 'something else')}, not a regular file")
    return found


def find_files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """All files below a folder with one of the endings (in any case), sorted; what only looks like one by name is left out.

    Folders, pipes and broken links with such a name are no data; links to folders are not followed.

    Raises:
        BadData: more files than the limit, or a folder that cannot be read.
    """
    endings = tuple(suffix.lower() for suffix in suffixes)
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=_unreadable):
        folders.sort()
        found += [
            path
            for name in names
            if name.lower().endswith(endings) and (path := Path(parent, name)).is_file()
        ]
        FILES.check(len(found), folder)
    return sorted(found)


def _unreadable(error: OSError) -> NoReturn:
    raise BadData(f"{error.filename}: cannot be read: {_reason(error)}") from error


def read_bytes(path: str | os.PathLike[str], limit: Limit = TEXT_BYTES) -> bytes:
    """A whole file, unpacked where its name ends in ``.gz``.

    Raises:
        MissingData: nothing there.
        BadData: no regular file, more bytes than the limit, or a damaged archive.
    """
    return b"".join(_pieces(regular_file(path), limit))


def read_text(path: str | os.PathLike[str], limit: Limit = TEXT_BYTES, fallback: str | None = None) -> str:
    """A whole file as text: UTF-8, with or without a byte order mark.

    Args:
        path: the file.
        limit: how many bytes it may have.
        fallback: encoding of files that are not UTF-8 (old level collections are Latin-1), None refuses them.

    Raises:
        MissingData: nothing there.
        BadData: no regular file, too long, not UTF-8, or bytes of value 0 (no text).
    """
    return decode(read_bytes(path, limit), path, fallback)


def decode(data: bytes, path: str | os.PathLike[str], fallback: str | None = None) -> str:
    """The text of a file's bytes, as ``read_text`` gives it; ``path`` is for the message.

    Raises:
        BadData: not UTF-8, or bytes of value 0.
    """
    marked = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    if marked or b"\0" in data:
        if kind := file_kind(path):
            raise BadData(f"{path}: not a text file but {kind}")
        zeros = ", it holds bytes of value 0" if b"\0" in data else ""
        utf_16 = "; it seems to be in UTF-16, save it as UTF-8" if marked else ""
        raise BadData(f"{path}: not a text file{zeros}{utf_16}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if fallback is not None:
            return data.decode(fallback)
        line = data.count(b"\n", 0, error.start) + 1
        if line == 1 and (kind := file_kind(path)):
            raise BadData(f"{path}: not a text file but {kind}") from None
        raise BadData(
            f"{path}, line {line}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None


def read_lines(path: str | os.PathLike[str], limit: Limit = FILE_BYTES) -> Iterator[tuple[int, str]]:
    """The lines of a large file, numbered from 1 and without their ends, unpacked where its name ends in ``.gz``.

    Raises:
        MissingData: nothing there.
        BadData: no regular file, more bytes or lines than the limits, a line longer than a text file may be, a damaged archive,
            or a line that is not UTF-8.
    """
    rest, number = b"", 0
    pieces = _pieces(regular_file(path), limit)
    for piece in _and_an_end(pieces):
        *lines, rest = (rest + piece).split(b"\n") if piece is not None else (*rest.split(b"\n"), b"")
        TEXT_BYTES.check(len(rest), f"{path}, line {number + len(lines) + 1}")
        for line in lines if piece is not None or lines != [b""] else ():
            number += 1
            try:
                yield number, line.removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                where = f"{path}, line {number}"
                if number == 1 and (kind := file_kind(path)):
                    raise BadData(f"{path}: not a text file but {kind}") from None
                raise BadData(
                    f"{where}: not UTF-8 ({error.reason} at byte {error.start} of the line), so not a text file"
                ) from None
        LINES.check(number, path)


def _and_an_end(pieces: Iterator[bytes]) -> Iterator[bytes | None]:
    yield from pieces
    yield None


def _pieces(path: Path, limit: Limit) -> Iterator[bytes]:
    """The bytes of a file, never more than the limit."""
    if any("\ud800" <= sign <= "\udfff" for sign in str(path)):
        # Task ids are made of names, and go into records and terminals.
        raise BadData(f"{shown(path)}: its name is not UTF-8; rename it")
    packed = path.suffix.lower() == ".gz"
    count = 0
    try:
        with open(path, "rb", opener=_without_waiting) as raw, gzip.open(raw) if packed else raw as stream:
            while piece := stream.read(_PIECE):
                count += len(piece)
                limit.check(count, f"{path} (unpacked)" if packed else path)
                yield piece
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadData(f"{path}: a damaged archive ({error}); fetch it again") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read: {_reason(error)}") from error


def _without_waiting(path: str, flags: int) -> int:
    """Some files of the system (``/proc/kmsg``) are regular by name and wait for ever; this changes nothing for those of a disk."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(
    path: str | os.PathLike[str], expected: type = dict, limit: Limit = TEXT_BYTES, strict: bool = True
) -> Any:
    """A JSON file.

    Args:
        path: the file.
        expected: ``dict`` or ``list``, what it must hold; ``object`` takes anything.
        limit: how many bytes it may have.
        strict: as of ``parse_json``.

    Raises:
        MissingData: nothing there.
        BadData: whatever else is wrong with it, in one sentence that names the file.
    """
    return parse_json(read_text(path, limit), path, expected, strict)


def parse_json(text: str, where: object, expected: type = dict, strict: bool = True) -> Any:
    """What a JSON text says.

    Args:
        text: the text.
        where: the file, and line where known, for the message.
        expected: ``dict`` or ``list``, what it must hold; ``object`` takes anything.
        strict: False lets texts hold line breaks and other control characters as they are.

    Raises:
        BadData: not JSON, cut off, nested too deeply, a number with thousands of digits, or something else than expected.
    """
    _check_depth(text, where)
    try:
        value = json.loads(text, strict=strict)
    except json.JSONDecodeError as error:
        kind = file_kind(str(where).partition(", line ")[0])
        raise BadData(
            f"{where}: not JSON {f'but {kind}' if kind else f'({error.msg} at line {error.lineno}, column {error.colno})'}"
        ) from None
    except ValueError as error:  # a whole number with more digits than Python turns into one
        raise BadData(f"{where}: not usable JSON ({error})") from None
    if not isinstance(value, expected):
        raise BadData(
            f"{where}: {_NAMES.get(expected, expected.__name__)} is expected, found {text.strip()[:40]!r}"
        )
    return value


def file_kind(path: str | os.PathLike[str]) -> str:
    """What a file is that is no text of its form, "" where its first bytes do not say."""
    from retriever.file_kinds import kind_of_file  # read by both packages, and only where something is wrong

    return kind_of_file(path)


_BRACKETS_AND_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _check_depth(text: str, where: object) -> None:
    """Refuse nesting that would end in a RecursionError, wherever in the stack we are."""
    bound = JSON_DEPTH.value()
    if text.count("[") + text.count("{") <= bound:
        return
    depth = 0
    for found in _BRACKETS_AND_TEXTS.finditer(text):
        sign = found[0]
        if sign in "[{":
            depth += 1
            if depth > bound:
                JSON_DEPTH.check(depth, where)
        elif sign in "]}":
            depth -= 1


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that it is there whole or not at all, whenever the process ends.

    Raises:
        OSError: it cannot be written; what stood there before still does.
    """
    with whole_file(path) as handle:
        handle.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece, as ``write_whole`` writes one at once: it takes its name when the block ends without an error.

    Raises:
        OSError: it cannot be written; what stood there before still does.
    """
    # One name for all writers of a file (``lock`` keeps a second one out), so that what a killed one left is written over.
    temporary = path.with_name(f".{path.name}.partial")
    try:
        # Made anew: a link of that name would lead the writing elsewhere.
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.filename is None:  # a full disk: the system names no file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def shown(path: str | os.PathLike[str]) -> str:
    """A path in a message: one of thousands of characters is cut, what no terminal shows is written as Python does."""
    text = os.fspath(path).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= 200 else f"{text[:100]}...{text[-60:]} ({len(text):,} characters)"


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
