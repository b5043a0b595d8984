"""Pages: states, action parsing, search and click transitions, page contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tstar_envs.envs.webshop.catalogue import Catalogue, Product, query_terms
from tstar_envs.react import bracket_content

PAGE_SIZE = 10  # products per results page in the original


@dataclass(frozen=True, slots=True)
class State:
    """State of an episode.

    Attributes:
        page: search, results, item, sub or done.
        terms: index terms of the query.
        number: number of the results page.
        asin: ASIN of the current product.
        options: (name, value) pairs, in the order in which the names were first chosen.
        sub: current sub page.
        read: sub pages of this product that were read (not part of the state key).
        visited: ASINs opened so far (``text_rich`` marks them; not part of the state key).
        page_size: products per results page; fixed for an environment, so not part of the state key.
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
        """Compute the state key.

        It ignores the order of options and uses the index terms of the query.
        """
        return repr((self.page, self.terms, self.number, self.asin, sorted(self.options), self.sub))


class ParsedAction(NamedTuple):
    """Parsed action: ``name`` and lower-cased ``argument``; ``problem`` explains an invalid one."""

    name: str
    argument: str
    problem: str = ""

    @property
    def canonical(self) -> str:
        """Canonical text of the action."""
        return f"{self.name}[{self.argument}]"


def parse_action(action: str) -> ParsedAction:
    r"""Parse an action like the original's ``re.match(r'(.+)\[(.+)\]')``, in linear time.

    The name is case-sensitive, the argument is lower-cased, the last brackets count, and text after them is ignored.
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
    """Parse an action leniently: the name in any case, and the balancing bracket ends the argument.

    Args:
        action: the agent's action.
        buttons: buttons of the page (``clickables``). A text with odd white space or brackets is matched too.
    """
    opening = action.find("[")
    name = action[:opening].strip().lower()
    content = bracket_content(action, opening) if name in ("search", "click") else None
    if content is None:
        return parse_action(action)  # for its error message
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
    """List the product numbers on the current results page.

    A page beyond the last is empty.
    """
    found = catalogue.search_terms(state.terms)
    return found[(state.number - 1) * state.page_size : state.number * state.page_size]


def current_product(catalogue: Catalogue, state: State) -> Product:
    """Get the current product; the state must have one."""
    number = catalogue.find(state.asin)
    if number is None:
        raise LookupError(f"state of another catalogue: it has no product {state.asin!r}")
    return catalogue.product(number)


def clickables(catalogue: Catalogue, state: State) -> dict[str, str]:
    """List the clickable texts: text -> kind (button, product, or ``option `` plus the option's name).

    Each text occurs once. An option value of two names sets the last one; a value equal to a button's text is that button.
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
    """List the click actions of the page, without option values that no action can name."""
    return [
        f"click[{text}]"
        for text in clickables(catalogue, state)
        if text != "search" and text and "[" not in text and "\n" not in text
    ]


def sub_texts(product: Product, sub: str) -> list[str]:
    """List the texts of a sub page; reviews are never shown, as in the original."""
    texts: dict[str, list[str]] = {
        "description": [product["Description"]],
        "features": product["BulletPoints"],
        "reviews": [],
    }
    return texts[sub]


# Clicks that turn a page or read never count as modifying the state.
READING = frozenset({"next >", *SUB_PAGES})


def search(state: State, query: str) -> State:
    """Search: go to the first results page; product and options are reset."""
    return State("results", query_terms(query), visited=state.visited, page_size=state.page_size)


def click(catalogue: Catalogue, state: State, text: str, kind: str) -> State:
    """Click on something on the page and return the new state."""
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
    """Compute the canonical key of a state change.

    "" if the action does not modify the state.
    Turning a page and reading a sub page do not. Going back from a product does only if options are lost.
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
