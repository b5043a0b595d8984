"""The products of a shop and the search over them: read-only, and mapped from files where there are many.

Every environment of a process is given the same catalogue; processes that map the same store share its pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tstar_envs.contents import digest_all
from tstar_envs.envs.webshop.catalogue.analysis import analyze
from tstar_envs.envs.webshop.catalogue.bounded_cache import BoundedCache
from tstar_envs.envs.webshop.catalogue.mapped import Blobs, MappedFiles, SortedKeys
from tstar_envs.envs.webshop.catalogue.postings import Array, Postings
from tstar_envs.envs.webshop.catalogue.product import Product, asin_key

SEARCH_LIMIT = 50  # products of one search, as in the original
_READ_AROUND = 1 << 16  # bytes that Linux maps in around one that is read
_REMEMBERED_PRODUCTS, _REMEMBERED_SEARCHES = 2048, 4096
LONGEST_REMEMBERED = 500  # characters of a query that is remembered


class Catalogue:
    """See the module. Made by ``building.collect`` (in memory) or ``open`` (mapped).

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
        """Map a store that ``building.build_store`` made."""
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
