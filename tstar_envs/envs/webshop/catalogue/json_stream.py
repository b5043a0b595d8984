"""JSON files read as a stream, so that a large one is never held whole. Every error names file and line."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tstar_envs.errors import BadData

CHUNK = 1 << 22  # characters read at a time
_MOST = 1 << 28  # characters of one product: beyond this the file is broken
_STRICT = False  # control characters in texts need not be escaped


class _Reader:
    """A JSON text of which one value after the other is taken, so that it is never held whole."""

    def __init__(self, path: Path, handle: TextIO) -> None:
        self._path, self._handle, self._decoder = path, handle, json.JSONDecoder(strict=_STRICT)
        self._buffer, self._at, self._line = "", 0, 1

    def _refill(self) -> bool:
        more = self._handle.read(max(CHUNK, len(self._buffer) - self._at))
        if more:
            self._buffer, self._at = self._buffer[self._at :] + more, 0
        return bool(more)

    def _advance(self, end: int) -> None:
        self._line += self._buffer.count("\n", self._at, end)
        self._at = end

    @property
    def where(self) -> str:
        """The file and line that the reader is at."""
        return f"{self._path}, line {self._line}"

    def _where_not_json(self, error: Exception) -> str:
        """File and line of an error, whose own position counts from the start of the text that is held."""
        if not isinstance(error, json.JSONDecodeError):
            return self.where
        return f"{self._path}, line {self._line + self._buffer.count(chr(10), self._at, error.pos)}"

    def next_mark(self, skipped: str) -> str:
        """The next character that is neither white space nor ``skipped``, "" at the end of the file; it is not taken."""
        while True:
            while self._at < len(self._buffer):
                character = self._buffer[self._at]
                if not character.isspace() and character != skipped:
                    return character
                self._advance(self._at + 1)
            if not self._refill():
                return ""

    def take_mark(self, expected: str, what: str) -> None:
        """Take the opening bracket."""
        if self.next_mark("") != expected:
            found = self._buffer[self._at : self._at + 20]
            raise BadData(f"{self.where}: {what} must start with {expected!r}, found {found!r}")
        self._at += 1

    def value(self) -> Any:
        """Take the next value."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                if len(self._buffer) - self._at > _MOST or not self._refill():
                    raise BadData(
                        f"{self._where_not_json(error)}: not JSON, or the file is cut off ({_reason(error)})"
                    ) from error
                continue
            # What looks like a whole number may go on ("1" of "1e+5").
            if len(self._buffer) - end < 3 and self._refill():
                continue
            self._advance(end)
            return value


def stream_array(path: Path) -> Iterator[tuple[str, Any]]:
    """The elements of a JSON array, one at a time, each with where it starts (file and line).

    Raises:
        BadData: not an array of JSON values; file and line are named.
    """
    with _opened(path) as reader:
        reader.take_mark("[", "a JSON array of products")
        while reader.next_mark(",") != "]":
            yield reader.where, reader.value()


def stream_object(path: Path) -> Iterator[tuple[str, Any]]:
    """The keys of a JSON object with their values, one at a time.

    Raises:
        BadData: not an object; file and line are named.
    """
    return ((key, value) for _, key, value in _entries(path))


def where_is(path: Path, key: str) -> str:
    """File, line and key of an entry of a JSON object. The file is read for it once more: only errors ask."""
    found = str(path)
    for where, own, _ in _entries(path):
        if own == key:
            found = where  # of equal keys the last counts
    return f"{found}: {key}"


def _entries(path: Path) -> Iterator[tuple[str, str, Any]]:
    """The entries of a JSON object: file and line, key, value."""
    with _opened(path) as reader:
        reader.take_mark("{", "a JSON object by ASIN")
        while reader.next_mark(",") != "}":
            where, key = reader.where, reader.value()
            if not isinstance(key, str):
                raise BadData(f"{where}: a key must be a string, found {key!r:.80}")
            reader.next_mark(":")
            yield where, key, reader.value()


@contextmanager
def _opened(path: Path) -> Iterator[_Reader]:
    try:
        with open(path, encoding="utf-8-sig") as handle:
            yield _Reader(path, handle)
    except UnicodeDecodeError as error:
        raise BadData(f"{_where_not_text(path)}: not a text file in UTF-8 ({error.reason})") from error


def _reason(error: Exception) -> str:
    """What is wrong; without a position, which may count from elsewhere."""
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _where_not_text(path: Path) -> str:
    """File and line of the first byte that is no UTF-8; the lines may be too long to be held."""
    decoder, line = getincrementaldecoder("utf-8")(), 1
    with open(path, "rb") as handle:
        while True:
            block = handle.read(CHUNK)
            try:
                line += decoder.decode(block, final=not block).count("\n")
            except UnicodeDecodeError as error:
                return f"{path}, line {line + error.object.count(10, 0, error.start)}"
            if not block:
                return str(path)  # it was changed meanwhile


def is_strings(value: Any) -> bool:
    """Whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
