"""Catalogue: read-only products and their search index, memory-mapped if large."""

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
    """Encode an ASIN as a key of the store."""
    return asin.encode("utf-8", "surrogatepass")


def encode(product: Product) -> bytes:
    """Serialize a product as a record of the store."""
    kept = {key: value for key, value in product.items() if key != "Title"}
    return json.dumps(kept, ensure_ascii=True, separators=(",", ":")).encode()


def indexed_text(product: Product) -> str:
    """Join the text that the original indexes: title, description, first bullet point and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product["options"].items())
    return " ".join(
        [product["name"], product["Description"], (product["BulletPoints"] or [""])[0], options]
    ).lower()


MAPPED_BYTES = 128_000_000  # approximate limit of resident mapped bytes per process


class MappedFiles:
    """Memory-mapped files of a folder, read-only.

    Pages that were read stay resident, so the memory of a process grows towards the size of the files, although the system
    could reclaim it. ``note`` releases these pages from time to time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: list[mmap.mmap] = []
        self._read = 0

    def bytes(self, name: str) -> bytes | mmap.mmap:
        """Map a file as bytes."""
        with open(self._folder / name, "rb") as handle:
            if not os.fstat(handle.fileno()).st_size:  # an empty file cannot be mapped
                return b""
            self._maps.append(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        return self._maps[-1]

    def array(self, name: str) -> Array:
        """Map an array as a plain ndarray, which is faster to slice than ``np.memmap``."""
        mapped = np.load(self._folder / f"{name}.npy", mmap_mode="r")
        if isinstance(mapped.base, mmap.mmap):
            self._maps.append(mapped.base)
        plain: Array = mapped.view(np.ndarray)
        return plain

    def note(self, size: int) -> None:
        """Record that about ``size`` bytes were read.

        Above the limit all pages are released, to be reread cheaply.
        """
        self._read += size
        if self._read > MAPPED_BYTES and sys.platform == "linux" and sum(map(len, self._maps)) > MAPPED_BYTES:
            self._read = 0
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class Blobs:
    """Concatenated byte strings; number i is at ``starts[i]:starts[i + 1]``."""

    data: bytes | mmap.mmap
    starts: Array

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.data[int(self.starts[number]) : int(self.starts[number + 1])]

    @staticmethod
    def collect(items: Iterable[bytes]) -> Blobs:
        """Collect items in memory."""
        kept = list(items)
        return Blobs(
            b"".join(kept), np.concatenate([[0], np.cumsum([len(item) for item in kept])]).astype(np.int64)
        )

    def save(self, folder: Path, name: str) -> None:
        """Save to two files."""
        (folder / f"{name}.bin").write_bytes(self.data)
        np.save(folder / f"{name}.starts.npy", self.starts)

    @staticmethod
    def open(files: MappedFiles, name: str) -> Blobs:
        """Map the two files."""
        return Blobs(files.bytes(f"{name}.bin"), files.array(f"{name}.starts"))


@dataclass(frozen=True)
class SortedKeys:
    """Read-only dictionary from byte strings to numbers: mapped sorted keys with binary search."""

    keys: Blobs
    values: Array

    def find(self, key: bytes) -> int | None:
        """Find the number of a key; None if missing."""
        low, high = 0, len(self.keys)
        while low < high:
            middle = (low + high) // 2
            if self.keys[middle] < key:
                low = middle + 1
            else:
                high = middle
        return int(self.values[low]) if low < len(self.keys) and self.keys[low] == key else None

    def places(self) -> Array:
        """Compute the rank of each number's key.

        The numbers must be a permutation of 0, 1, 2, ...
        """
        places = np.empty(len(self.values), np.uint32)
        places[self.values] = np.arange(len(self.values), dtype=np.uint32)
        return places

    @staticmethod
    def collect(numbers: Mapping[bytes, int]) -> SortedKeys:
        """Collect a dictionary in memory."""
        keys = sorted(numbers)
        return SortedKeys(Blobs.collect(keys), np.array([numbers[key] for key in keys], np.int64))

    def save(self, folder: Path, name: str) -> None:
        """Save keys and numbers."""
        self.keys.save(folder, name)
        np.save(folder / f"{name}.values.npy", self.values)

    @staticmethod
    def open(files: MappedFiles, name: str) -> SortedKeys:
        """Map keys and numbers."""
        return SortedKeys(Blobs.open(files, name), files.array(f"{name}.values"))


class Records(Mapping[str, Any]):
    """Memory-mapped dictionary from text to JSON value, too large to load in every process."""

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
        """Write items and map them. Only keys are held in memory.

        The last of equal keys wins.
        """
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
    """Cached function: LRU for short arguments, only the last result for long ones.

    Args:
        function: function of one argument.
        length: measures an argument.
        longest: maximum length of a short argument.
        most: maximum number of cached results for short arguments.

    Attributes:
        short: the cached function for short arguments, with ``functools.lru_cache``'s ``cache_info``.
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
        self.long = lru_cache(1)(function)  # one page calls it several times

    def __call__(self, argument: Argument) -> Result:
        """Call the function, or get its cached result."""
        return (self.short if self._length(argument) <= self._longest else self.long)(argument)


SEARCH_LIMIT = 50  # products per search, as in the original
_READ_AROUND = 1 << 16  # bytes that Linux maps around a page fault
_REMEMBERED_PRODUCTS, _REMEMBERED_SEARCHES = 2048, 4096
LONGEST_REMEMBERED = 500  # maximum characters of a cached query


class Catalogue:
    """Catalogue of a shop, created by ``tasks.collect`` (in memory) or ``open`` (memory-mapped).

    Args:
        products: JSON records by number.
        asins: ASIN to number.
        prices: price of each product.
        terms: index term to number.
        index: the postings.
        tagger: name of the tagger of the titles' nouns.
        note: called with the approximate number of bytes read.
        by_asin: True breaks ties by ASIN, as the original's search does, else by number.

    Attributes:
        terms: index term to number.
        index: the postings.
        tagger: name of the tagger of the titles' nouns.
        product: cached function from number to product.
        search_terms: cached search; numbers of the best 50 products for an analysed query (``query_terms``).
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
        """Find the number of a product by ASIN; None if missing."""
        return self._asins.find(asin_key(asin))

    def price(self, number: int) -> float:
        """Get the price of a product."""
        return float(self._prices[number])

    def digest(self) -> str:
        """Digest of all products, including prices, index and nouns."""
        texts = (f"{self._products[n].decode('ascii')}\0{self.price(n)!r}" for n in range(len(self)))
        return digest_all([self.tagger, *texts])

    def search(self, text: str) -> tuple[int, ...]:
        """Search for the best 50 products; returns their numbers."""
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
        """Memory-map a store built by ``tasks.build_store``."""
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


# The multiset of index terms of a query; queries with equal terms have equal results.
query_terms = BoundedCache(_terms, len, LONGEST_REMEMBERED, _REMEMBERED_SEARCHES)
