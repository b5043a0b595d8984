"""The terms of a search index, made from the tokens of products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tstar_envs.envs.webshop.catalogue.analysis import term_of, tokenize
from tstar_envs.envs.webshop.catalogue.batches import Batch
from tstar_envs.envs.webshop.catalogue.mapped import Blobs, SortedKeys
from tstar_envs.envs.webshop.catalogue.postings import Array
from tstar_envs.envs.webshop.catalogue.product import Product, indexed_text


def term_numbers(product: Product, numbers: dict[str, int]) -> Iterator[int]:
    """Numbers of the tokens of a product that are no stop words; new tokens get the next number, stop words one below zero."""
    for token in tokenize(indexed_text(product)):
        number = numbers.get(token)
        if number is None:
            number = numbers[token] = len(numbers) if term_of(token) else -1 - len(numbers)
        if number >= 0:
            yield number


def vocabulary_of(numbers: dict[str, int]) -> tuple[SortedKeys, Array]:
    """Terms in order, and for each token number its term: tokens are numbered while reading, several share a term."""
    terms = sorted({term.encode("utf-8", "surrogatepass") for term in map(term_of, numbers) if term})
    place = {term: number for number, term in enumerate(terms)}
    lookup = np.zeros(len(numbers) + 1, np.uint32)
    for token, number in numbers.items():
        if number >= 0:
            lookup[number] = place[term_of(token).encode("utf-8", "surrogatepass")]
    return SortedKeys(Blobs.collect(terms), np.arange(len(terms), dtype=np.int64)), lookup


def renumber(batch: Batch, lookup: Array) -> Batch:
    """A batch over terms from one over tokens: tokens of one term add up within a document."""
    keys = lookup[batch.terms].astype(np.uint64) << np.uint64(32) | batch.documents.astype(np.uint64)
    unique, where = np.unique(keys, return_inverse=True)
    counts = np.bincount(where, weights=batch.counts, minlength=len(unique)).astype(np.uint32)
    return Batch(
        (unique >> np.uint64(32)).astype(np.uint32),
        (unique & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        counts,
        batch.lengths,
    )
