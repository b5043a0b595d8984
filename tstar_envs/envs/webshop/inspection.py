"""What a careful buyer sees of a product: which options fit, what is still to be read, what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping

from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.pages import current_product
from tstar_envs.envs.webshop.reward import has_attribute, option_matches
from tstar_envs.envs.webshop.state import State
from tstar_envs.envs.webshop.task import Task


def wanted_options(product: Product, task: Task) -> dict[str, str]:
    """The value that the goal wants for each option of the product, exact values first; options that it does not name are left out."""
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
    """The wanted attributes that neither the title nor a page read so far shows."""
    pages = page_words(product)
    seen = " ".join([product["Title"].lower(), *(pages[page] for page in state.read if page in pages)])
    return [attribute for attribute in task.goal["attributes"] if attribute.lower() not in seen]


def unread(product: Product, task: Task, state: State) -> str:
    """The next sub page that a careful buyer reads, "" for none: the description before buying, the features if something is unseen."""
    pages = [page for page, words in page_words(product).items() if words]
    if pages and not state.read:
        return pages[0]
    return (
        next((page for page in pages if page not in state.read), "") if unseen(product, task, state) else ""
    )


def page_words(product: Product) -> dict[str, str]:
    """The words of the sub pages that say something of a product, in lower case."""
    return {
        "description": product["Description"].lower(),
        "features": " ".join(product["BulletPoints"]).lower(),
    }


def fault(catalogue: Catalogue, task: Task, state: State) -> tuple[str, str] | None:
    """What a careful buyer sees to be wrong with the product looked at, as a reason and its detail; None before it is seen."""
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
