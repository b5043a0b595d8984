"""The products of a shop and the search over them: read-only, and mapped from files where there are many.

Every environment of a process is given the same catalogue; processes that map the same store share its pages.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tstar_envs.envs.webshop import postings
from tstar_envs.envs.webshop.analysis import analyze, term_of, tokenize
from tstar_envs.envs.webshop.postings import Array, Batch, Postings
from tstar_envs.envs.webshop.store import Blobs, SortedKeys

Product = dict[str, Any]
SEARCH_LIMIT = 50  # products of one search, as in the original
BATCH = 50_000  # documents: what an interrupted build loses at most
STORE_VERSION = 1
_REMEMBERED_PRODUCTS, _REMEMBERED_SEARCHES = 2048, 4096


class Catalogue:
    """See the module. Made by ``collect`` (in memory) or ``open`` (mapped).

    Args:
        products: JSON records by number.
        asins: ASIN to number.
        prices: of each product, as drawn once.
        terms: index term to number.
        index: the postings.
        tagger: name of what found the nouns of the titles.
    """

    def __init__(self, products: Blobs, asins: SortedKeys, prices: Array, terms: SortedKeys, index: Postings, tagger: str) -> None:
        self._products, self._asins, self._prices, self._terms, self._index = products, asins, prices, terms, index
        self.tagger = tagger
        self.product: Callable[[int], Product] = lru_cache(_REMEMBERED_PRODUCTS)(self._decode)
        self.search_terms: Callable[[tuple[str, ...]], tuple[int, ...]] = lru_cache(_REMEMBERED_SEARCHES)(self._search)

    def __len__(self) -> int:
        return len(self._products)

    def find(self, asin: str) -> int | None:
        """The number of a product, by ASIN."""
        return self._asins.find(asin.encode("utf-8", "surrogatepass"))

    def price(self, number: int) -> float:
        """What a product costs."""
        return float(self._prices[number])

    def search(self, text: str) -> tuple[int, ...]:
        """The best 50 products for a text."""
        return self.search_terms(query_terms(text))

    def _search(self, terms: tuple[str, ...]) -> tuple[int, ...]:
        known = (self._terms.find(term.encode("utf-8", "surrogatepass")) for term in terms)
        return self._index.search([term for term in known if term is not None], SEARCH_LIMIT)

    def _decode(self, number: int) -> Product:
        product: Product = json.loads(self._products[number])
        product["Title"] = product["name"]
        return product

    @staticmethod
    def collect(products: Iterable[Product], price: Callable[[Product], float], tagger: str) -> Catalogue:
        """Keep products in memory."""
        kept = list(products)
        numbers: dict[str, int] = {}
        batch = postings.make_batch((_term_numbers(product, numbers) for product in kept), 0)
        terms, lookup = _vocabulary(numbers)
        return Catalogue(
            Blobs.collect(map(encode, kept)),
            SortedKeys.collect({p["asin"].encode("utf-8", "surrogatepass"): n for n, p in enumerate(kept)}),
            np.array([price(product) for product in kept], np.float64),
            terms,
            postings.merge([_renumber(batch, lookup)], len(terms.keys)),
            tagger,
        )

    @staticmethod
    def open(folder: Path) -> Catalogue:
        """Map a store that ``build_store`` made."""
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("prices", "starts", "documents", "impacts")]
        return Catalogue(
            Blobs.open(folder, "products"), SortedKeys.open(folder, "asins"), arrays[0], SortedKeys.open(folder, "terms"),
            Postings(arrays[1], arrays[2], arrays[3], meta["products"]), meta["tagger"],
        )  # fmt: skip


@lru_cache(maxsize=_REMEMBERED_SEARCHES)
def query_terms(text: str) -> tuple[str, ...]:
    """The analysed multiset of a query: queries that agree in it find the same."""
    return tuple(sorted(analyze(text)))


def encode(product: Product) -> bytes:
    """A product as its record in the store."""
    kept = {key: value for key, value in product.items() if key != "Title"}
    return json.dumps(kept, ensure_ascii=True, separators=(",", ":")).encode()


def indexed_text(product: Product) -> str:
    """What the original indexes: title, description, first bullet point and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product["options"].items())
    return " ".join([product["name"], product["Description"], (product["BulletPoints"] or [""])[0], options]).lower()


def _term_numbers(product: Product, numbers: dict[str, int]) -> list[int]:
    """Numbers of the tokens of a product that are no stop words; new tokens get the next number."""
    found = []
    for token in tokenize(indexed_text(product)):
        number = numbers.get(token)
        if number is None:
            number = numbers[token] = len(numbers) if term_of(token) else -1 - len(numbers)
        if number >= 0:
            found.append(number)
    return found


def _vocabulary(numbers: dict[str, int]) -> tuple[SortedKeys, Array]:
    """Terms in order, and for each token number its term: tokens are numbered while reading, several share a term."""
    terms = sorted({term.encode("utf-8", "surrogatepass") for term in map(term_of, numbers) if term})
    place = {term: number for number, term in enumerate(terms)}
    lookup = np.zeros(len(numbers) + 1, np.uint32)
    for token, number in numbers.items():
        if number >= 0:
            lookup[number] = place[term_of(token).encode("utf-8", "surrogatepass")]
    return SortedKeys(Blobs.collect(terms), np.arange(len(terms), dtype=np.int64)), lookup


def _renumber(batch: Batch, lookup: Array) -> Batch:
    """A batch over terms from one over tokens: tokens of one term add up within a document."""
    keys = lookup[batch.terms].astype(np.uint64) << np.uint64(32) | batch.documents.astype(np.uint64)
    unique, where = np.unique(keys, return_inverse=True)
    counts = np.bincount(where, weights=batch.counts, minlength=len(unique)).astype(np.uint32)
    return Batch((unique >> np.uint64(32)).astype(np.uint32), (unique & np.uint64(0xFFFFFFFF)).astype(np.uint32), counts, batch.lengths)


def build_store(
    folder: Path,
    products: Iterable[Product],
    price: Callable[[Product], float],
    tagger: str,
    report: Callable[[int], None] = lambda _: None,
) -> None:
    """Write a store that ``Catalogue.open`` maps. An interrupted build goes on after its last whole batch.

    Args:
        folder: where to; work in progress lies in ``<folder>.partial`` until all is there.
        products: in order; the same on every call for one folder.
        price: draws the price of a product.
        tagger: name of what found the nouns.
        report: is told the number of products done, after each batch.
    """
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    iterator = iter(products)
    numbers: dict[str, int] = {}
    done, number = 0, 0
    while chunk := list(islice(iterator, BATCH)):
        stem = partial / f"batch{number:05d}"
        finished = stem.with_suffix(".done")
        if finished.is_file():  # tokens keep the numbers of the first run
            new = json.loads(finished.read_text(encoding="utf-8"))
            numbers.update(dict(new))
        else:
            known = len(numbers)
            batch = postings.make_batch((_term_numbers(product, numbers) for product in chunk), done)
            batch.save(stem.with_suffix(".npz"))
            Blobs.collect(map(encode, chunk)).save(partial, stem.name)
            np.save(stem.with_suffix(".prices.npy"), np.array([price(product) for product in chunk], np.float64))
            finished.write_text(json.dumps(list(islice(numbers.items(), known, None))), encoding="utf-8")
        done, number = done + len(chunk), number + 1
        report(done)
    _finish(partial, number, done, numbers, tagger)
    partial.rename(folder)


def _finish(partial: Path, batches: int, count: int, numbers: dict[str, int], tagger: str) -> None:
    """Put the batches of a build together."""
    stems = [partial / f"batch{number:05d}" for number in range(batches)]
    terms, lookup = _vocabulary(numbers)
    terms.save(partial, "terms")
    for stem in stems:
        _renumber(Batch.load(stem.with_suffix(".npz")), lookup).save(stem.with_suffix(".terms.npz"))
    index = postings.merge([stem.with_suffix(".terms.npz") for stem in stems], len(terms.keys), partial)
    np.save(partial / "starts.npy", index.starts)
    if not len(index.documents):
        np.save(partial / "documents.npy", index.documents)
        np.save(partial / "impacts.npy", index.impacts)
    np.save(partial / "prices.npy", np.concatenate([np.zeros(0), *(np.load(stem.with_suffix(".prices.npy")) for stem in stems)]))
    starts = [np.zeros(1, np.int64)]
    asins: dict[bytes, int] = {}
    with open(partial / "products.bin", "wb") as handle:
        for stem in stems:
            with open(stem.with_suffix(".bin"), "rb") as source:
                starts.append(np.load(stem.with_suffix(".starts.npy"))[1:] + starts[-1][-1])
                shutil.copyfileobj(source, handle)
    np.save(partial / "products.starts.npy", np.concatenate(starts))
    products = Blobs.open(partial, "products")
    for number, record in enumerate(_records(products)):
        asins[json.loads(record)["asin"].encode("utf-8", "surrogatepass")] = number
    SortedKeys.collect(asins).save(partial, "asins")
    (partial / "meta.json").write_text(json.dumps({"version": STORE_VERSION, "products": count, "tagger": tagger}), encoding="utf-8")
    for path in partial.glob("batch*"):
        path.unlink()


def _records(products: Blobs) -> Iterator[bytes]:
    return (products[number] for number in range(len(products)))
