"""What an agent reads: the question, search results, and the answer to an invalid action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tstar_envs.envs.search_qa.search.passage import Passage


class Style(NamedTuple):
    """One way to word an episode.

    Attributes:
        question: a question -> the first observation.
        render: search results, best first, and the most characters of them (None: all) -> observation.
        refusal: what was wrong with an action -> observation.
    """

    question: Callable[[str], str]
    render: Callable[[Sequence[Passage], int | None], str]
    refusal: Callable[[str], str]


def question(asked: str) -> str:
    """The first observation."""
    return f"Question: {asked}"


def render(passages: Sequence[Passage], limit: int | None = None) -> str:
    """Search results, cut after ``limit`` characters."""
    if not passages:
        return "No passage was found."
    shown = (f"Doc {rank} (Title: {p.title}) {p.text}" for rank, p in enumerate(passages, start=1))
    return "\n".join(shown)[:limit]


def refusal(problem: str) -> str:
    """The observation after an invalid action."""
    return f"Invalid action: {problem}."


STYLE = Style(question, render, refusal)
