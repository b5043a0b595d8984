"""Rules of search-QA: pure functions from (state, action, search results) to the next state.

The state is what the agent knows: the passages it has seen, what each query of this episode returned, and its answer.
A search changes the state only if it brings a passage not seen before; a repeated query is answered from the episode's
cache. The step count is not part of the state.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tstar_envs.envs.search_qa.search.passage import Passage
from tstar_envs.react import bracket_content

LONGEST_QUERY = 1_000  # characters

_ACTION = re.compile(r"\W{0,8}(search|finish)\s{0,8}(?=\[)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QAState:
    """Immutable and picklable; ``seen`` is sorted so that equal states are equal objects."""

    seen: tuple[str, ...] = ()
    cache: tuple[tuple[str, str], ...] = ()  # (key of the query, observation)
    answer: str | None = None


class ParsedAction(NamedTuple):
    """``verb`` is search, finish, or "" with ``problem`` saying what is wrong."""

    verb: str
    argument: str
    problem: str

    @property
    def canonical(self) -> str:
        """The action as the environment writes it."""
        return f"{self.verb}[{self.argument}]" if self.verb else ""


def parse_action(action: str) -> ParsedAction:
    """Read ``search[...]`` or ``finish[...]``, any case; the bracket that balances ends the argument, what stands around is ignored."""
    match = _ACTION.match(action)
    content = None if match is None else bracket_content(action, match.end())
    if match is None or content is None:
        return ParsedAction("", "", "the action must be search[query] or finish[answer]")
    verb, argument = match.group(1).lower(), " ".join(content.split())
    if not argument or (verb == "search" and not _has_words(argument)):
        return ParsedAction("", "", f"{verb}[...] needs words between the brackets")
    if len(argument) > LONGEST_QUERY:
        return ParsedAction(
            "", "", f"{verb}[...] takes at most {LONGEST_QUERY} characters, got {len(argument)}"
        )
    return ParsedAction(verb, argument, "")


def _has_words(query: str) -> bool:
    return any(c.isalnum() for c in unicodedata.normalize("NFKC", query).casefold())


def cached(state: QAState, key: str) -> str | None:
    """The observation that an earlier query of this key got in this episode."""
    return dict(state.cache).get(key)


def observe(passages: Sequence[Passage], limit: int | None = None) -> str:
    """Search results as the agent reads them, cut after ``limit`` characters."""
    if not passages:
        return "No passage was found."
    return "\n".join(f"Doc {rank} (Title: {p.title}) {p.text}" for rank, p in enumerate(passages, start=1))[
        :limit
    ]


def after_search(
    state: QAState, key: str, passages: Sequence[Passage], observation: str
) -> tuple[QAState, list[str]]:
    """The state after a query of a new key, and the ids of the passages it brought for the first time."""
    new = sorted({p.id for p in passages} - set(state.seen))
    cache = (*state.cache, (key, observation))
    return replace(state, seen=tuple(sorted((*state.seen, *new))) if new else state.seen, cache=cache), new


def after_finish(state: QAState, answer: str) -> QAState:
    """The final state."""
    return replace(state, answer=answer)
