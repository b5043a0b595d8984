"""The original's JSON files, read as a stream and cleaned the way the original does.

Every error names file, line and field. The large file is never held whole.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tstar_envs.data.faults import Faults
from tstar_envs.envs.webshop.catalogue import Product
from tstar_envs.errors import BadData, MissingData

_CHUNK = 1 << 22  # characters read at a time
_MOST = 1 << 28  # characters of one product: beyond this the file is broken
_NOT_PRICE = re.compile(r"[^\d.]")
LONGEST_ASIN = 10
_STRICT = False  # control characters in texts need not be escaped


class _Reader:
    """A JSON text of which one value after the other is taken, so that it is never held whole."""

    def __init__(self, path: Path, handle: TextIO) -> None:
        self._path, self._handle, self._decoder = path, handle, json.JSONDecoder(strict=_STRICT)
        self._buffer, self._at, self._line = "", 0, 1

    def _refill(self) -> bool:
        more = self._handle.read(max(_CHUNK, len(self._buffer) - self._at))
        if more:
            self._buffer, self._at = self._buffer[self._at :] + more, 0
        return bool(more)

    def _advance(self, end: int) -> None:
        self._line += self._buffer.count("\n", self._at, end)
        self._at = end

    @property
    def where(self) -> str:
        """File and line."""
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
            if (
                len(self._buffer) - end < 3 and self._refill()
            ):  # what looks like a whole number may go on ("1" of "1e+5")
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
            block = handle.read(_CHUNK)
            try:
                line += decoder.decode(block, final=not block).count("\n")
            except UnicodeDecodeError as error:
                return f"{path}, line {line + error.object.count(10, 0, error.start)}"
            if not block:
                return str(path)  # it was changed meanwhile


def read_json(path: Path, kind: type[Any]) -> Any:
    """A whole JSON file that must hold an object (dict) or an array (list)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"), strict=_STRICT)
    except UnicodeDecodeError as error:
        raise BadData(f"{_where_not_text(path)}: not a text file in UTF-8 ({error.reason})") from error
    except (ValueError, RecursionError) as error:
        where = f"{path}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        raise BadData(f"{where}: not JSON ({_reason(error)})") from error
    if not isinstance(value, kind):
        raise BadData(
            f"{path}: must hold {'an object' if kind is dict else 'an array'}, found {type(value).__name__}"
        )
    return value


def _text(record: dict[str, Any], field: str, where: str, default: str | None = None) -> str:
    value = record.get(field, default)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise BadData(f"{where}: field {field!r} must be a string, found {value!r:.80}")
    return value


def parse_pricing(pricing: Any, where: str) -> tuple[list[float], str]:
    """The price bounds and the price tag of a product, as the original writes it."""
    if not pricing:
        return [100.0], "$100.0"
    if not isinstance(pricing, str):
        raise BadData(
            f"{where}: field 'pricing' must be a string such as '$9.99 - $19.99', found {pricing!r:.80}"
        )
    try:
        bounds = [float(_NOT_PRICE.sub("", part)) for part in pricing.split("$")[1:]]
    except ValueError as error:
        raise BadData(f"{where}: field 'pricing' has an amount that is no number: {pricing!r:.80}") from error
    if not bounds:
        raise BadData(f"{where}: field 'pricing' has no amount after '$': {pricing!r:.80}")
    if len(bounds) == 1:
        return bounds, f"${bounds[0]}"
    return bounds[:2], f"${bounds[0]} to ${bounds[1]}"


def parse_options(record: dict[str, Any], where: str) -> dict[str, list[str]]:
    """Option names with their values, in lower case, '/' written ' | '."""
    field = record.get("customization_options") or {}
    if not isinstance(field, dict):
        raise BadData(f"{where}: field 'customization_options' must be an object, found {field!r:.80}")
    options: dict[str, list[str]] = {}
    for name, contents in field.items():
        if contents is None:
            continue
        if not isinstance(contents, list) or not all(
            isinstance(c, dict) and isinstance(c.get("value"), str) for c in contents
        ):
            raise BadData(
                f"{where}: field 'customization_options.{name}' must be a list of objects with a string 'value'"
            )
        options[name.lower()] = [c["value"].strip().replace("/", " | ").lower() for c in contents]
    return options


def _string_list(value: Any, where: Callable[[], str], field: str) -> list[str]:
    if isinstance(value, str) or value is None:
        return [value or ""]
    if not is_strings(value):
        raise BadData(
            f"{where()}: field {field!r} must be a string or a list of strings, found {value!r:.80}"
        )
    return list(value)


def is_strings(value: Any) -> bool:
    """Whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def parse_product(
    record: Any, attributes: Mapping[str, Any], where: str, attributes_file: Path | None
) -> Product | None:
    """A product as the original cleans it, without nouns; None where it is skipped for its ASIN.

    Args:
        record: of the product file.
        attributes: by ASIN.
        where: the record is: file and line.
        attributes_file: where the attributes were read, None if there are none.

    Raises:
        BadData: a field cannot be used; file, line and field are named.
    """
    if not isinstance(record, dict):
        raise BadData(f"{where}: a product must be an object, found {record!r:.80}")
    asin = _text(record, "asin", where)
    if asin == "nan" or not 0 < len(asin) <= LONGEST_ASIN:
        return None
    bounds, tag = parse_pricing(record.get("pricing"), where)
    extra = attributes.get(asin)
    known = extra.get("attributes") if isinstance(extra, dict) else None
    own = ["DUMMY_ATTR"]  # as the original calls those that it does not know
    if known is not None and attributes_file is not None:
        own = _string_list(known, partial(where_is, attributes_file, asin), "attributes")
    return {
        "asin": asin,
        "name": _text(record, "name", where),
        "query": _text(record, "query", where).lower().strip(),
        "category": _text(record, "category", where, ""),
        "product_category": _text(record, "product_category", where, ""),
        "Attributes": own,
        "BulletPoints": _string_list(record.get("small_description"), lambda: where, "small_description"),
        "Description": _text(record, "full_description", where, ""),
        "pricing": bounds,
        "Price": tag,
        "options": parse_options(record, where),
    }


def read_products(
    path: Path, attributes: Mapping[str, Any], attributes_file: Path | None, faults: Faults
) -> Iterator[Product]:
    """The products of an ``items_shuffle*.json``, the first of each ASIN; for the others see ``parse_product``.

    Args:
        path: the file.
        attributes: by ASIN.
        attributes_file: where the attributes were read, None if there are none.
        faults: collects what cannot be used, and decides what becomes of the rest.

    Raises:
        BadData: no JSON; products that cannot be used; or no product that the original would not skip.
        MissingData: no product at all.
    """
    seen: set[str] = set()
    skipped = ""
    for where, record in stream_array(path):
        with faults.collect(where):
            product = parse_product(record, attributes, where, attributes_file)
            if product is None:
                skipped = skipped or f"{where}: {record['asin']!r:.40}"
            elif product["asin"] not in seen:
                seen.add(product["asin"])
                if not faults.hopeless:
                    yield product
    faults.settle(len(seen), "products")
    if not seen and skipped:
        raise BadData(
            f"{path}: the original skips every product of it, for an ASIN that is empty, 'nan' or longer than {LONGEST_ASIN} characters "
            f"(the first: {skipped}); give products ASINs of at most {LONGEST_ASIN} characters"
        )
    if not seen:
        raise MissingData(f"{path}: an empty list; a shop needs products")
