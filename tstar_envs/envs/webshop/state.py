"""What an episode's state is: the page that is shown, and what was chosen, read and opened."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_SIZE = 10  # products of a results page in the original


@dataclass(frozen=True, slots=True)
class State:
    """Where an episode stands.

    Attributes:
        page: search, results, item, sub or done.
        terms: the analysed query.
        number: of the results page.
        asin: of the product looked at.
        options: (name, value) in the order of the first choice of each name.
        sub: which sub page.
        read: sub pages read of this product (what the agent knows; not part of the state key).
        visited: ASINs opened so far (``text_rich`` marks them; not part of the state key).
        page_size: products of a results page; fixed for an environment, so not part of the state key.
    """

    page: str = "search"
    terms: tuple[str, ...] = ()
    number: int = 1
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sub: str = ""
    read: tuple[str, ...] = ()
    visited: tuple[str, ...] = ()
    page_size: int = PAGE_SIZE

    def key(self) -> str:
        """Text that is equal exactly for equal states: options in any order, queries by their analysed terms."""
        return repr((self.page, self.terms, self.number, self.asin, sorted(self.options), self.sub))
