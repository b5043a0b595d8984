"""What is searched for: passages, and what the environment asks of a search engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class _Shown(NamedTuple):
    id: str
    title: str
    text: str


class Passage(_Shown):
    """One search result.

    Attributes:
        id: unique in its corpus.
        title: without quotes around it.
        text: the rest.
        heading: the title as the first line of the corpus has it, mostly in quotes; by default the title in quotes.
    """

    heading: str

    def __new__(cls, id: str, title: str, text: str, heading: str | None = None) -> Passage:
        """A passage of these texts."""
        passage = super().__new__(cls, id, title, text)
        passage.heading = f'"{title}"' if heading is None else heading
        return passage


class Searcher(Protocol):
    """What the environment asks of a search engine.

    One that distinguishes queries in its own way has a method ``query_key(query) -> str`` as well: two queries of one key have one
    answer, and an episode asks for it once. Without it ``queries.query_key`` decides, which fits search by words.
    """

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return at most ``topk`` passages for each query, best first."""
