"""What the shop remembers of searches is bounded by bytes: long queries are searched for again, with the same result."""

from tstar_envs.envs.webshop.catalogue import catalogue as module
from tstar_envs.envs.webshop.catalogue.analysis import analyze
from tstar_envs.envs.webshop.catalogue.catalogue import query_terms
from tstar_envs.envs.webshop.tasks import load_shop


def test_long_queries_are_not_remembered() -> None:
    catalogue = load_shop("mini").catalogue
    words = " ".join(
        sorted({word for number in range(60) for word in catalogue.product(number)["name"].split()})
    )
    assert len(words) > module._LONGEST_REMEMBERED
    short, long = (
        catalogue._search_short.cache_info().currsize,
        module._remembered_terms.cache_info().currsize,
    )  # type: ignore[attr-defined]
    found = [catalogue.search(f"{words} {n}") for n in range(50)]
    assert all(found) and found == [catalogue.search(f"{words} {n}") for n in range(50)]
    assert catalogue._search_short.cache_info().currsize == short  # type: ignore[attr-defined]
    assert catalogue._search_long.cache_info().currsize <= 1  # type: ignore[attr-defined]
    assert module._remembered_terms.cache_info().currsize == long
    catalogue.search("a scarf that nobody asked for 81")
    assert module._remembered_terms.cache_info().currsize == long + 1
    assert query_terms(words) == tuple(sorted(analyze(words)))
