"""Searching and clicking as pure functions: a state and what is clicked give the next state.

The same as the original's simulated server: which buttons a page has, that values are keyed by their text, that a search is
taken on every page, that going back forgets options. What the original takes for debug commands (``<r>``, ``<a>``, ``<c>``,
``<q>``) are plain words here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tstar_envs.envs.webshop.actions import ParsedAction
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue, query_terms
from tstar_envs.envs.webshop.pages import SUB_PAGES, results
from tstar_envs.envs.webshop.state import State

# Clicks that only turn a page or read: they never count as modifying the state.
READING = frozenset({"next >", *SUB_PAGES})


def search(state: State, query: str) -> State:
    """The first page of results; product and options are forgotten."""
    return State("results", query_terms(query), visited=state.visited, page_size=state.page_size)


def click(catalogue: Catalogue, state: State, text: str, kind: str) -> State:
    """The state after a click on something the page has."""
    if kind == "product":
        asin = next(
            a
            for number in results(catalogue, state)
            if (a := catalogue.product(number)["asin"]).lower() == text
        )
        visited = state.visited if asin in state.visited else (*state.visited, asin)
        return replace(state, page="item", asin=asin, options=(), read=(), visited=visited)
    if kind != "button":
        options: Mapping[str, str] = {**dict(state.options), kind.removeprefix("option "): text}
        return replace(state, options=tuple(options.items()))
    if text == "back to search":
        return State(visited=state.visited, page_size=state.page_size)
    if text == "buy now":
        return replace(state, page="done")
    if text in SUB_PAGES:
        return replace(
            state, page="sub", sub=text, read=state.read if text in state.read else (*state.read, text)
        )
    if text == "< prev" and state.page == "sub":
        return replace(state, page="item", sub="")
    if state.page == "item":
        return replace(state, page="results", asin="", options=(), read=())
    return replace(state, number=state.number + (1 if text == "next >" else -1))


def effect(before: State, after: State, action: ParsedAction) -> str:
    """The canonical key of a change that counts as modifying the state, "" if there is none.

    Turning a page of results and reading a sub page are none; going back from an item is one only if it loses options.
    """
    turned = before.page == after.page == "results"
    went_back = (
        before.page in ("item", "sub")
        and after.page in ("item", "results")
        and not before.options
        and action.argument == "< prev"
    )
    read = after.page == "sub" or (before.page == "sub" and after.page == "item")
    if before.key() == after.key():
        return ""
    if action.name == "search":
        return f"search:{' '.join(after.terms)}"
    if turned or went_back or read:
        return ""
    if before.page == "item" and after.page == "item":
        return f"options:{sorted(after.options)!r}"
    return f"click:{action.argument}"
