"""Pages: states, actions, searching and clicking, and what each page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tstar_envs.envs.webshop.catalogue import Catalogue, Product, query_terms
from tstar_envs.react import bracket_content

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


class ParsedAction(NamedTuple):
    """An action: ``name`` and lower-cased ``argument``, and ``problem`` where it is none."""

    name: str
    argument: str
    problem: str = ""

    @property
    def canonical(self) -> str:
        """The action as it is written."""
        return f"{self.name}[{self.argument}]"


def parse_action(action: str) -> ParsedAction:
    r"""Read an action as the original's ``re.match(r'(.+)\[(.+)\]')`` does, in linear time.

    The name is case-sensitive, the argument is lower-cased, the last brackets count, and what follows them is ignored.
    """
    line = action.partition("\n")[0]
    close = line.rfind("]")
    opening = line.rfind("[", 1, max(1, close - 1))
    if close < 0 or opening < 0:
        return ParsedAction("", "", "an action is written search[keywords] or click[button]")
    name, argument = line[:opening], line[opening + 1 : close].lower()
    if name not in ("search", "click"):
        return ParsedAction(
            "", "", f"there is no action {name[:40]!r}; use search[keywords] or click[button]"
        )
    return ParsedAction(name, argument)


def read_action(action: str, buttons: Mapping[str, str]) -> ParsedAction:
    """Read an action as an agent means it: the name in any case, and the bracket that balances ends the argument.

    Args:
        action: what was asked.
        buttons: what the page has to click (``clickables``). One whose text has odd white space or brackets is found as well.
    """
    opening = action.find("[")
    name = action[:opening].strip().lower()
    content = bracket_content(action, opening) if name in ("search", "click") else None
    if content is None:
        return parse_action(action)  # which says what is wrong
    argument = " ".join(content.lower().split())
    if name == "search":
        return (
            ParsedAction(name, argument)
            if argument
            else ParsedAction("", "", "search[...] needs words between the brackets")
        )
    exact = action[opening + 1 : max(action.rfind("]"), opening)].lower()
    for wanted in (exact, argument, argument.strip("\"'`")):
        if wanted in buttons:
            return ParsedAction(name, wanted)
        spaced = [text for text in buttons if " ".join(text.split()) == " ".join(wanted.split())]
        if len(spaced) == 1:
            return ParsedAction(name, spaced[0])
    return ParsedAction(name, argument)


SUB_PAGES = ("description", "features", "reviews")
_ITEM_BUTTONS = ("back to search", "< prev", *SUB_PAGES, "buy now")


def results(catalogue: Catalogue, state: State) -> Sequence[int]:
    """Product numbers on the current page of results; a page beyond the last is empty."""
    found = catalogue.search_terms(state.terms)
    return found[(state.number - 1) * state.page_size : state.number * state.page_size]


def current_product(catalogue: Catalogue, state: State) -> Product:
    """The product that the state looks at; it must have one."""
    number = catalogue.find(state.asin)
    if number is None:
        raise LookupError(f"state of another catalogue: it has no product {state.asin!r}")
    return catalogue.product(number)


def clickables(catalogue: Catalogue, state: State) -> dict[str, str]:
    """What can be clicked: text -> kind (button, product, or the option's name after ``option ``).

    One text is there once: an option value of two names sets the last, one equal to a button's text is that button.
    """
    if state.page == "search":
        return {"search": "button"}
    if state.page == "done":
        return {}
    if state.page == "sub":
        return dict.fromkeys(("back to search", "< prev"), "button")
    if state.page == "results":
        buttons = ("back to search", "< prev", "next >") if state.number > 1 else ("back to search", "next >")
        products = (catalogue.product(number)["asin"].lower() for number in results(catalogue, state))
        return {**dict.fromkeys(buttons, "button"), **dict.fromkeys(products, "product")}
    found = dict.fromkeys(_ITEM_BUTTONS, "button")
    for name, values in current_product(catalogue, state)["options"].items():
        for value in values:
            if found.get(value) != "button":
                found[value] = f"option {name}"
    return found


def admissible(catalogue: Catalogue, state: State) -> list[str]:
    """The page's click actions; a hostile option value that no action can name is none."""
    return [
        f"click[{text}]"
        for text in clickables(catalogue, state)
        if text != "search" and text and "[" not in text and "\n" not in text
    ]


def sub_texts(product: Product, sub: str) -> list[str]:
    """The texts of a sub page; the original never shows a review."""
    texts: dict[str, list[str]] = {
        "description": [product["Description"]],
        "features": product["BulletPoints"],
        "reviews": [],
    }
    return texts[sub]


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
