"""The words of WebShop: prompts and the expert's thoughts, each in four wordings."""

from __future__ import annotations

from collections.abc import Sequence

_RULES = """You are shopping in a web shop. Buy the product that the instruction asks for, with the right options.

Actions:
search[keywords]   search for products; shows the first page of results
click[button]      click something the page shows: a product's code, an option value, or one of the buttons
                   next >, < prev, back to search, description, features, reviews, buy now

A product must have every wanted attribute (often only its description or features say so), the wanted options must be
clicked, and its price must be within the limit. click[buy now] ends the episode; the score is the part of the wishes that is met.
You have {horizon} steps."""

PROMPTS = {
    "react": _RULES + "\n\nReply in two lines:\nThought: what you think\nAction: one action",
    "tags": _RULES + "\n\nReply with <think>what you think</think><action>one action</action>",
}

# {a} is what is searched or clicked, {w} the wanted attributes.
THOUGHTS: dict[str, tuple[str, str, str, str]] = {
    "search": ("I search for {a}.", "First I look for {a}.", "Let me search for {a}.", "I need {a}, so I search for that."),
    "search again": (
        "Nothing fits here, I search for {a}.", "These results do not fit. I look for {a}.", "Better keywords are needed: {a}.",
        "I do not see it, so I search for {a}.",
    ),
    "open": (
        "{a} may have {w}. I open it.", "I open {a} to see if it has {w}.", "{a} fits title and price, I check it for {w}.",
        "{a} is a candidate for {w}.",
    ),
    "next page": (
        "None of these fits, I go to the next page.", "Not on this page, I turn to the next.", "I look at the next page.",
        "The next page may have it.",
    ),
    "earlier page": (
        "I go back a page.", "It was on an earlier page.", "I turn back to the previous page.", "The page before had a better one.",
    ),
    "wrong product": (
        "This product does not fit, I go back.", "Not all wishes are met here. Back to the results.", "This is not the one, I go back.",
        "I return to the results, this does not fit.",
    ),
    "leave sub page": ("I go back.", "Back to the product.", "I have read this, back.", "That is enough, I go back."),
    "read": (
        "I read the {a} to check for {w}.", "Does it have {w}? I look at the {a}.", "Before I buy I read the {a}: it should have {w}.",
        "The {a} should tell about {w}.",
    ),
    "has attribute": (
        "I have checked it for {w}. Back to the product.", "This is what I wanted to know about {w}, I go back.",
        "Read. It was about {w}; back to the product.", "I know about {w} now, back.",
    ),
    "option": ("I choose {a}.", "The instruction wants {a}.", "I need {a}, I click it.", "{a} is the option asked for."),
    "buy": (
        "Everything fits, I buy it.", "Attributes, options and price are right. I buy it.", "All wishes are met, I buy now.",
        "This is it. I buy it.",
    ),
}  # fmt: skip


def thought(reason: str, wording: int, action: str, attributes: Sequence[str]) -> str:
    """A thought in one of the four wordings."""
    wordings = THOUGHTS[reason]
    return wordings[wording % len(wordings)].format(a=action, w=" and ".join(attributes) or "what is asked for")
