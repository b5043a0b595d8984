"""Texts that agents see: three forms of a page, and the prompt."""

from __future__ import annotations

import json
from typing import NamedTuple

from tstar_envs.envs.webshop.catalogue import Catalogue
from tstar_envs.envs.webshop.pages import State, current_product, results, sub_texts

TEXT_OPTIONS = "text_options"  # this project's form; the others are the original's
OBSERVATIONS = (TEXT_OPTIONS, "text", "text_rich")


class Node(NamedTuple):
    """Visible text of a page; ``kind`` is text, button, option or product."""

    text: str
    kind: str = "text"


def nodes(catalogue: Catalogue, state: State, instruction: str, reward: float) -> list[Node]:
    """List the visible texts of a page, in the original's order."""
    head = [Node("Instruction:"), Node(instruction)]
    if state.page == "search":
        return [Node("WebShop"), *head, Node("Search", "button")]
    if state.page == "done":
        return _done(state, reward)
    head.append(Node("Back to Search", "button"))
    if state.page == "results":
        head.append(Node(f"Page {state.number} (Total results: {len(catalogue.search_terms(state.terms))})"))
        head += [Node("< Prev", "button")] * (state.number > 1) + [Node("Next >", "button")]
        for number in results(catalogue, state):
            product = catalogue.product(number)
            head += [Node(product["asin"], "product"), Node(product["Title"]), Node(product["Price"])]
        return head
    product = current_product(catalogue, state)
    head.append(Node("< Prev", "button"))
    if state.page == "sub":
        return head + [Node(text) for text in sub_texts(product, state.sub)]
    for name, values in product["options"].items():
        head += [Node(name), *(Node(value, "option") for value in values)]
    head += [Node(product["Title"]), Node(f"Price: {product['Price']}"), Node("Rating: N.A.")]
    return head + [Node(text, "button") for text in ("Description", "Features", "Reviews", "Buy Now")]


def _done(state: State, reward: float) -> list[Node]:
    # Like the original's Jinja template: sorted keys, HTML-escaped.
    options = json.dumps(dict(state.options), sort_keys=True)
    for mark in "<>&'":
        options = options.replace(mark, f"\\u{ord(mark):04x}")
    texts = (
        "Thank you for shopping with us!|Your code:|None|(Paste it in your MTurk interface.)|Purchased|asin|{asin}|options|{options}|"
        "attrs|None|category|None|query|None|product category|None|Target|asin|options|attrs|price upper|instuction text|category|"
        "product category|query|Goal|None|Reward|Your score (min 0.0, max 1.0)|{reward}|Reward Details|None"
    ).split("|")
    own = {"{asin}": state.asin, "{options}": options, "{reward}": str(reward)}
    return [Node(own.get(text, text)) for text in texts]


def as_text(page: list[Node]) -> str:
    """Render a page in the original's ``text`` form."""
    return " [SEP] ".join(node.text.strip() for node in page if node.text not in ("", "\n"))


def as_rich_text(page: list[Node], state: State) -> str:
    """Render a page in the original's ``text_rich`` form."""
    # The original searches for a text in the URL, where options are JSON; JSON-escaped text is never found.
    chosen = (
        {part for option in state.options for part in option if json.dumps(part) == f'"{part}"'}
        if state.page == "item"
        else set()
    )
    clicked, lines = "", []
    for text, kind in page:
        if text in ("", "\n"):
            continue
        done = text in chosen if kind == "option" else kind == "product" and text in state.visited
        mark = "clicked button" if done else "button"
        if kind == "option" and done:
            clicked = f"You have clicked {text}.\n{clicked}"
        indent = {"option": "  ", "product": "\n"}.get(kind, "")
        lines.append(text if kind == "text" else f"{indent}[{mark}] {text} [{mark}_]")
    return clicked + "".join(f"{line}\n" for line in lines)


def with_options(catalogue: Catalogue, state: State, instruction: str, reward: float) -> str:
    """Render a page in this project's form.

    It has one line per item, with chosen options and visited pages marked.
    """
    if state.page == "search":
        return f"Instruction: {instruction}\nButtons: search"
    if state.page == "done":
        return f"Bought {state.asin.lower()} with {_chosen(state)}. Score: {reward:.4g}"
    if state.page == "results":
        found = len(catalogue.search_terms(state.terms))
        products = (catalogue.product(number) for number in results(catalogue, state))
        lines = [
            f"{product['asin'].lower()}: {product['Title']} ({product['Price']})" for product in products
        ]
        opened = [asin.lower() for asin in state.visited if f"{asin.lower()}:" in "\n".join(lines)]
        lines += [f"Already opened: {', '.join(opened)}"] * bool(opened)
        back = "< prev, " if state.number > 1 else ""
        return "\n".join(
            [f"Page {state.number} of {found} results", *lines, f"Buttons: {back}next >, back to search"]
        )
    product = current_product(catalogue, state)
    if state.page == "sub":
        texts = [text for text in sub_texts(product, state.sub) if text] or ["(nothing here)"]
        return "\n".join(
            [f"{state.sub.capitalize()} of {state.asin.lower()}", *texts, "Buttons: < prev, back to search"]
        )
    chosen = dict(state.options)
    lines = [f"Product {state.asin.lower()}: {product['Title']}", f"Price: {product['Price']}"]
    lines += [
        f"Option {name} ({f'chosen: {chosen[name]}' if name in chosen else 'not chosen'}): {'; '.join(values)}"
        for name, values in product["options"].items()
    ]
    lines += [f"Already read: {', '.join(state.read)}"] * bool(state.read)
    return "\n".join([*lines, "Buttons: description, features, reviews, buy now, < prev, back to search"])


def _chosen(state: State) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted(state.options)) or "no options"


def render(
    catalogue: Catalogue, state: State, instruction: str, observation: str, reward: float = 0.0
) -> str:
    """Render a page in one of the three forms."""
    if observation == TEXT_OPTIONS:
        return with_options(catalogue, state, instruction, reward)
    page = nodes(catalogue, state, instruction, reward)
    return as_text(page) if observation == "text" else as_rich_text(page, state)


_RULES = """You are shopping in a web shop. Buy the product that the instruction asks for, with the right options.

Actions:
search[keywords]   search for products; shows the first page of results
click[button]      click something the page shows: a product's code, an option value, or one of the buttons
                   next >, < prev, back to search, description, features, reviews, buy now

A product must have every wanted attribute (often only its description or features say so), the wanted options must be
clicked, and its price must be within the limit. click[buy now] ends the episode; the score is the part of the wishes that is met.
You have {horizon} steps."""
_FORMS = {
    "react": "Reply in two lines:\nThought: what you think\nAction: one action",
    "tags": "Reply with <think>what you think</think><action>one action</action>",
}


def prompt(style: str, horizon: int) -> str:
    """Write the prompt: rules and action grammar."""
    return f"{_RULES.format(horizon=horizon)}\n\n{_FORMS[style]}"
