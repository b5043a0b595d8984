"""Building a catalogue: in memory, or as a store of files that are mapped afterwards and that an interruption does not undo."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import numpy as np

from tstar_envs.data.files import write_whole
from tstar_envs.envs.webshop.catalogue import batches
from tstar_envs.envs.webshop.catalogue.batches import Batch
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.mapped import Blobs, SortedKeys
from tstar_envs.envs.webshop.catalogue.nouns import Tagger
from tstar_envs.envs.webshop.catalogue.product import Product, asin_key, encode
from tstar_envs.envs.webshop.catalogue.vocabulary import renumber, term_numbers, vocabulary_of

BATCH = 20_000  # documents: what an interrupted build loses at most, and what it holds in memory at a time
META = "meta.json"


def collect(
    products: Iterable[Product], price: Callable[[Product], float], tagger: str, by_asin: bool = False
) -> Catalogue:
    """Keep products, whose nouns ``tagger`` found, in memory."""
    kept = list(products)
    numbers: dict[str, int] = {}
    batch = batches.make_batch((term_numbers(product, numbers) for product in kept), 0)
    terms, lookup = vocabulary_of(numbers)
    return Catalogue(
        Blobs.collect(map(encode, kept)),
        SortedKeys.collect({asin_key(product["asin"]): number for number, product in enumerate(kept)}),
        np.array([price(product) for product in kept], np.float64),
        terms,
        batches.merge([renumber(batch, lookup)], len(terms.keys)),
        tagger,
        by_asin=by_asin,
    )


def build_store(
    folder: Path,
    products: Iterable[Product],
    price: Callable[[Product], float],
    tagger: Tagger,
    report: Callable[[int], None] = lambda _: None,
    beside: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write a store that ``Catalogue.open`` maps. An interrupted build goes on after its last whole batch.

    Args:
        folder: where to; work in progress lies in ``<folder>.partial`` until all is there.
        products: in order; the same on every call for one folder.
        price: draws the price of a product.
        tagger: finds the nouns of the products that come without.
        report: called with the number of products done, after each batch.
        beside: called with the folder in progress once all products were read; what it writes there is there with the store or not at all.
    """
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    if not (partial / META).is_file():
        iterator = iter(products)
        numbers: dict[str, int] = {}
        asins: dict[bytes, int] = {}
        stems: list[Path] = []
        while chunk := list(islice(iterator, BATCH)):
            stems.append(partial / f"batch{len(stems):05d}")
            if not (done := stems[-1].with_suffix(".done")).is_file():
                _build_batch(stems[-1], chunk, len(asins), price, tagger, numbers)
            finished = json.loads(done.read_text(encoding="utf-8"))
            numbers.update(finished["tokens"])  # tokens keep the numbers of the first run
            for asin in finished["asins"]:
                asins[asin_key(asin)] = len(asins)
            report(len(asins))
        _join(partial, stems, numbers, asins)
        beside(partial)
        write_whole(partial / META, json.dumps({"products": len(asins), "tagger": tagger.name}))
    for path in partial.glob("batch*"):
        path.unlink()
    partial.rename(folder)


def _build_batch(
    stem: Path,
    chunk: list[Product],
    first: int,
    price: Callable[[Product], float],
    tagger: Tagger,
    numbers: dict[str, int],
) -> None:
    known = len(numbers)
    for product in chunk:
        add_nouns(product, tagger)
    batches.make_batch((term_numbers(product, numbers) for product in chunk), first).save(
        stem.with_suffix(".npz")
    )
    Blobs.collect(map(encode, chunk)).save(stem.parent, stem.name)
    np.save(stem.with_suffix(".prices.npy"), np.array([price(product) for product in chunk], np.float64))
    new = dict(islice(numbers.items(), known, None))
    write_whole(
        stem.with_suffix(".done"),
        json.dumps({"tokens": new, "asins": [product["asin"] for product in chunk]}),
    )


def add_nouns(product: Product, tagger: Tagger) -> None:
    """Note the nouns of a product's title, if that was not done before."""
    if "nouns" not in product:
        product["nouns"] = tagger.nouns(product["name"])


def _join(partial: Path, stems: list[Path], numbers: dict[str, int], asins: dict[bytes, int]) -> None:
    """Put the batches of a build together."""
    SortedKeys.collect(asins).save(partial, "asins")
    terms, lookup = vocabulary_of(numbers)
    terms.save(partial, "terms")
    for stem in stems:
        renumber(Batch.load(stem.with_suffix(".npz")), lookup).save(stem.with_suffix(".terms.npz"))
    batches.merge([stem.with_suffix(".terms.npz") for stem in stems], len(terms.keys), partial)
    np.save(
        partial / "prices.npy",
        np.concatenate([np.zeros(0), *(np.load(stem.with_suffix(".prices.npy")) for stem in stems)]),
    )
    starts = [np.zeros(1, np.int64)]
    with open(partial / "products.bin", "wb") as handle:
        for stem in stems:
            with open(stem.with_suffix(".bin"), "rb") as source:
                starts.append(np.load(stem.with_suffix(".starts.npy"))[1:] + starts[-1][-1])
                shutil.copyfileobj(source, handle)
    np.save(partial / "products.starts.npy", np.concatenate(starts))
