"""Rules of search-QA: pure functions from task, state, action and search results to an outcome.

The state is what the agent knows: the passages it has seen, the result of each query, and its answer. A search changes the
state only if it finds a new passage. A repeated query is answered from the episode's cache. The step count is not part of the
state.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import NamedTuple

from tstar_envs.envs.search_qa.question_sets import NORMALIZERS, Scoring
from tstar_envs.envs.search_qa.search import PrefetchedSearch
from tstar_envs.envs.search_qa.tasks import State, Task
from tstar_envs.envs.search_qa.text import Style
from tstar_envs.outcome import Outcome
from tstar_envs.react import bracket_content

LONGEST_QUERY = 1_000  # characters

_ACTION = re.compile(r"\W{0,8}(search|finish)\s{0,8}(?=\[)", re.IGNORECASE)


class ParsedAction(NamedTuple):
    """Parsed action; ``verb`` is search, finish, or "" for an invalid action, explained by ``problem``."""

    verb: str
    argument: str
    problem: str

    @property
    def canonical(self) -> str:
        """Canonical text of the action."""
        return f"{self.verb}[{self.argument}]" if self.verb else ""


def parse_action(action: str) -> ParsedAction:
    """Parse ``search[...]`` or ``finish[...]``, in any case. The balancing bracket ends the argument.

    Text around is ignored.
    """
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


class Conditions(NamedTuple):
    """Settings of an environment that the rules need.

    Attributes:
        engine: search engine with prefetched results.
        scoring: answer scoring.
        style: wording of results and feedback.
        observation_limit: maximum characters of search results, None for all.
    """

    engine: PrefetchedSearch
    scoring: Scoring
    style: Style
    observation_limit: int | None = None


def apply(task: Task, state: State, action: str, conditions: Conditions) -> Outcome[State]:
    """Apply an action.

    Raises:
        RetrieverError: the search service failed; the state is unchanged.
    """
    parsed = parse_action(action)
    if parsed.problem:
        return Outcome(state, conditions.style.feedback(parsed.problem), "", invalid_reason=parsed.problem)
    if parsed.verb == "finish":
        return _finish(task, state, parsed, conditions.scoring)
    return _search(state, parsed, conditions)


def _search(state: State, parsed: ParsedAction, conditions: Conditions) -> Outcome[State]:
    key = conditions.engine.key(parsed.argument)
    observation = state.cached(key)
    if observation is not None:
        extra = {"doc_ids": [], "new_doc_ids": [], "repeat_query": True}
        return Outcome(state, observation, parsed.canonical, extra=extra)
    passages = conditions.engine.search(parsed.argument)
    observation = conditions.style.render(passages, conditions.observation_limit)
    new = sorted({p.id for p in passages} - set(state.seen))
    seen = tuple(sorted((*state.seen, *new))) if new else state.seen
    after = replace(state, seen=seen, cache=(*state.cache, (key, observation)))
    found = {"doc_ids": [p.id for p in passages], "new_doc_ids": new, "repeat_query": False}
    effect = f"search:{key}" if new else ""
    return Outcome(after, observation, parsed.canonical, effect_key=effect, extra=found)


def _finish(task: Task, state: State, parsed: ParsedAction, scoring: Scoring) -> Outcome[State]:
    scores = scoring.scores(parsed.argument, task.golden_answers)
    return Outcome(
        replace(state, answer=parsed.argument),
        "The answer is right." if scores["em"] else "The answer is wrong.",
        parsed.canonical,
        effect_key=f"finish:{NORMALIZERS[scoring.normalizer](parsed.argument)}",
        terminated=True,
        success=scores["em"] == 1.0,
        score=scores["em"],
        # Golden answers only after the answer: agents read info.
        extra={**scores, "golden_answers": list(task.golden_answers)},
    )
