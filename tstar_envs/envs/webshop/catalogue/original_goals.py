"""Goals as the original makes them: read from the people's instructions, or made from a product's options."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from tstar_envs.envs.webshop.catalogue.json_stream import is_strings
from tstar_envs.envs.webshop.catalogue.price_limits import draw_bound
from tstar_envs.envs.webshop.catalogue.product import Product
from tstar_envs.envs.webshop.task import Task
from tstar_envs.errors import BadData
from tstar_envs.stable_random import StableRandom

SHUFFLE_SEED = 233
# The original's ranges of positions after the shuffle.
RANGES = {"test": (0, 500), "valid": (500, 1500), "train": (1500, None)}
_FIELDS: Mapping[str, tuple[type[Any], ...]] = {
    "asin": (str,),
    "query": (str,),
    "name": (str,),
    "product_category": (str,),
    "instruction_text": (str,),
    "attributes": (list,),
    "goal_options": (list, dict),
    "price_upper": (int, float),
}


def draw_price(product: Product, seed: int) -> float:
    """A product's price: its own, or uniformly between its bounds; the same for one seed and ASIN."""
    bounds = product["pricing"]
    if len(bounds) == 1:
        return float(bounds[0])
    low, high = bounds[:2]
    return float(low + (high - low) * (_draw("price", seed, product["asin"]).below(1 << 30) / (1 << 30)))


def _draw(what: str, seed: int, *of: str) -> StableRandom:
    """Its own draw for each thing; an ASIN may hold half a character."""
    return StableRandom(
        "/".join(["webshop", what, str(seed), *of]).encode("utf-8", "backslashreplace").decode()
    )


def _goal(
    product: Product, instruction: str, attributes: list[str], options: Any, bound: float
) -> dict[str, Any]:
    return {
        **{key: product[key] for key in ("asin", "category", "query", "name", "product_category")},
        "instruction_text": instruction,
        "attributes": attributes,
        "price_upper": bound,
        "goal_options": options,
    }


def human_goals(
    product: Product, records: Any, price: float, seed: int, where: Callable[[], str]
) -> Iterator[dict[str, Any]]:
    """The goals that people wrote for a product; those without attributes are skipped.

    Raises:
        BadData: a field cannot be used; ``where`` gives file, line and ASIN.
    """
    if not isinstance(records, list):
        raise BadData(f"{where()} must hold a list of instructions, found {records!r:.80}")
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise BadData(f"{where()}[{number}]: an instruction must be an object, found {record!r:.80}")
        if not isinstance(record.get("instruction"), str):
            raise BadData(
                f"{where()}[{number}]: field 'instruction' must be a string, found {record.get('instruction')!r:.80}"
            )
        for name in ("instruction_attributes", "instruction_options"):
            if not is_strings(record.get(name)):
                raise BadData(
                    f"{where()}[{number}]: field {name!r} must be a list of strings, found {record.get(name)!r:.80}"
                )
        if record["instruction_attributes"]:
            bound, words = draw_bound(price, _draw("bound", seed, product["asin"], str(number)))
            text = record["instruction"].strip(".") + words
            yield _goal(product, text, record["instruction_attributes"], record["instruction_options"], bound)


def synthetic_goals(
    product: Product, record: Any, price: float, seed: int, where: Callable[[], str]
) -> Iterator[dict[str, Any]]:
    """One goal for each combination of option values of a product that has a made-up instruction.

    Raises:
        BadData: a field cannot be used; ``where`` gives file, line and ASIN.
    """
    if (
        not isinstance(record, dict)
        or not record.get("instruction")
        or not record.get("instruction_attributes")
    ):
        return
    if not isinstance(record["instruction"], str):
        raise BadData(f"{where()}: field 'instruction' must be a string, found {record['instruction']!r:.80}")
    if not is_strings(record["instruction_attributes"]):
        found = record["instruction_attributes"]
        raise BadData(
            f"{where()}: field 'instruction_attributes' must be a list of strings, found {found!r:.80}"
        )
    bound, words = draw_bound(price, _draw("bound", seed, product["asin"]))
    names = sorted(product["options"])
    for values in itertools.product(*(product["options"][name] for name in names)):
        options = dict(zip(names, values, strict=True))
        text = ", and ".join(f"{name}: {value}" for name, value in options.items())
        instruction = record["instruction"] + (f" with {text}" if text else "") + words
        yield _goal(product, instruction, record["instruction_attributes"], options, bound)


def shuffle_goals(goals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The original's order: ``random.seed(233)``, then a shuffle."""
    shuffled = list(goals)
    Random(SHUFFLE_SEED).shuffle(shuffled)
    return shuffled


def check_goal(goal: Any, where: str) -> dict[str, Any]:
    """A goal of a ``goals.json``, as it stands.

    Raises:
        BadData: a field is missing or of another type; file, position and field are named.
    """
    if not isinstance(goal, dict):
        raise BadData(f"{where}: a goal must be an object, found {goal!r:.80}")
    for name, kinds in _FIELDS.items():
        if isinstance(goal.get(name), bool) or not isinstance(goal.get(name), kinds):
            raise BadData(
                f"{where}: field {name!r} must be {' or '.join(k.__name__ for k in kinds)}, found {goal.get(name)!r:.80}"
            )
    texts = [
        *goal["attributes"],
        *(goal["goal_options"].values() if isinstance(goal["goal_options"], dict) else goal["goal_options"]),
    ]
    if not all(isinstance(text, str) for text in texts):
        raise BadData(f"{where}: fields 'attributes' and 'goal_options' must hold strings only")
    return goal


def make_tasks(goals: list[dict[str, Any]], nouns: Callable[[dict[str, Any]], list[str]]) -> list[Task]:
    """Tasks in the order of the goals, split by the original's ranges; ids are the positions."""
    tasks = []
    for position, goal in enumerate(goals):
        split = next(
            name
            for name, (first, end) in RANGES.items()
            if first <= position and (end is None or position < end)
        )
        query = goal["query"] or goal["name"]
        tasks.append(
            Task(f"webshop-{position}", split, goal, tuple(nouns(goal)), query, goal["instruction_text"])
        )
    return tasks
