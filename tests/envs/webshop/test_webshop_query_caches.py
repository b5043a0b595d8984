"""What the shop remembers of searches is bounded by bytes: long queries are searched for again, with the same result."""

from typing import Any

from tstar_envs.envs.webshop.catalogue import LONGEST_REMEMBERED, BoundedCache, query_terms
from tstar_envs.envs.webshop.search import analyze
from tstar_envs.envs.webshop.tasks import load_shop


def remembered(function: BoundedCache[Any, Any]) -> int:
    """How many results for short arguments are."""
    return function.short.cache_info().currsize


def test_long_queries_are_not_remembered() -> None:
    catalogue = load_shop("mini").catalogue
    words = " ".join(
        sorted({word for number in range(60) for word in catalogue.product(number)["name"].split()})
    )
    assert len(words) > LONGEST_REMEMBERED
    searches, queries = remembered(catalogue.search_terms), remembered(query_terms)
    found = [catalogue.search(f"{words} {n}") for n in range(50)]
    assert all(found) and found == [catalogue.search(f"{words} {n}") for n in range(50)]
    assert remembered(catalogue.search_terms) == searches and remembered(query_terms) == queries
    assert catalogue.search_terms.long.cache_info().currsize == query_terms.long.cache_info().currsize == 1
    catalogue.search("a scarf that nobody asked for 81")
    assert remembered(query_terms) == queries + 1
    assert query_terms(words) == tuple(sorted(analyze(words)))
