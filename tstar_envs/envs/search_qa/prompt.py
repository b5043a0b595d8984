"""Prompts: what there is to do and how it is written; Search-R1's own is in ``search_r1``."""

from __future__ import annotations

_PROMPTS = {
    "react": (
        "Answer the question by searching a collection of short passages. In each turn write one thought and one action:\n"
        "Thought: what you know and what you need next\n"
        "Action: search[query]   to read the passages that fit the query best\n"
        "Action: finish[answer]  to give the final answer, as short as possible: a name, a year, yes or no\n"
        "{hops} You have {horizon} turns."
    ),
    "tags": (
        "Answer the question by searching a collection of short passages. In each turn reason inside <think> and </think>, "
        "then act: <search>query</search> shows the passages that fit the query best, <answer>answer</answer> gives the "
        "final answer, as short as possible: a name, a year, yes or no.\n"
        "{hops} You have {horizon} turns."
    ),
}


def prompt(style: str, horizon: int, hint: str) -> str:
    """The rules and the grammar of actions as an agent reads them; ``hint`` says how many searches a question needs."""
    return _PROMPTS[style].format(hops=hint, horizon=horizon)
