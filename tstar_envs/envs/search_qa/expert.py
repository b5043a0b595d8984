"""Expert policy: look up the hops in order, then answer."""

from __future__ import annotations

from tstar_envs.envs.search_qa.tasks import Hop, State, Task, query_key
from tstar_envs.utils import StableRandom

# relation -> sentence of a fact; {e} entity, {v} value, {d} value with its article
FACTS: dict[str, tuple[str, ...]] = {
    "creator": ("{e} was made by {v}", "{v} made {e}"),
    "company": ("{e} was released by {v}", "{v} released {e}"),
    "founder": ("{e} was founded by {v}", "{v} founded {e}"),
    "birthplace": ("{e} was born in {v}", "{v} is the birthplace of {e}"),
    "birth_year": ("{e} was born in {v}", "{v} is the birth year of {e}"),
    "spouse": ("{e} married {v}", "{v} is the spouse of {e}"),
    "school": ("{e} studied at {v}", "{v} is the school of {e}"),
    "founding_year": ("{e} was founded in {v}", "{v} is the founding year of {e}"),
    "city": ("{e} is based in {v}", "{v} is the seat of {e}"),
    "country": ("{e} lies in {v}", "{v} is the country of {e}"),
    "river": ("{e} stands on {v}", "{v} is the river of {e}"),
    "year": ("{e} came out in {v}", "{v} is the year of {e}"),
    "occupation": ("{e} was {d}", "{v} is the occupation of {e}"),
    "father": ("{e} was a child of {v}", "{v} is the father of {e}"),
    "mother": ("{e} was a child of {v}", "{v} is the mother of {e}"),
    "death_year": ("{e} died in {v}", "{v} is the death year of {e}"),
    "employer": ("{e} worked for {v}", "{v} is the employer of {e}"),
    "award": ("{e} received the {v}", "the {v} went to {e}"),
    "genre": ("{e} is a work of {v}", "{v} is the genre of {e}"),
    "based_on": ("{e} is based on {v}", "{v} is the source of {e}"),
    "mayor": ("the mayor of {e} was {v}", "{v} was mayor of {e}"),
    "capital": ("the capital of {e} is {v}", "{v} is the capital of {e}"),
    "president": ("the president of {e} was {v}", "{v} was president of {e}"),
    "independence_year": ("{e} is independent since {v}", "{v} is the year of the independence of {e}"),
    "presenter": ("the {e} is given by {v}", "{v} gives the {e}"),
    "clues": ("{v} fits {e}", "{e} point to {v}"),
    "first_year": ("the {e} was first given in {v}", "{v} is the first year of the {e}"),
}
_START = ("I need to find {e} first.", "First I look up {e}.", "The question starts from {e}.")
_NEXT_BRIDGE = (
    "{f}, so I look that up next.",
    "{f}. That is what I need next.",
    "{f}, which I search for now.",
)
_NEXT_COMPARISON = (
    "{f}. Now I need the other one.",
    "{f}; next comes the other one.",
    "{f}, so I look up the other one.",
)
_NEXT_JOIN = (
    "{f}. Now I search for {e} together.",
    "{f}, so I look for what has {e}.",
    "{f}; next I look up {e} at once.",
)
_AGAIN = ("That was not {e}, so I search with other words.", "I still need {e}; I try other words.")
_ANSWER_BRIDGE = ("{f}, which is the answer.", "{f}. That answers the question.", "{f}, and that was asked.")
_ANSWER_COMPARISON = ("{f}, so the answer is {a}.", "{f}. The answer is {a}.", "{f}, which makes it {a}.")


def with_article(noun: str) -> str:
    """Put the indefinite article before a noun."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def compares(kind: str) -> bool:
    """Check whether questions of this kind compare the values of two entities."""
    return (
        kind in ("compare-people", "compare-works") or kind.startswith("same") or kind.endswith("comparison")
    )


def fact(hop: Hop, rng: StableRandom) -> str:
    """Word one fact as a clause."""
    clause = rng.choice(FACTS[hop.relation]).format(e=hop.entity, v=hop.value, d=with_article(hop.value))
    return clause[0].upper() + clause[1:]


def thought(
    kind: str, hops: tuple[Hop, ...], position: int, again: bool, answer: str, rng: StableRandom
) -> str:
    """Word the oracle's thought before a look-up, or before the answer.

    Args:
        kind: kind of the question.
        hops: the chain of look-ups.
        position: index of the next hop; the number of hops means the answer.
        again: True if an earlier query for this hop failed.
        answer: the golden answer.
        rng: source of the random paraphrase.
    """
    if position == len(hops):
        if not compares(kind):
            return rng.choice(_ANSWER_BRIDGE).format(f=fact(hops[-1], rng))
        return rng.choice(_ANSWER_COMPARISON).format(f=" and ".join(fact(h, rng) for h in hops), a=answer)
    asked = hops[position]
    # A join hop searches for an unknown entity by the values that earlier hops found.
    joins = asked.entity not in asked.queries[0]
    entity = asked.queries[0] if joins else asked.entity
    if again:
        return rng.choice(_AGAIN).format(e=entity)
    if position == 0:
        return rng.choice(_START).format(e=entity)
    wordings = (
        _NEXT_JOIN if joins else _NEXT_BRIDGE if hops[position - 1].value == entity else _NEXT_COMPARISON
    )
    return rng.choice(wordings).format(f=fact(hops[position - 1], rng), e=entity)


def next_step(task: Task, state: State, paraphrase: int = 0) -> tuple[str, str] | None:
    """Choose the expert's thought and action.

    Args:
        task: the question with its hops.
        state: current state of the episode.
        paraphrase: chooses among the wordings of the thought (demonstrations vary it).

    Returns:
        None if the episode is over, or if every query for a hop has failed.
    """
    if state.answer is not None:
        return None
    rng = StableRandom(f"{task.id}/{len(state.cache)}/{paraphrase}")
    tried = {query_key(key) for key, _ in state.cache}
    for position, hop in enumerate(task.hops):
        if hop.passage in state.seen:
            continue
        untried = [q for q in hop.queries if query_key(q) not in tried]
        if not untried:
            return None
        again = len(untried) < len(hop.queries)
        return thought(
            task.kind, task.hops, position, again, task.golden_answers[0], rng
        ), f"search[{untried[0]}]"
    answer = task.golden_answers[0]
    if not task.hops:  # public files without hops: the expert answers at once
        return "I know the answer.", f"finish[{answer}]"
    return thought(task.kind, task.hops, len(task.hops), False, answer, rng), f"finish[{answer}]"


def distance(task: Task, state: State) -> float | None:
    """Estimate the remaining steps: missing passages plus the answer; None if the state is lost.

    This is a lower bound: a hop whose first query fails takes one more step.
    """
    if state.answer is not None:
        return None
    if next_step(task, state) is None:
        return None
    return 1.0 + sum(hop.passage not in state.seen for hop in task.hops)


def mistake(task: Task, state: State, rng: StableRandom) -> tuple[str, str]:
    """Choose a plausible bad step.

    It is a wrong entity, the whole question as a query, a repeated query, or a mixed-up name.
    """
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
