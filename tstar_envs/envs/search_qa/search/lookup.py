"""A searcher as one environment uses it, and the one request that a group of environments sends for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tstar_envs.envs.search_qa.search import queries
from tstar_envs.envs.search_qa.search.passage import Passage, Searcher
from tstar_envs.envs.search_qa.state import State
from tstar_envs.errors import InfrastructureError, RetrieverError


class Lookup:
    """One query at a time, with what was fetched ahead.

    Args:
        searcher: the search engine.
        topk: how many passages a query brings at most.
    """

    def __init__(self, searcher: Searcher, topk: int) -> None:
        self.searcher = searcher
        self.topk = topk
        self.ahead: dict[str, list[Passage]] = {}

    def key(self, query: str) -> str:
        """What two queries have in common that get one answer in an episode."""
        key: Callable[[str], str] = getattr(self.searcher, "query_key", queries.query_key)
        return key(query)

    def search(self, query: str) -> list[Passage]:
        """The best passages, best first."""
        if query in self.ahead:
            return self.ahead.pop(query)
        return self.searcher.search([query], self.topk)[0]


class Wanted(NamedTuple):
    """What a row of a group is about to search for."""

    row: int
    lookup: Lookup
    state: State
    query: str


def fetch_ahead(wanted: Sequence[Wanted]) -> dict[int, InfrastructureError]:
    """Send the new queries of all rows to the retriever in one request.

    Returns:
        Row -> error; if the request fails, every row that searches has failed.
    """
    rows: dict[str, list[Wanted]] = {}
    try:
        for each in wanted:
            if each.state.cached(each.lookup.key(each.query)) is None:
                rows.setdefault(each.query, []).append(each)
    except RetrieverError as error:  # its keys are not known yet, so nothing is cached either
        return {each.row: error for each in wanted}
    if not rows:
        return {}
    first = next(iter(rows.values()))[0].lookup
    try:
        found = first.searcher.search(list(rows), first.topk)
    except RetrieverError as error:  # tried often enough: no row asks again on its own
        return {each.row: error for same in rows.values() for each in same}
    for (query, same), passages in zip(rows.items(), found, strict=True):
        for each in same:
            each.lookup.ahead = {query: passages}
    return {}
