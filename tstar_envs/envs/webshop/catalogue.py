"""Catalogue: products and the search over them, read-only, mapped from files where there are many."""

from __future__ import annotations

import json
import mmap
import os
import sys
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from tstar_envs.envs.webshop.search import Array, Postings, analyze
from tstar_envs.utils import digest_all

Product = dict[str, Any]


def asin_key(asin: str) -> bytes:
    """An ASIN as the store keeps it."""
    return asin.encode("utf-8", "surrogatepass")


def encode(product: Product) -> bytes:
    """A product as its record in the store."""
    kept = {key: value for key, value in product.items() if key != "Title"}
    return json.dumps(kept, ensure_ascii=True, separators=(",", ":")).encode()


def indexed_text(product: Product) -> str:
    """What the original indexes: title, description, first bullet point and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product["options"].items())
    return " ".join(
        [product["name"], product["Description"], (product["BulletPoints"] or [""])[0], options]
    ).lower()


MAPPED_BYTES = 128_000_000  # of files that a process keeps mapped in at most, roughly


class MappedFiles:
    """Files of a folder, mapped for reading.

    What was read stays mapped into the process, and its share of the memory grows towards the size of the files, although the
    system could take it back at any time. ``note`` gives it back now and then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: list[mmap.mmap] = []
        self._read = 0

    def bytes(self, name: str) -> bytes | mmap.mmap:
        """Map a file as it is."""
        with open(self._folder / name, "rb") as handle:
            if not os.fstat(handle.fileno()).st_size:  # cannot be mapped
                return b""
            self._maps.append(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        return self._maps[-1]

    def array(self, name: str) -> Array:
        """Map an array; it is a plain one, whose parts are taken faster than numpy's mapped kind."""
        mapped = np.load(self._folder / f"{name}.npy", mmap_mode="r")
        if isinstance(mapped.base, mmap.mmap):
            self._maps.append(mapped.base)
        plain: Array = mapped.view(np.ndarray)
        return plain

    def note(self, size: int) -> None:
        """Note that about so many bytes were read; after many, nothing stays mapped in. Reading it again costs little."""
        self._read += size
        if self._read > MAPPED_BYTES and sys.platform == "linux" and sum(map(len, self._maps)) > MAPPED_BYTES:
            self._read = 0
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class Blobs:
    """Byte strings end to end; ``starts[i]:starts[i + 1]`` is where number i is."""

    data: bytes | mmap.mmap
    starts: Array

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.data[int(self.starts[number]) : int(self.starts[number + 1])]

    @staticmethod
    def collect(items: Iterable[bytes]) -> Blobs:
        """Keep the items in memory."""
        kept = list(items)
        return Blobs(
            b"".join(kept), np.concatenate([[0], np.cumsum([len(item) for item in kept])]).astype(np.int64)
        )

    def save(self, folder: Path, name: str) -> None:
        """Write both parts."""
        (folder / f"{name}.bin").write_bytes(self.data)
        np.save(folder / f"{name}.starts.npy", self.starts)

    @staticmethod
    def open(files: MappedFiles, name: str) -> Blobs:
        """Map both parts."""
        return Blobs(files.bytes(f"{name}.bin"), files.array(f"{name}.starts"))


@dataclass(frozen=True)
class SortedKeys:
    """A dictionary from byte strings to numbers that needs no memory of its own: sorted keys, looked up by halving."""

    keys: Blobs
    values: Array

    def find(self, key: bytes) -> int | None:
        """The number of a key, None if it is not there."""
        low, high = 0, len(self.keys)
        while low < high:
            middle = (low + high) // 2
            if self.keys[middle] < key:
                low = middle + 1
            else:
                high = middle
        return int(self.values[low]) if low < len(self.keys) and self.keys[low] == key else None

    def places(self) -> Array:
        """The place of each number's key in the order of the keys; the numbers must be 0, 1, 2, ... in any order."""
        places = np.empty(len(self.values), np.uint32)
        places[self.values] = np.arange(len(self.values), dtype=np.uint32)
        return places

    @staticmethod
    def collect(numbers: Mapping[bytes, int]) -> SortedKeys:
        """Keep a dictionary in memory."""
        keys = sorted(numbers)
        return SortedKeys(Blobs.collect(keys), np.array([numbers[key] for key in keys], np.int64))

    def save(self, folder: Path, name: str) -> None:
        """Write keys and numbers."""
        self.keys.save(folder, name)
        np.save(folder / f"{name}.values.npy", self.values)

    @staticmethod
    def open(files: MappedFiles, name: str) -> SortedKeys:
        """Map keys and numbers."""
        return SortedKeys(Blobs.open(files, name), files.array(f"{name}.values"))


class Records(Mapping[str, Any]):
    """JSON values by text, mapped: a dictionary too large to be held in every process."""

    def __init__(self, places: SortedKeys, values: Blobs) -> None:
        self._places, self._values = places, values

    def __getitem__(self, key: str) -> Any:
        number = self._places.find(key.encode("utf-8", "surrogatepass"))
        if number is None:
            raise KeyError(key)
        return json.loads(self._values[number])

    def __len__(self) -> int:
        return len(self._places.keys)

    def __iter__(self) -> Iterator[str]:
        return (self._places.keys[number].decode("utf-8", "surrogatepass") for number in range(len(self)))

    @staticmethod
    def write(folder: Path, items: Iterable[tuple[str, Any]]) -> Records:
        """Write the items, of which only the keys are held meanwhile, and map them; of equal keys the last counts."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers: dict[bytes, int] = {}
        starts = array("q", [0])
        with open(folder / "values.bin", "wb") as handle:
            for key, value in items:
                numbers[key.encode("utf-8", "surrogatepass")] = len(starts) - 1
                starts.append(starts[-1] + handle.write(json.dumps(value).encode()))
        np.save(folder / "values.starts.npy", np.array(starts))
        SortedKeys.collect(numbers).save(folder, "keys")
        files = MappedFiles(folder)
        return Records(SortedKeys.open(files, "keys"), Blobs.open(files, "values"))


Argument = TypeVar("Argument", bound=Hashable)
Result = TypeVar("Result")


class BoundedCache(Generic[Argument, Result]):
    """Results for short arguments are remembered, and of long ones the last alone.

    Args:
        function: of one argument.
        length: how long an argument is.
        longest: up to where it is short.
        most: results for short arguments that are remembered.

    Attributes:
        short: the function as it is called for short arguments, with ``functools.lru_cache``'s ``cache_info``.
        long: likewise for long ones.
    """

    def __init__(
        self,
        function: Callable[[Argument], Result],
        length: Callable[[Argument], int],
        longest: int,
        most: int,
    ) -> None:
        self._length, self._longest = length, longest
        self.short = lru_cache(most)(function)
        self.long = lru_cache(1)(function)  # a page asks several times

    def __call__(self, argument: Argument) -> Result:
        """The function's result."""
        return (self.short if self._length(argument) <= self._longest else self.long)(argument)


SEARCH_LIMIT = 50  # products of one search, as in the original
_READ_AROUND = 1 << 16  # bytes that Linux maps in around one that is read
_REMEMBERED_PRODUCTS, _REMEMBERED_SEARCHES = 2048, 4096
LONGEST_REMEMBERED = 500  # characters of a query that is remembered


class Catalogue:
    """See the module. Made by ``tasks.collect`` (in memory) or ``open`` (mapped).

    Args:
        products: JSON records by number.
        asins: ASIN to number.
        prices: of each product, as drawn once.
        terms: index term to number.
        index: the postings.
        tagger: name of what found the nouns of the titles.
        note: called with roughly how many bytes were read.
        by_asin: whether equally good products come in the order of their ASINs, as the original's search has them, else by number.

    Attributes:
        terms: index term to number.
        index: the postings.
        tagger: name of what found the nouns of the titles.
        product: a product, by number.
        search_terms: numbers of the best 50 products for an analysed query (``query_terms``).
    """

    def __init__(
        self,
        products: Blobs,
        asins: SortedKeys,
        prices: Array,
        terms: SortedKeys,
        index: Postings,
        tagger: str,
        note: Callable[[int], None] = lambda size: None,
        by_asin: bool = False,
    ) -> None:
        index = replace(index, order=asins.places()) if by_asin else index
        self._products, self._asins, self._prices, self._note = products, asins, prices, note
        self.terms, self.index = terms, index
        self.tagger = tagger
        self.product: Callable[[int], Product] = lru_cache(_REMEMBERED_PRODUCTS)(self._decode)
        self.search_terms = BoundedCache(self._search, _characters, LONGEST_REMEMBERED, _REMEMBERED_SEARCHES)

    def __len__(self) -> int:
        return len(self._products)

    def find(self, asin: str) -> int | None:
        """The number of a product, by ASIN."""
        return self._asins.find(asin_key(asin))

    def price(self, number: int) -> float:
        """What a product costs."""
        return float(self._prices[number])

    def digest(self) -> str:
        """A digest of all products, as they are shown, found and scored."""
        texts = (f"{self._products[n].decode('ascii')}\0{self.price(n)!r}" for n in range(len(self)))
        return digest_all([self.tagger, *texts])

    def search(self, text: str) -> tuple[int, ...]:
        """The best 50 products for a text."""
        return self.search_terms(query_terms(text))

    def _search(self, terms: tuple[str, ...]) -> tuple[int, ...]:
        found = (self.terms.find(term.encode("utf-8", "surrogatepass")) for term in terms)
        known = [term for term in found if term is not None]
        self._note(self.index.size_of(known))
        return self.index.search(known, SEARCH_LIMIT)

    def _decode(self, number: int) -> Product:
        self._note(_READ_AROUND)
        product: Product = json.loads(self._products[number])
        product["Title"] = product["name"]
        return product

    @staticmethod
    def open(folder: Path, by_asin: bool = False) -> Catalogue:
        """Map a store that ``tasks.build_store`` made."""
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        files = MappedFiles(folder)
        starts, documents, impacts, bounds = (
            files.array(name) for name in ("starts", "documents", "impacts", "bounds")
        )
        index = Postings(starts, documents, impacts, bounds, meta["products"])
        products, asins, terms = (
            Blobs.open(files, "products"),
            SortedKeys.open(files, "asins"),
            SortedKeys.open(files, "terms"),
        )
        return Catalogue(
            products, asins, files.array("prices"), terms, index, meta["tagger"], files.note, by_asin
        )


def _characters(terms: tuple[str, ...]) -> int:
    return sum(map(len, terms))


def _terms(text: str) -> tuple[str, ...]:
    return tuple(sorted(analyze(text)))


# The analysed multiset of a query: queries that agree in it find the same.
query_terms = BoundedCache(_terms, len, LONGEST_REMEMBERED, _REMEMBERED_SEARCHES)
