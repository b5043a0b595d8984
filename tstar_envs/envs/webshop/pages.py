"""What a page shows: products and buttons."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.state import State

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
