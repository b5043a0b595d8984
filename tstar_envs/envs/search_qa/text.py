"""Texts that agents see: question, search results, feedback and prompt, also in Search-R1's style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tstar_envs.envs.search_qa.tasks import Passage
from tstar_envs.react import ANY_CUE, Reply, after_thoughts, parse_reply, thought_text


class Style(NamedTuple):
    """Wording of an episode.

    Attributes:
        question: question -> first observation.
        render: search results, best first, and maximum characters (None: all) -> observation.
        feedback: problem of an invalid action -> observation.
    """

    question: Callable[[str], str]
    render: Callable[[Sequence[Passage], int | None], str]
    feedback: Callable[[str], str]


def question(asked: str) -> str:
    """Word the first observation."""
    return f"Question: {asked}"


def render(passages: Sequence[Passage], limit: int | None = None) -> str:
    """Render search results, truncated to ``limit`` characters."""
    if not passages:
        return "No passage was found."
    shown = (f"Doc {rank} (Title: {p.title}) {p.text}" for rank, p in enumerate(passages, start=1))
    return "\n".join(shown)[:limit]


def feedback(problem: str) -> str:
    """Word the observation after an invalid action."""
    return f"Invalid action: {problem}."


STYLE = Style(question, render, feedback)


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
    """Write the prompt: rules and action grammar.

    ``hint`` is the sentence about the number of searches.
    """
    return _PROMPTS[style].format(hops=hint, horizon=horizon)


PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> and it will "
    "return the top searched results between <information> and </information>. You can search as many times as your want. If you "
    "find no further external knowledge needed, you can directly provide the answer inside <answer> and </answer>, without "
    "detailed illustrations. For example, <answer> Beijing </answer>. "
)
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I want to "
    "give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)


def read_reply(reply: str) -> Reply:
    r"""Parse the first closed pair of tags after a closed thought.

    Nothing else is an action.
    Equivalent to ``<(search|answer)>(.*?)</\1>`` in Search-R1's code, but in linear time, and not inside a closed thought.
    """
    start = after_thoughts(reply, ANY_CUE)
    pairs = []
    for name in ("search", "answer"):
        opening = reply.find(f"<{name}>", start)
        content = opening + len(name) + 2
        if opening >= 0 and (closing := reply.find(f"</{name}>", content)) >= 0:
            pairs.append((opening, f"<{name}>{reply[content:closing].strip()}</{name}>"))
    if not pairs:
        return Reply(thought_text(reply), "", "none")
    opening, pair = min(pairs)
    _, action, cue = parse_reply(pair)
    return Reply(thought_text(reply[:opening]), action, cue)


def search_r1_question(text: str) -> str:
    """Word the question at the end of the user message, adding a missing question mark."""
    text = text.strip()
    return f"Question: {text if text.endswith('?') else text + '?'}\n"


def search_r1_render(passages: Sequence[Passage], limit: int | None = None) -> str:
    """Render search results between tags, best first.

    Args:
        passages: passages with the title line of the corpus (wiki-18: in double quotes, inner quotes doubled).
        limit: maximum characters between the tags; the tags are never cut.
    """
    text = "\n".join(
        f"Doc {rank}(Title: {p.heading}) {p.text}" for rank, p in enumerate(passages, start=1)
    ).strip()
    return f"\n\n<information>{text[:limit]}</information>\n\n"


SEARCH_R1 = Style(search_r1_question, search_r1_render, lambda problem: INVALID)
