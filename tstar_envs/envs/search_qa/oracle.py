"""The expert of search-QA: looks up the hops in order, with a second wording where the first finds another passage."""

from __future__ import annotations

from tstar_envs.envs.search_qa import thoughts
from tstar_envs.envs.search_qa.search.queries import query_key
from tstar_envs.envs.search_qa.state import State
from tstar_envs.envs.search_qa.task import Task
from tstar_envs.stable_random import StableRandom


def next_step(task: Task, state: State, wording: int = 0) -> tuple[str, str] | None:
    """The expert's thought and action.

    Args:
        task: the question with its hops.
        state: where the episode stands.
        wording: chooses among the wordings of the thought (demonstrations vary it).

    Returns:
        None if the episode is over or every query for a hop has been tried in vain.
    """
    if state.answer is not None:
        return None
    rng = StableRandom(f"{task.id}/{len(state.cache)}/{wording}")
    tried = {query_key(key) for key, _ in state.cache}
    for position, hop in enumerate(task.hops):
        if hop.passage in state.seen:
            continue
        untried = [q for q in hop.queries if query_key(q) not in tried]
        if not untried:
            return None
        again = len(untried) < len(hop.queries)
        return thoughts.thought(
            task.kind, task.hops, position, again, task.golden_answers[0], rng
        ), f"search[{untried[0]}]"
    answer = task.golden_answers[0]
    if not task.hops:  # outside files without hops: the expert knows the answer and says so
        return "I know the answer.", f"finish[{answer}]"
    return thoughts.thought(task.kind, task.hops, len(task.hops), False, answer, rng), f"finish[{answer}]"


def distance(task: Task, state: State) -> float | None:
    """Passages still to be found plus the answer; None if the state is lost.

    A lower bound of the expert's steps: a hop whose first query finds another passage takes one step more.
    """
    if state.answer is not None:
        return None
    if next_step(task, state) is None:
        return None
    return 1.0 + sum(hop.passage not in state.seen for hop in task.hops)


def mistake(task: Task, state: State, rng: StableRandom) -> tuple[str, str]:
    """A believable wrong step: the wrong entity, the whole question as a query, an old query again, or a mixed-up name."""
    entities = [h.entity for h in task.hops] + [h.value for h in task.hops] or [task.question]
    guess = rng.choice(entities)
    kind = rng.below(4)
    if kind == 0:
        return f"I search for {guess}.", f"search[{guess}]"
    if kind == 1:
        return "I search for the whole question.", f"search[{task.question}]"
    if kind == 2 and state.cache:
        query = rng.choice(state.cache)[0]
        return "I read that passage again.", f"search[{query}]"
    words = " ".join(rng.choice(entities).split()[:1] + rng.choice(entities).split()[-1:])
    return f"I need to find {words} first.", f"search[{words}]"
