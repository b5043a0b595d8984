"""A searcher that writes down what it is asked."""

from collections.abc import Sequence

from tstar_envs.envs.search_qa.tasks import Passage, Searcher


class CountingSearcher:
    """A real searcher whose requests are written down."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.requests: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        self.requests.append((list(queries), topk))
        return self.searcher.search(queries, topk)
