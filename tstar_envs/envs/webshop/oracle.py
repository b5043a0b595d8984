"""The expert of WebShop: searches, finds the product, reads its description, chooses the options, buys.

It knows the target; its thoughts say what a careful buyer can see. On another product (it opens none itself) it reads until
the fault shows, and goes back. The distance is the number of steps its plan still has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tstar_envs.envs.webshop import thoughts
from tstar_envs.envs.webshop.actions import parse_action
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue, query_terms
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.inspection import fault, page_words, unread, unseen, wanted_options
from tstar_envs.envs.webshop.navigation import click as clicked
from tstar_envs.envs.webshop.navigation import search
from tstar_envs.envs.webshop.pages import admissible, clickables, current_product, results
from tstar_envs.envs.webshop.state import State
from tstar_envs.envs.webshop.task import Task
from tstar_envs.stable_random import StableRandom

LONGEST_PLAN = 60


def target_of(catalogue: Catalogue, task: Task) -> int | None:
    """The number of the product asked for."""
    return catalogue.find(task.goal["asin"])


@lru_cache(maxsize=4096)
def _query(catalogue: Catalogue, queries: tuple[str, ...], target: int, page_size: int) -> str | None:
    """The first query that shows the target on its first page, else the one that ranks it best; None if none finds it."""
    ranks: list[tuple[int, str]] = []
    for query in queries:
        found = catalogue.search_terms(query_terms(query))
        if target in found:
            ranks.append((found.index(target), query))
            if ranks[-1][0] < page_size:
                return query
    return min(ranks)[1] if ranks else None


def _queries(task: Task, title: str) -> tuple[str, ...]:
    """What a buyer types: all wishes with the kind of thing, the kind of thing alone, the instruction, a title."""
    options = task.goal["goal_options"]
    wishes = [
        *task.goal["attributes"],
        task.query,
        *(options.values() if isinstance(options, Mapping) else options),
    ]
    queries = (" ".join(wishes), task.query, task.goal["instruction_text"], title)
    return tuple(" ".join(query.lower().replace("[", " ").replace("]", " ").split()) for query in queries)


def next_action(catalogue: Catalogue, task: Task, state: State) -> tuple[str, str, str] | None:
    """What the expert does next, why (a key of ``thoughts.THOUGHTS``) and a detail of that reason; None if the state is lost."""
    target = target_of(catalogue, task)
    if target is None or state.page == "done":
        return None
    product = catalogue.product(target)
    query = _query(catalogue, _queries(task, product["name"]), target, state.page_size)
    if query is None:
        return None
    if state.page == "search":
        return f"search[{query}]", "search", ""
    if state.page == "results":
        found = catalogue.search_terms(state.terms)
        there = found.index(target) // state.page_size + 1 if target in found else 0
        if there != state.number and state.terms != query_terms(query):
            return f"search[{query}]", "search again", ""
        if there == state.number:
            return f"click[{product['asin'].lower()}]", *_why_open(product, task)
        return (
            ("click[next >]", "next page", "")
            if there > state.number
            else ("click[< prev]", "earlier page", "")
        )
    looked_at = current_product(catalogue, state)
    if state.page == "sub":
        found_here = [
            a for a in task.goal["attributes"] if a.lower() in page_words(looked_at).get(state.sub, "")
        ]
        return "click[< prev]", "has attribute" if found_here else "lacks attribute", " and ".join(found_here)
    if state.asin != product["asin"]:
        wrong = fault(catalogue, task, state)
        if wrong is not None:
            return "click[< prev]", *wrong
    page = unread(looked_at, task, state)
    if page:
        return f"click[{page}]", "read", " and ".join(unseen(looked_at, task, state))
    for name, value in wanted_options(product, task).items():
        # A value without characters has a button that no action can name.
        if (
            value
            and dict(state.options).get(name) != value
            and clickables(catalogue, state).get(value) == f"option {name}"
        ):
            return f"click[{value}]", "option", ""
    return "click[buy now]", "buy", ""


def _why_open(product: Product, task: Task) -> tuple[str, str]:
    """What speaks for a product as the results show it."""
    shown = [
        attribute for attribute in task.goal["attributes"] if attribute.lower() in product["Title"].lower()
    ]
    return ("open by title", " and ".join(shown)) if shown else ("open", "")


def next_step(catalogue: Catalogue, task: Task, state: State, wording: int) -> tuple[str, str] | None:
    """The expert's thought and action."""
    step = next_action(catalogue, task, state)
    if step is None:
        return None
    action, reason, detail = step
    return thoughts.thought(
        reason, wording, parse_action(action).argument, task.goal["attributes"], detail
    ), action


def distance(catalogue: Catalogue, task: Task, state: State) -> float | None:
    """Steps that the expert still takes, buying included; None if the state is lost."""
    for steps in range(LONGEST_PLAN):
        step = next_action(catalogue, task, state)
        if step is None:
            return None
        action = parse_action(step[0])
        if action.argument == "buy now":
            return steps + 1.0
        if action.name == "search":
            state = search(state, action.argument)
        else:
            state = clicked(catalogue, state, action.argument, clickables(catalogue, state)[action.argument])
    return None


def mistake(catalogue: Catalogue, task: Task, state: State, rng: StableRandom) -> tuple[str, str]:
    """A believable wrong step: another product, another option, too narrow a search, leaving the page, a button that is not there."""
    if state.page == "results" and rng.chance(0.1):
        asin = rng.choice(
            [catalogue.product(number)["asin"] for number in results(catalogue, state)] or ["B000000000"]
        ).lower()
        button = rng.choice(("description", f"{asin[:-4]}{asin[-2:]}{asin[-4:-2]}"))
        return f"I try {button}.", f"click[{button}]"
    if state.page in ("search", "done") or rng.chance(0.15):
        words = task.goal["instruction_text"].split()
        first = rng.below(max(1, len(words) - 3))
        query = " ".join(words[first : first + 4]).replace("[", " ").replace("]", " ")
        return f"I search for {query}.", f"search[{query}]"
    offered = [a for a in admissible(catalogue, state) if a != "click[buy now]"]
    if state.page == "results":
        shown = [catalogue.product(number)["asin"] for number in results(catalogue, state)]
        others = [asin for asin in shown if asin != task.goal["asin"]]
        # What a buyer takes for the right one has a wanted attribute in its title.
        words = [attribute.lower() for attribute in task.goal["attributes"]]
        titles = {
            catalogue.product(n)["asin"]: catalogue.product(n)["Title"].lower()
            for n in results(catalogue, state)
        }
        likely = [asin for asin in others if any(word in titles[asin] for word in words)]
        action = rng.choice([f"click[{asin.lower()}]" for asin in likely or others] or offered)
        return "This one looks right.", action
    action = rng.choice(offered)
    return f"I try {parse_action(action).argument}.", action
