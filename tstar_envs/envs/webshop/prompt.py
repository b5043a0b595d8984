"""Prompts: what there is to do and how it is written."""

from __future__ import annotations

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
    """The rules and the grammar of actions as an agent reads them."""
    return f"{_RULES.format(horizon=horizon)}\n\n{_FORMS[style]}"
