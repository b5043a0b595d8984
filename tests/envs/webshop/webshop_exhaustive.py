"""A search that scores every document, to compare the index's search with.

python tests/envs/webshop/webshop_exhaustive.py STORE --searches 200    # compares on a large store
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path

import numpy as np

from tstar_envs.envs.webshop.catalogue import SEARCH_LIMIT, Catalogue, query_terms
from tstar_envs.envs.webshop.search import Postings
from tstar_envs.envs.webshop.tasks import load_shop


def exhaustive(index: Postings, query: list[int], limit: int) -> tuple[int, ...]:
    """Every document's sum, in the order of the terms; no document is left out early."""
    scores = np.zeros(index.count, np.float64)
    for term, weight in sorted(Counter(query).items()):
        row = slice(int(index.starts[term]), int(index.starts[term + 1]))
        scores[index.documents[row]] += index.impacts[row] * np.float32(weight)
    order = np.lexsort((np.arange(index.count), -scores.astype(np.float32)))
    return tuple(int(number) for number in order[: min(limit, np.count_nonzero(scores))])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--searches", type=int, default=200)
    arguments = parser.parse_args()
    catalogue, draw = Catalogue.open(arguments.store), random.Random(3)
    texts = [task.instruction.partition(", and price")[0] for task in load_shop("mini").tasks.values()]
    texts += [catalogue.product(draw.randrange(len(catalogue)))["name"] for _ in range(len(texts))]
    equal = 0
    for text in draw.sample(texts, arguments.searches):
        found = (catalogue.terms.find(term.encode()) for term in query_terms(text))
        equal += catalogue.search(text) == exhaustive(
            catalogue.index, [term for term in found if term is not None], SEARCH_LIMIT
        )
    print(
        f"{equal} of {arguments.searches} searches in {len(catalogue)} products equal the exhaustive scorer's {SEARCH_LIMIT}"
    )


if __name__ == "__main__":
    main()
