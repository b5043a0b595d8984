"""Reader of the original WebShop's files: products, goals, prices."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any, TextIO

from tstar_envs.data.faults import Faults
from tstar_envs.data.files import FILE_BYTES, read_json, regular_file
from tstar_envs.envs.webshop.catalogue import Catalogue, Product, Records
from tstar_envs.envs.webshop.shop import Plan, Task, best_tagger, store_folder
from tstar_envs.errors import BadData, MissingData
from tstar_envs.utils import StableRandom

CHUNK = 1 << 22  # characters per read
_MOST = 1 << 28  # maximum characters of one product; more means a broken file
_STRICT = False  # allow unescaped control characters


class _Reader:
    """Streaming JSON reader that holds one value at a time."""

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
        """Current file and line."""
        return f"{self._path}, line {self._line}"

    def _where_not_json(self, error: Exception) -> str:
        """Locate an error, whose own position is relative to the buffer, as file and line."""
        if not isinstance(error, json.JSONDecodeError):
            return self.where
        return f"{self._path}, line {self._line + self._buffer.count(chr(10), self._at, error.pos)}"

    def next_mark(self, skipped: str) -> str:
        """Peek at the next character that is neither white space nor ``skipped``.

        "" at the end of the file.
        """
        while True:
            while self._at < len(self._buffer):
                character = self._buffer[self._at]
                if not character.isspace() and character != skipped:
                    return character
                self._advance(self._at + 1)
            if not self._refill():
                return ""

    def take_mark(self, expected: str, what: str) -> None:
        """Consume the opening bracket."""
        if self.next_mark("") != expected:
            found = self._buffer[self._at : self._at + 20]
            raise BadData(f"{self.where}: {what} must start with {expected!r}, found {found!r}")
        self._at += 1

    def value(self) -> Any:
        """Parse the next value."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                if len(self._buffer) - self._at > _MOST or not self._refill():
                    raise BadData(
                        f"{self._where_not_json(error)}: not JSON, or the file is cut off ({_reason(error)})"
                    ) from error
                continue
            # A number may continue in the next chunk ("1" of "1e+5").
            if len(self._buffer) - end < 3 and self._refill():
                continue
            self._advance(end)
            return value


def stream_array(path: Path) -> Iterator[tuple[str, Any]]:
    """Stream the elements of a JSON array, each with its file and line.

    Raises:
        BadData: the file is not a JSON array; the message names file and line.
    """
    with _opened(path) as reader:
        reader.take_mark("[", "a JSON array of products")
        while reader.next_mark(",") != "]":
            yield reader.where, reader.value()


def stream_object(path: Path) -> Iterator[tuple[str, Any]]:
    """Stream the (key, value) pairs of a JSON object.

    Raises:
        BadData: the file is not a JSON object; the message names file and line.
    """
    return ((key, value) for _, key, value in _entries(path))


def where_is(path: Path, key: str) -> str:
    """Locate an entry of a JSON object as file, line and key.

    This rereads the file, only for error messages.
    """
    found = str(path)
    for where, own, _ in _entries(path):
        if own == key:
            found = where  # the last of equal keys wins
    return f"{found}: {key}"


def _entries(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Stream the entries of a JSON object as (file and line, key, value)."""
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
    """Get an error's reason without its position, which may be relative to a buffer."""
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _where_not_text(path: Path) -> str:
    """Locate the first byte that is not UTF-8, without holding whole lines."""
    decoder, line = getincrementaldecoder("utf-8")(), 1
    with open(path, "rb") as handle:
        while True:
            block = handle.read(CHUNK)
            try:
                line += decoder.decode(block, final=not block).count("\n")
            except UnicodeDecodeError as error:
                return f"{path}, line {line + error.object.count(10, 0, error.start)}"
            if not block:
                return str(path)  # the file has changed meanwhile


def is_strings(value: Any) -> bool:
    """Check whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


NO_BOUND = 1_000_000
PRICE_STEPS = [10.0 * step for step in range(1, 100)]


def draw_bound(price: float, rng: StableRandom) -> tuple[float, str]:
    """Draw a price limit and its wording.

    It is the larger of two draws from the next four multiples of ten above the price.
    """
    steps = [step for step in PRICE_STEPS if step > price][:4]
    if len(steps) < 2:
        return NO_BOUND, ""
    bound = max(rng.shuffled(steps)[:2])
    return bound, f", and price lower than {bound:.2f} dollars"


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
    """Parse the price bounds and the price tag of a product, as the original does."""
    if not pricing:
        return [100.0], "$100.0"
    if not isinstance(pricing, str):
        raise BadData(
            f"{where}: field 'pricing' must be a string such as '$9.99 - $19.99', found {pricing!r:.80}"
        )
    try:
        bounds = [float(_NOT_PRICE.sub("", part)) for part in pricing.split("$")[1:]]
    except ValueError as error:
        raise BadData(
            f"{where}: field 'pricing' has an amount that is not a number: {pricing!r:.80}"
        ) from error
    if not bounds:
        raise BadData(f"{where}: field 'pricing' has no amount after '$': {pricing!r:.80}")
    if len(bounds) == 1:
        return bounds, f"${bounds[0]}"
    return bounds[:2], f"${bounds[0]} to ${bounds[1]}"


def parse_options(record: dict[str, Any], where: str) -> dict[str, list[str]]:
    """Parse option names and values, in lower case, with '/' as ' | '."""
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
    """Clean a product as the original does, without nouns.

    None if its ASIN makes the original skip it.

    Args:
        record: entry of the product file.
        attributes: attributes by ASIN.
        where: file and line of the record.
        attributes_file: source of the attributes, None if missing.

    Raises:
        BadData: a field is unusable; the message names file, line and field.
    """
    if not isinstance(record, dict):
        raise BadData(f"{where}: a product must be an object, found {record!r:.80}")
    asin = _text(record, "asin", where)
    if asin == "nan" or not 0 < len(asin) <= LONGEST_ASIN:
        return None
    bounds, tag = parse_pricing(record.get("pricing"), where)
    extra = attributes.get(asin)
    known = extra.get("attributes") if isinstance(extra, dict) else None
    own = ["DUMMY_ATTR"]  # the original's placeholder for unknown attributes
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
    """Read the products of an ``items_shuffle*.json``; repeated ASINs are skipped.

    Args:
        path: the file.
        attributes: attributes by ASIN.
        attributes_file: source of the attributes, None if missing.
        faults: collects unusable products, and decides whether they are skipped or refused.

    Raises:
        BadData: not JSON, unusable products, or only products that the original skips.
        MissingData: no product.
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


SHUFFLE_SEED = 233
# The original's ranges of positions after the shuffle.
RANGES = {"test": (0, 500), "valid": (500, 1500), "train": (1500, None)}
_FIELDS: Mapping[str, tuple[type[Any], ...]] = {
    "asin": (str,),
    "query": (str,),
    "name": (str,),
    "product_category": (str,),
    "instruction_text": (str,),
    "attributes": (list,),
    "goal_options": (list, dict),
    "price_upper": (int, float),
}


def draw_price(product: Product, seed: int) -> float:
    """Draw a product's price: its own, or uniform between its bounds.

    Reproducible from seed and ASIN.
    """
    bounds = product["pricing"]
    if len(bounds) == 1:
        return float(bounds[0])
    low, high = bounds[:2]
    return float(low + (high - low) * (_draw("price", seed, product["asin"]).below(1 << 30) / (1 << 30)))


def _draw(what: str, seed: int, *of: str) -> StableRandom:
    """Create an independent random source for one purpose; an ASIN may contain lone surrogates."""
    return StableRandom(
        "/".join(["webshop", what, str(seed), *of]).encode("utf-8", "backslashreplace").decode()
    )


def _goal(
    product: Product, instruction: str, attributes: list[str], options: Any, bound: float
) -> dict[str, Any]:
    return {
        **{key: product[key] for key in ("asin", "category", "query", "name", "product_category")},
        "instruction_text": instruction,
        "attributes": attributes,
        "price_upper": bound,
        "goal_options": options,
    }


def human_goals(
    product: Product, records: Any, price: float, seed: int, where: Callable[[], str]
) -> Iterator[dict[str, Any]]:
    """Read the human-written goals of a product; those without attributes are skipped.

    Raises:
        BadData: a field is unusable; ``where`` gives file, line and ASIN.
    """
    if not isinstance(records, list):
        raise BadData(f"{where()} must hold a list of instructions, found {records!r:.80}")
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise BadData(f"{where()}[{number}]: an instruction must be an object, found {record!r:.80}")
        if not isinstance(record.get("instruction"), str):
            raise BadData(
                f"{where()}[{number}]: field 'instruction' must be a string, found {record.get('instruction')!r:.80}"
            )
        for name in ("instruction_attributes", "instruction_options"):
            if not is_strings(record.get(name)):
                raise BadData(
                    f"{where()}[{number}]: field {name!r} must be a list of strings, found {record.get(name)!r:.80}"
                )
        if record["instruction_attributes"]:
            bound, words = draw_bound(price, _draw("bound", seed, product["asin"], str(number)))
            text = record["instruction"].strip(".") + words
            yield _goal(product, text, record["instruction_attributes"], record["instruction_options"], bound)


def synthetic_goals(
    product: Product, record: Any, price: float, seed: int, where: Callable[[], str]
) -> Iterator[dict[str, Any]]:
    """Generate one goal per combination of option values of a product with a synthetic instruction.

    Raises:
        BadData: a field is unusable; ``where`` gives file, line and ASIN.
    """
    if (
        not isinstance(record, dict)
        or not record.get("instruction")
        or not record.get("instruction_attributes")
    ):
        return
    if not isinstance(record["instruction"], str):
        raise BadData(f"{where()}: field 'instruction' must be a string, found {record['instruction']!r:.80}")
    if not is_strings(record["instruction_attributes"]):
        found = record["instruction_attributes"]
        raise BadData(
            f"{where()}: field 'instruction_attributes' must be a list of strings, found {found!r:.80}"
        )
    bound, words = draw_bound(price, _draw("bound", seed, product["asin"]))
    names = sorted(product["options"])
    for values in itertools.product(*(product["options"][name] for name in names)):
        options = dict(zip(names, values, strict=True))
        text = ", and ".join(f"{name}: {value}" for name, value in options.items())
        instruction = record["instruction"] + (f" with {text}" if text else "") + words
        yield _goal(product, instruction, record["instruction_attributes"], options, bound)


def shuffle_goals(goals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shuffle goals into the original's order (``random.seed(233)``)."""
    shuffled = list(goals)
    Random(SHUFFLE_SEED).shuffle(shuffled)
    return shuffled


def check_goal(goal: Any, where: str) -> dict[str, Any]:
    """Validate a goal of a ``goals.json``.

    Raises:
        BadData: a field is missing or has a wrong type; the message names file, position and field.
    """
    if not isinstance(goal, dict):
        raise BadData(f"{where}: a goal must be an object, found {goal!r:.80}")
    for name, kinds in _FIELDS.items():
        if isinstance(goal.get(name), bool) or not isinstance(goal.get(name), kinds):
            raise BadData(
                f"{where}: field {name!r} must be {' or '.join(k.__name__ for k in kinds)}, found {goal.get(name)!r:.80}"
            )
    texts = [
        *goal["attributes"],
        *(goal["goal_options"].values() if isinstance(goal["goal_options"], dict) else goal["goal_options"]),
    ]
    if not all(isinstance(text, str) for text in texts):
        raise BadData(f"{where}: fields 'attributes' and 'goal_options' must hold strings only")
    return goal


def make_tasks(goals: list[dict[str, Any]], nouns: Callable[[dict[str, Any]], list[str]]) -> list[Task]:
    """Convert goals to tasks, split by the original's ranges; ids are the positions."""
    tasks = []
    for position, goal in enumerate(goals):
        split = next(
            name
            for name, (first, end) in RANGES.items()
            if first <= position and (end is None or position < end)
        )
        query = goal["query"] or goal["name"]
        tasks.append(
            Task(f"webshop-{position}", split, goal, tuple(nouns(goal)), query, goal["instruction_text"])
        )
    return tasks


LARGE_BYTES = 64_000_000  # files up to this size are read at once


def source_paths(folder: Path) -> list[Path]:
    """List the source files of a folder, products first.

    Raises:
        MissingData: the products are missing.
        BadData: a source is a pipe or a device.
    """
    path = _pick(folder, "items_shuffle")
    if path is None:
        raise MissingData(
            f"no items_shuffle*.json in {folder}; scripts/fetch_data webshop (1.18 million products) or webshop-1000 fetches the "
            "original's files, and data='mini' works without any"
        )
    others = (
        _pick(folder, "items_ins_v2"),
        *(folder / name for name in ("items_human_ins.json", "goals.json", "prices.json")),
    )
    return [
        regular_file(path),
        *(regular_file(other) for other in others if other is not None and other.exists()),
    ]


def plan(folder: Path, seed: int, skip_bad: bool = False) -> Plan:
    """Create the build plan for the shop of a folder; see ``tasks.load_shop``."""
    sources = source_paths(folder)
    path, extra = sources[0], _pick(folder, "items_ins_v2")
    human, fixed, fixed_prices = (
        folder / name for name in ("items_human_ins.json", "goals.json", "prices.json")
    )
    product_faults, goal_faults = Faults(skip_bad), Faults(skip_bad)
    tagger = best_tagger()
    store = store_folder(
        str(folder.resolve()), sources, seed, tagger.name, *(["skip_bad"] if skip_bad else [])
    )
    prices = _fixed_prices(fixed_prices) if fixed_prices.is_file() else {}
    records = store.with_name(store.name + ".attributes")

    @lru_cache(maxsize=1)
    def attributes() -> Mapping[str, Any]:
        if extra is None:
            return {}
        if extra.stat().st_size <= LARGE_BYTES:
            read: dict[str, Any] = _read_json(extra, dict)
            return read
        return Records.write(records, stream_object(extra))

    def tasks(catalogue: Catalogue) -> list[Task]:
        if fixed.is_file():
            _read_json(fixed, list)  # stricter about commas than the streaming reader
            goals = []
            for number, (where, goal) in enumerate(stream_array(fixed)):
                with goal_faults.collect(f"{where}, goal {number}"):
                    goals.append(check_goal(goal, f"{where}, goal {number}"))
        else:
            goals = shuffle_goals(list(_draw_goals(catalogue, attributes, extra, human, seed, goal_faults)))
        shutil.rmtree(records, ignore_errors=True)  # it may not exist
        goal_faults.settle(len(goals), "goals")
        if not goals:
            raise _no_goals(
                folder,
                [source for source in (fixed, human, extra) if source is not None and source in sources],
            )

        def nouns(goal: dict[str, Any]) -> list[str]:
            number = catalogue.find(goal["asin"])
            product = catalogue.product(number) if number is not None else None
            same = product is not None and product["name"] == goal["name"]
            return list(product["nouns"]) if product is not None and same else tagger.nouns(goal["name"])

        return make_tasks(goals, nouns)

    return Plan(
        store,
        lambda: read_products(path, attributes(), extra, product_faults),
        lambda product: (
            float(prices[product["asin"]]) if product["asin"] in prices else draw_price(product, seed)
        ),
        tagger,
        tasks,
        path.stat().st_size > LARGE_BYTES,
        by_asin=True,
        faults=(product_faults, goal_faults),
    )


def _read_json(path: Path, kind: type) -> Any:
    """Read a smaller file at once; unescaped control characters are allowed, as in the products."""
    return read_json(path, kind, FILE_BYTES, strict=False)


def _no_goals(folder: Path, sources: list[Path]) -> MissingData:
    """Create the error for a shop without goals."""
    if not sources:
        return MissingData(
            f"{folder}: products, but no goals: add items_human_ins.json (instructions of people), items_ins_v2*.json (from which goals "
            "are made) or goals.json, as scripts/fetch_data webshop does"
        )
    names = ", ".join(source.name for source in sources)
    return MissingData(
        f"{folder}: no goal in {names} is for one of its products; the keys there must be ASINs of items_shuffle*.json"
    )


def _pick(folder: Path, stem: str) -> Path | None:
    """Pick the original's file of the whole set, else the first numbered one."""
    whole = folder / f"{stem}.json"
    return whole if whole.is_file() else next(iter(sorted(folder.glob(f"{stem}*.json"))), None)


def _fixed_prices(path: Path) -> dict[str, Any]:
    prices: dict[str, Any] = _read_json(path, dict)
    for asin, price in prices.items():
        if (
            isinstance(price, bool)
            or not isinstance(price, int | float)
            or not abs(price) <= sys.float_info.max
        ):
            raise BadData(f"{where_is(path, asin)} must hold a number, found {price!r:.80}")
    return prices


def _draw_goals(
    catalogue: Catalogue,
    attributes: Callable[[], Mapping[str, Any]],
    extra: Path | None,
    human: Path,
    seed: int,
    faults: Faults,
) -> Iterator[dict[str, Any]]:
    """Generate human goals if the folder has them, else synthetic ones, in the order of the products."""
    written: dict[str, Any] = _read_json(human, dict) if human.is_file() else {}
    source, path = (written, human) if written else (attributes(), extra or human)
    numbered = sorted((number, asin) for asin in source if (number := catalogue.find(asin)) is not None)
    for number, asin in numbered:
        product, price = catalogue.product(number), catalogue.price(number)
        with faults.collect(f"{path}: {asin}"):
            yield from (human_goals if written else synthetic_goals)(
                product, source[asin], price, seed, partial(where_is, path, asin)
            )
