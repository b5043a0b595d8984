"""Expert policy: search, open the product, read its description, choose the options, buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tstar_envs.envs.webshop.catalogue import Catalogue, Product, query_terms
from tstar_envs.envs.webshop.pages import (
    State,
    admissible,
    clickables,
    current_product,
    parse_action,
    results,
    search,
)
from tstar_envs.envs.webshop.pages import click as clicked
from tstar_envs.envs.webshop.reward import has_attribute, option_matches
from tstar_envs.envs.webshop.shop import Task
from tstar_envs.utils import StableRandom


def wanted_options(product: Product, task: Task) -> dict[str, str]:
    """Choose the goal's value for each option of the product, exact matches first.

    Other options are omitted.
    """
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
        close = next(
            ((name, v) for name, values in free.items() for v in values if option_matches(wanted, v)), None
        )
        if close is not None:
            chosen[close[0]] = close[1]
    return chosen


def unseen(product: Product, task: Task, state: State) -> list[str]:
    """List the goal's attributes that neither the title nor the pages read so far show."""
    pages = page_words(product)
    seen = " ".join([product["Title"].lower(), *(pages[page] for page in state.read if page in pages)])
    return [attribute for attribute in task.goal["attributes"] if attribute.lower() not in seen]


def unread(product: Product, task: Task, state: State) -> str:
    """Choose the next sub page to read, "" for none.

    This is the description before buying, and the features if an attribute is unseen.
    """
    pages = [page for page, words in page_words(product).items() if words]
    if pages and not state.read:
        return pages[0]
    return (
        next((page for page in pages if page not in state.read), "") if unseen(product, task, state) else ""
    )


def page_words(product: Product) -> dict[str, str]:
    """Get the lower-case text of the informative sub pages of a product."""
    return {
        "description": product["Description"].lower(),
        "features": " ".join(product["BulletPoints"]).lower(),
    }


def fault(catalogue: Catalogue, task: Task, state: State) -> tuple[str, str] | None:
    """Find a visible mismatch of the current product, as reason and detail.

    None if nothing wrong is visible yet.
    """
    product = current_product(catalogue, state)
    if catalogue.price(catalogue.find(state.asin) or 0) > task.goal["price_upper"]:
        return "too expensive", product["Price"]
    wanted = task.goal["goal_options"]
    offered = [value for values in product["options"].values() for value in values]
    for value in wanted.values() if isinstance(wanted, Mapping) else wanted:
        if not any(option_matches(value, offer) for offer in offered):
            return "no option", value
    if unread(product, task, state):
        return None
    lacking = [attribute for attribute in task.goal["attributes"] if not has_attribute(product, attribute)]
    return ("no attribute", " and ".join(lacking)) if lacking else ("wrong product", "")


# {a} is the argument of the action, {w} the goal's attributes, {d} the detail of the reason (``next_action``).
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


def thought(reason: str, paraphrase: int, action: str, attributes: Sequence[str], detail: str) -> str:
    """Word a thought in one of four wordings."""
    wordings = THOUGHTS[reason]
    wanted = " and ".join(attributes) or "what is asked for"
    return wordings[paraphrase % len(wordings)].format(a=action, w=wanted, d=detail or wanted)


LONGEST_PLAN = 60


def target_of(catalogue: Catalogue, task: Task) -> int | None:
    """Find the number of the target product."""
    return catalogue.find(task.goal["asin"])


@lru_cache(maxsize=4096)
def _query(catalogue: Catalogue, queries: tuple[str, ...], target: int, page_size: int) -> str | None:
    """Choose the first query that shows the target on its first page.

    Otherwise choose the one that ranks it best, None if none finds it.
    """
    ranks: list[tuple[int, str]] = []
    for query in queries:
        found = catalogue.search_terms(query_terms(query))
        if target in found:
            ranks.append((found.index(target), query))
            if ranks[-1][0] < page_size:
                return query
    return min(ranks)[1] if ranks else None


def _queries(task: Task, title: str) -> tuple[str, ...]:
    """List candidate queries: attributes with the product type, the type alone, the instruction, a title."""
    options = task.goal["goal_options"]
    wishes = [
        *task.goal["attributes"],
        task.query,
        *(options.values() if isinstance(options, Mapping) else options),
    ]
    queries = (" ".join(wishes), task.query, task.goal["instruction_text"], title)
    return tuple(" ".join(query.lower().replace("[", " ").replace("]", " ").split()) for query in queries)


def next_action(catalogue: Catalogue, task: Task, state: State) -> tuple[str, str, str] | None:
    """Choose the next action, its reason (a key of ``THOUGHTS``) and a detail.

    None if the state is lost.
    """
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
        # No action can name the button of an empty value.
        if (
            value
            and dict(state.options).get(name) != value
            and clickables(catalogue, state).get(value) == f"option {name}"
        ):
            return f"click[{value}]", "option", ""
    return "click[buy now]", "buy", ""


def _why_open(product: Product, task: Task) -> tuple[str, str]:
    """Give the reason to open a product from the results."""
    shown = [
        attribute for attribute in task.goal["attributes"] if attribute.lower() in product["Title"].lower()
    ]
    return ("open by title", " and ".join(shown)) if shown else ("open", "")


def next_step(catalogue: Catalogue, task: Task, state: State, paraphrase: int) -> tuple[str, str] | None:
    """Choose the expert's thought and action."""
    step = next_action(catalogue, task, state)
    if step is None:
        return None
    action, reason, detail = step
    return thought(reason, paraphrase, parse_action(action).argument, task.goal["attributes"], detail), action


def distance(catalogue: Catalogue, task: Task, state: State) -> float | None:
    """Count the expert's remaining steps, including the purchase; None if the state is lost."""
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
    """Choose a plausible bad step.

    It is a wrong product or option, too narrow a search, leaving the page, or a missing button.
    """
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
        # A plausible wrong product has one of the goal's attributes in its title.
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
