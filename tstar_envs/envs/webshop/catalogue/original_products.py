"""Products of the original's files, cleaned the way the original does. Every error names file, line and field."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tstar_envs.data.faults import Faults
from tstar_envs.envs.webshop.catalogue.json_stream import is_strings, stream_array, where_is
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.errors import BadData, MissingData

_NOT_PRICE = re.compile(r"[^\d.]")
LONGEST_ASIN = 10


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
