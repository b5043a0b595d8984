"""The expert's thoughts, each in four wordings."""

from __future__ import annotations

from collections.abc import Sequence

# {a} is what is searched or clicked, {w} the wanted attributes, {d} the detail of the reason (``oracle.next_action``).
THOUGHTS: dict[str, tuple[str, str, str, str]] = {
    "search": (
        "I search for {a}.",
        "First I look for {a}.",
        "Let me search for {a}.",
        "I need {a}, so I search for that.",
    ),
    "search again": (
        "Nothing fits here, I search for {a}.",
        "These results do not fit. I look for {a}.",
        "Better keywords are needed: {a}.",
        "I do not see it, so I search for {a}.",
    ),
    "open": (
        "{a} may have {w}. I open it.",
        "I open {a} to see if it has {w}.",
        "{a} fits title and price, I check it for {w}.",
        "{a} is a candidate for {w}.",
    ),
    "next page": (
        "None of these fits, I go to the next page.",
        "Not on this page, I turn to the next.",
        "I look at the next page.",
        "The next page may have it.",
    ),
    "earlier page": (
        "I go back a page.",
        "It was on an earlier page.",
        "I turn back to the previous page.",
        "The page before had a better one.",
    ),
    "open by title": (
        "{d} is in the title of {a}, I open it.",
        "The title with {d} is that of {a}. I look at it.",
        "I want {d} and see it in the title of {a}.",
        "{d}: that says {a}, and the price fits. I open it.",
    ),
    "wrong product": (
        "This product does not fit, I go back.",
        "Not all wishes are met here. Back to the results.",
        "This is not the one, I go back.",
        "I return to the results, this does not fit.",
    ),
    "too expensive": (
        "{d} is more than I may pay, I go back.",
        "Too expensive: {d}. Back to the results.",
        "The price of {d} is over the limit, I go back.",
        "{d} does not fit the limit. Back.",
    ),
    "no option": (
        "There is no {d} here, I go back.",
        "It does not come in {d}. Back to the results.",
        "I need {d}, which this one lacks. Back.",
        "{d} is not offered, I return to the results.",
    ),
    "no attribute": (
        "I read it all and {d} is not there, I go back.",
        "Nothing says {d}. Back to the results.",
        "It lacks {d}, I go back.",
        "{d} is missing here, I return to the results.",
    ),
    "read": (
        "I read the {a} to check for {d}.",
        "Does it have {d}? I look at the {a}.",
        "Before I buy I read the {a}: it should have {d}.",
        "The {a} should tell about {d}.",
    ),
    "has attribute": (
        "It says {d}. Back to the product.",
        "Here it is: {d}. I go back.",
        "{d} stands here; back to the product.",
        "Good, {d}. I go back.",
    ),
    "lacks attribute": (
        "Nothing that I look for stands here. I go back.",
        "This does not help, back to the product.",
        "No word of it here. Back.",
        "I see none of my wishes here, I go back.",
    ),
    "option": (
        "I choose {a}.",
        "The instruction wants {a}.",
        "I need {a}, I click it.",
        "{a} is the option asked for.",
    ),
    "buy": (
        "Everything fits, I buy it.",
        "Attributes, options and price are right. I buy it.",
        "All wishes are met, I buy now.",
        "This is it. I buy it.",
    ),
}


def thought(reason: str, wording: int, action: str, attributes: Sequence[str], detail: str) -> str:
    """A thought in one of the four wordings."""
    wordings = THOUGHTS[reason]
    wanted = " and ".join(attributes) or "what is asked for"
    return wordings[wording % len(wordings)].format(a=action, w=wanted, d=detail or wanted)
