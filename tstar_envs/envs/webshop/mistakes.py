"""Believable wrong steps."""

from __future__ import annotations

from tstar_envs.envs.webshop.actions import parse_action
from tstar_envs.envs.webshop.catalogue.catalogue import Catalogue
from tstar_envs.envs.webshop.pages import admissible, results
from tstar_envs.envs.webshop.state import State
from tstar_envs.envs.webshop.task import Task
from tstar_envs.stable_random import StableRandom


def mistake(catalogue: Catalogue, task: Task, state: State, draw: StableRandom) -> tuple[str, str]:
    """A believable wrong step: another product, another option, too narrow a search, leaving the page, a button that is not there."""
    if state.page == "results" and draw.chance(0.1):
        asin = draw.choice(
            [catalogue.product(number)["asin"] for number in results(catalogue, state)] or ["B000000000"]
        ).lower()
        button = draw.choice(("description", f"{asin[:-4]}{asin[-2:]}{asin[-4:-2]}"))
        return f"I try {button}.", f"click[{button}]"
    if state.page in ("search", "done") or draw.chance(0.15):
        words = task.goal["instruction_text"].split()
        first = draw.below(max(1, len(words) - 3))
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
        action = draw.choice([f"click[{asin.lower()}]" for asin in likely or others] or offered)
        return "This one looks right.", action
    action = draw.choice(offered)
    return f"I try {parse_action(action).argument}.", action
