"""The expert of WebShop: searches, finds the product, reads what the page does not show, chooses the options, buys.

It knows the target; its thoughts say what a careful buyer can see. The distance is the number of steps its plan still has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tstar_envs.envs.webshop import text
from tstar_envs.envs.webshop.catalogue import Catalogue, Product, query_terms
from tstar_envs.envs.webshop.goals import ShopTask
from tstar_envs.envs.webshop.reward import option_matches
from tstar_envs.envs.webshop.rules import ShopState, admissible, clickables, parse_action, results, search
from tstar_envs.envs.webshop.rules import click as clicked
from tstar_envs.stable_random import StableRandom

LONGEST_PLAN = 60


def target_of(catalogue: Catalogue, task: ShopTask) -> int | None:
    """The number of the product asked for."""
    return catalogue.find(task.goal["asin"])


@lru_cache(maxsize=4096)
def _query(catalogue: Catalogue, task_query: str, instruction: str, title: str, target: int) -> str | None:
    """The first query of a buyer that finds the target, the obvious one first; None if none does."""
    return next((query for query in (task_query, instruction, title) if target in catalogue.search_terms(query_terms(query))), None)


def wanted_options(product: Product, task: ShopTask) -> dict[str, str]:
    """For each option of the product the value that the goal wants, exact values first; options it does not name are left."""
    goal = task.goal["goal_options"]
    if isinstance(goal, Mapping):
        return {name: value for name, value in goal.items() if value in product["options"].get(name, ())}
    chosen: dict[str, str] = {}
    for wanted in goal:
        free = {name: values for name, values in product["options"].items() if name not in chosen}
        exact = next((name for name, values in free.items() if wanted.lower() in values), None)
        if exact is not None:
            chosen[exact] = wanted.lower()
            continue
        close = next(((name, v) for name, values in free.items() for v in values if option_matches(wanted, v)), None)
        if close is not None:
            chosen[close[0]] = close[1]
    return chosen


def unread(product: Product, task: ShopTask, state: ShopState) -> str:
    """The next sub page that a careful buyer reads: one that shows a wanted attribute which title and read pages do not."""
    seen = product["Title"].lower()
    pages = {"description": product["Description"].lower(), "features": " ".join(product["BulletPoints"]).lower()}
    seen += " ".join(pages[page] for page in state.read if page in pages)
    hidden = [attribute for attribute in task.goal["attributes"] if attribute.lower() not in seen]
    for page, words in pages.items():
        if page not in state.read and any(attribute.lower() in words for attribute in hidden):
            return page
    # Where no page shows it, or the title shows all, the description is still read once before buying.
    return "" if state.read else "description" if product["Description"] or not product["BulletPoints"][0] else "features"


def next_action(catalogue: Catalogue, task: ShopTask, state: ShopState) -> tuple[str, str] | None:
    """What the expert does next and why (a key of ``text.THOUGHTS``), None if the state is lost."""
    target = target_of(catalogue, task)
    if target is None or state.page == "done":
        return None
    product = catalogue.product(target)
    query = _query(catalogue, task.query, task.goal["instruction_text"], product["name"], target)
    if query is None:
        return None
    if state.page == "search":
        return f"search[{query}]", "search"
    if state.page == "results":
        found = catalogue.search_terms(state.terms)
        if target not in found:
            return f"search[{query}]", "search again"
        there = found.index(target) // state.page_size + 1
        if there == state.number:
            return f"click[{product['asin'].lower()}]", "open"
        return ("click[next >]", "next page") if there > state.number else ("click[< prev]", "earlier page")
    if state.asin != product["asin"]:
        return "click[< prev]", "wrong product" if state.page == "item" else "leave sub page"
    if state.page == "sub":
        return "click[< prev]", "has attribute"
    page = unread(product, task, state)
    if page:
        return f"click[{page}]", "read"
    for name, value in wanted_options(product, task).items():
        if dict(state.options).get(name) != value and clickables(catalogue, state).get(value) == f"option {name}":
            return f"click[{value}]", "option"
    return "click[buy now]", "buy"


def next_step(catalogue: Catalogue, task: ShopTask, state: ShopState, wording: int) -> tuple[str, str] | None:
    """The expert's thought and action."""
    step = next_action(catalogue, task, state)
    if step is None:
        return None
    action, reason = step
    return text.thought(reason, wording, action=parse_action(action).argument, attributes=task.goal["attributes"]), action


def distance(catalogue: Catalogue, task: ShopTask, state: ShopState) -> float | None:
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


def mistake(catalogue: Catalogue, task: ShopTask, state: ShopState, draw: StableRandom) -> tuple[str, str]:
    """A believable wrong step: another product, another option, too narrow a search, leaving the page."""
    if state.page in ("search", "done") or draw.chance(0.15):
        words = task.goal["instruction_text"].split()
        first = draw.below(max(1, len(words) - 3))
        query = " ".join(words[first : first + 4]).replace("[", " ").replace("]", " ")
        return f"I search for {query}.", f"search[{query}]"
    offered = [a for a in admissible(catalogue, state) if a != "click[buy now]"]
    if state.page == "results":
        shown = [catalogue.product(number)["asin"] for number in results(catalogue, state)]
        others = [f"click[{asin.lower()}]" for asin in shown if asin != task.goal["asin"]]
        action = draw.choice(others or offered)
        return "This one looks right.", action
    action = draw.choice(offered)
    return f"I try {parse_action(action).argument}.", action
