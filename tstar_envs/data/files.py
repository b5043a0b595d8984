"""Bounded reading of untrusted files, and atomic writing."""

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
    """Limit on reading.

    Attributes:
        variable: environment variable that overrides it.
        default: limit without the variable.
        unit: what is counted, in the plural.
    """

    variable: str
    default: int
    unit: str

    def value(self) -> int:
        """Get the limit in force.

        Raises:
            UnknownOption: the variable is not an integer of at least 1.
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
        """Raise if a count exceeds the limit.

        Args:
            count: number of units (or a lower bound).
            where: file, and line if known.

        Raises:
            BadData: the count exceeds the limit.
        """
        bound = self.value()
        if count > bound:
            raise BadData(
                f"{where}: more than {bound:,} {self.unit}; if that is meant, set {self.variable} to a higher number"
            )


# A catalogue of a million products has some 5 GB in two files.
FILE_BYTES = Limit("TSTAR_MAX_FILE_BYTES", 4 << 30, "bytes in one file")
# Levels, problems, games, settings: read into memory.
TEXT_BYTES = Limit("TSTAR_MAX_TEXT_BYTES", 64 << 20, "bytes in one text file")
LINES = Limit("TSTAR_MAX_LINES", 50_000_000, "lines in one file")
JSON_DEPTH = Limit("TSTAR_MAX_JSON_DEPTH", 200, "brackets within one another")
LEVEL_LINES = Limit("TSTAR_MAX_LEVEL_LINES", 2_000_000, "lines in one file of levels")
LEVEL_CELLS = Limit("TSTAR_MAX_LEVEL_CELLS", 10_000, "cells in one level")
PROBLEM_BYTES = Limit("TSTAR_MAX_PROBLEM_BYTES", 4 << 20, "bytes in one problem")
# Optimal planning is NP-hard, and observations are bounded.
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
_PIECE = 1 << 20  # bytes per read
_NAMES: dict[Any, str] = {dict: "an object {...}", list: "a list [...]", str: "a text"}


def regular_file(path: str | os.PathLike[str]) -> Path:
    """Return the path if it is a regular file (or a link to one).

    Example:
        >>> from pathlib import Path
        >>> from tstar_envs import regular_file, write_whole
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> write_whole(path, "text")
        >>> regular_file(path) == path
        True

    Raises:
        MissingData: no such file, or a broken link.
        BadData: a folder, a pipe, a device, or a name that the system rejects.
    """
    found = Path(path)
    try:
        kind = stat.S_IFMT(found.stat().st_mode)
    except FileNotFoundError:
        what = "is a broken link" if found.is_symlink() else "there is no such file"
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
    """List all regular files below a folder with one of the suffixes (in any case), sorted.

    Folders, pipes and broken links with such a name are skipped; links to folders are not followed.

    Raises:
        BadData: more files than the limit, or an unreadable folder.
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
    """Read a whole file; decompress it if its name ends in ``.gz``.

    Raises:
        MissingData: no such file.
        BadData: not a regular file, more bytes than the limit, or a damaged archive.
    """
    return b"".join(_pieces(regular_file(path), limit))


def read_text(path: str | os.PathLike[str], limit: Limit = TEXT_BYTES, fallback: str | None = None) -> str:
    """Read a whole text file: UTF-8, with or without a byte order mark.

    Args:
        limit: maximum number of bytes.
        fallback: encoding of files that are not UTF-8 (old level collections are Latin-1); None rejects them.

    Raises:
        MissingData: no such file.
        BadData: not a regular file, too long, not UTF-8, or with NUL bytes (not text).
    """
    return decode(read_bytes(path, limit), path, fallback)


def decode(data: bytes, path: str | os.PathLike[str], fallback: str | None = None) -> str:
    """Decode the bytes of a file like ``read_text``; ``path`` is for the message.

    Raises:
        BadData: not UTF-8, or with NUL bytes.
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
    """Iterate over a large file's numbered lines (from 1), without line ends; decompresses ``.gz``.

    Raises:
        MissingData: no such file.
        BadData: not a regular file, more bytes or lines than the limits, a line longer than a text file may be, a damaged archive, or a
            line that is not UTF-8.
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
    """Read the bytes of a file in chunks, up to the limit."""
    if any("\ud800" <= sign <= "\udfff" for sign in str(path)):
        # Task ids contain file names, and go into records and terminals.
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
    """Open without blocking: some system files (``/proc/kmsg``) look regular and block forever. No effect on disk files."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(
    path: str | os.PathLike[str], expected: type = dict, limit: Limit = TEXT_BYTES, strict: bool = True
) -> Any:
    """Read a JSON file.

    Args:
        expected: required type, ``dict`` or ``list``; ``object`` accepts anything.
        limit: maximum number of bytes.
        strict: see ``parse_json``.

    Raises:
        MissingData: no such file.
        BadData: any other fault, in one sentence that names the file.
    """
    return parse_json(read_text(path, limit), path, expected, strict)


def parse_json(text: str, where: object, expected: type = dict, strict: bool = True) -> Any:
    """Parse a JSON text.

    Example:
        >>> from tstar_envs import parse_json
        >>> parse_json('{"a": 1}', "notes.json")
        {'a': 1}

    Args:
        where: file, and line if known, for the message.
        expected: required type, ``dict`` or ``list``; ``object`` accepts anything.
        strict: False allows line breaks and other control characters in strings.

    Raises:
        BadData: not JSON, truncated, nested too deeply, a number with thousands of digits, or another type than expected.
    """
    _check_depth(text, where)
    try:
        value = json.loads(text, strict=strict)
    except json.JSONDecodeError as error:
        kind = file_kind(str(where).partition(", line ")[0])
        raise BadData(
            f"{where}: not JSON {f'but {kind}' if kind else f'({error.msg} at line {error.lineno}, column {error.colno})'}"
        ) from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise BadData(f"{where}: not usable JSON ({error})") from None
    if not isinstance(value, expected):
        raise BadData(
            f"{where}: {_NAMES.get(expected, expected.__name__)} is expected, found {text.strip()[:40]!r}"
        )
    return value


def file_kind(path: str | os.PathLike[str]) -> str:
    """Guess the kind of a file in the wrong format; "" if its first bytes do not tell."""
    from retriever.file_kinds import kind_of_file  # shared by both packages, and imported only on errors

    return kind_of_file(path)


_BRACKETS_AND_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _check_depth(text: str, where: object) -> None:
    """Reject nesting that would cause a RecursionError, at any stack depth."""
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
    """Write a file atomically: it is there whole or not at all, whenever the process ends.

    Raises:
        OSError: it cannot be written; the previous content is intact.
    """
    with whole_file(path) as handle:
        handle.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for atomic writing in pieces; renamed when the block succeeds.

    Raises:
        OSError: it cannot be written; the previous content is intact.
    """
    # One temporary name for all writers of a file (``lock`` excludes a second writer), so that leftovers are overwritten.
    temporary = path.with_name(f".{path.name}.partial")
    try:
        # Unlink first: a link of that name would redirect the writing.
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
    """Format a path for a message: truncated if very long, with unprintable characters escaped."""
    text = os.fspath(path).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= 200 else f"{text[:100]}...{text[-60:]} ({len(text):,} characters)"


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
