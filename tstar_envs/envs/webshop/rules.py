"""Rules of WebShop: a pure function from task, state and action to an outcome.

Transitions are in ``pages``, the score of a purchase in ``reward``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tstar_envs.envs.webshop.catalogue import Catalogue
from tstar_envs.envs.webshop.pages import (
    State,
    click,
    clickables,
    current_product,
    effect,
    parse_action,
    read_action,
    search,
)
from tstar_envs.envs.webshop.reward import Reward, score
from tstar_envs.envs.webshop.shop import Shop, Task
from tstar_envs.envs.webshop.text import TEXT_OPTIONS, render
from tstar_envs.outcome import Outcome


class Conditions(NamedTuple):
    """Settings of an environment that the rules need.

    Attributes:
        shop: the shop.
        observation: form of the observations, one of ``text.OBSERVATIONS``.
        exact: True accepts only actions in the original's exact form.
    """

    shop: Shop
    observation: str
    exact: bool

    @property
    def catalogue(self) -> Catalogue:
        """Catalogue of the shop."""
        return self.shop.catalogue

    def page(self, task: Task, state: State, reward: float = 0.0) -> str:
        """Render the page as an observation."""
        return render(self.catalogue, state, task.instruction, self.observation, reward)

    def extra(self, state: State) -> dict[str, Any]:
        """Collect the ``info`` entries of every page."""
        return {"search_available": state.page == "search", "tagger": self.catalogue.tagger}


def apply(task: Task, state: State, action: str, conditions: Conditions) -> Outcome[State]:
    """Apply an action."""
    catalogue = conditions.catalogue
    buttons = clickables(catalogue, state)
    parsed = parse_action(action) if conditions.exact else read_action(action, buttons)
    if parsed.problem:
        return _invalid(task, state, parsed.problem, conditions)
    if parsed.name == "search":
        after = search(state, parsed.argument)
    else:
        kind = buttons.get(parsed.argument)
        if kind is None or parsed.argument == "search":
            problem = f"there is no button {parsed.argument[:80]!r} on this page"
            return _invalid(task, state, problem, conditions)
        after = click(catalogue, state, parsed.argument, kind)
    key = effect(state, after, parsed)
    if after.page == "done":
        return _buy(task, after, parsed.canonical, key, conditions)
    return Outcome(
        after, conditions.page(task, after), parsed.canonical, effect_key=key, extra=conditions.extra(after)
    )


def score_of(catalogue: Catalogue, task: Task, state: State) -> Reward:
    """Score the current product with the chosen options."""
    product = current_product(catalogue, state)
    price = catalogue.price(catalogue.find(state.asin) or 0)
    return score(product, task.goal, dict(state.options), price, product["nouns"], task.nouns)


def _invalid(task: Task, state: State, problem: str, conditions: Conditions) -> Outcome[State]:
    page = conditions.page(task, state)
    observation = f"Invalid action: {problem}.\n{page}" if conditions.observation == TEXT_OPTIONS else page
    return Outcome(state, observation, "", invalid_reason=problem, extra=conditions.extra(state))


def _buy(task: Task, state: State, action: str, key: str, conditions: Conditions) -> Outcome[State]:
    total, parts = score_of(conditions.catalogue, task, state)
    # Titles are compared by their nouns, and taggers differ.
    parts["tagger"] = conditions.catalogue.tagger
    bought = {"asin": state.asin, "options": dict(state.options)}
    return Outcome(
        state,
        conditions.page(task, state, total),
        action,
        effect_key=key,
        terminated=True,
        success=total == 1.0,
        score=total,
        extra={**conditions.extra(state), "reward_parts": parts, "bought": bought},
    )
