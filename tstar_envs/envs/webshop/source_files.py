"""The original's JSON files, read as a stream and cleaned the way the original does.

Every error names file, line and field. The large file is never held whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tstar_envs.envs.webshop.catalogue import Product
from tstar_envs.errors import BadData

_CHUNK = 1 << 22  # characters read at a time
_MOST = 1 << 28  # characters of one product: beyond this the file is broken
_SPACE = re.compile(r"[\s,]*")
_NOT_PRICE = re.compile(r"[^\d.]")
LONGEST_ASIN = 10


def stream_array(path: Path) -> Iterator[tuple[str, Any]]:
    """The elements of a JSON array, one at a time, each with where it starts (file and line).

    Raises:
        BadData: not an array of JSON values; file and line are named.
    """
    decoder = json.JSONDecoder()
    try:
        with open(path, encoding="utf-8") as handle:
            buffer, line, ended = handle.read(_CHUNK).lstrip("\ufeff"), 1, False
            head = buffer.lstrip()
            if not head.startswith("["):
                raise BadData(f"{path}, line 1: a JSON array of products must start with '[', found {head[:20]!r}")
            line += buffer[: len(buffer) - len(head)].count("\n")
            buffer = head[1:]
            while True:
                space = _SPACE.match(buffer)
                skip = space.end() if space else 0
                if buffer[skip : skip + 1] == "]":
                    return
                where = f"{path}, line {line + buffer.count(chr(10), 0, skip)}"
                try:
                    value, end = decoder.raw_decode(buffer, skip)
                except (ValueError, RecursionError) as error:
                    more = "" if ended or len(buffer) > _MOST else handle.read(max(_CHUNK, len(buffer)))
                    if not more:
                        raise BadData(f"{where}: not JSON, or the file is cut off ({error})") from error
                    buffer += more
                    continue
                yield where, value
                line += buffer.count("\n", 0, end)
                buffer = buffer[end:]
                if len(buffer) < _CHUNK // 4 and not ended:
                    more = handle.read(_CHUNK)
                    ended, buffer = not more, buffer + more
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: not a text file in UTF-8 ({error})") from error


def read_json(path: Path, kind: type[Any]) -> Any:
    """A whole JSON file that must hold an object (dict) or an array (list)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}: not JSON in UTF-8 ({error})") from error
    if not isinstance(value, kind):
        raise BadData(f"{path}: must hold {'an object' if kind is dict else 'an array'}, found {type(value).__name__}")
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
        raise BadData(f"{where}: field 'pricing' must be a string such as '$9.99 - $19.99', found {pricing!r:.80}")
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
        if not isinstance(contents, list) or not all(isinstance(c, dict) and isinstance(c.get("value"), str) for c in contents):
            raise BadData(f"{where}: field 'customization_options.{name}' must be a list of objects with a string 'value'")
        options[name.lower()] = [c["value"].strip().replace("/", " | ").lower() for c in contents]
    return options


def _string_list(value: Any, where: str, field: str) -> list[str]:
    if isinstance(value, str) or value is None:
        return [value or ""]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadData(f"{where}: field {field!r} must be a string or a list of strings, found {value!r:.80}")
    return list(value)


def parse_product(record: Any, attributes: dict[str, Any], where: str) -> Product | None:
    """A product as the original cleans it, without nouns; None where it is skipped for its ASIN.

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
    return {
        "asin": asin,
        "name": _text(record, "name", where),
        "query": _text(record, "query", where).lower().strip(),
        "category": _text(record, "category", where, ""),
        "product_category": _text(record, "product_category", where, ""),
        "Attributes": _string_list(known, f"attributes of {asin}", "attributes") if known is not None else ["DUMMY_ATTR"],
        "BulletPoints": _string_list(record.get("small_description"), where, "small_description"),
        "Description": _text(record, "full_description", where, ""),
        "pricing": bounds,
        "Price": tag,
        "options": parse_options(record, where),
    }


def read_products(path: Path, attributes: dict[str, Any]) -> Iterator[Product]:
    """The products of an ``items_shuffle*.json``, the first of each ASIN."""
    seen: set[str] = set()
    for where, record in stream_array(path):
        product = parse_product(record, attributes, where)
        if product is not None and product["asin"] not in seen:
            seen.add(product["asin"])
            yield product
