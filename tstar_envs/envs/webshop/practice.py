"""Endless practice: small fresh shops of the train families, for warm starts and curricula.

Families of valid and test never occur, and every brand, title and price is drawn anew, so that nothing shipped is seen.
"""

from __future__ import annotations

from tstar_envs.envs.webshop.families import FAMILIES, SPLIT_OF
from tstar_envs.envs.webshop.generate import choose_goals, collect, make_drafts, task_of
from tstar_envs.envs.webshop.goals import ShopTask
from tstar_envs.envs.webshop.nouns import LEXICON
from tstar_envs.envs.webshop.shop import Shop, make_shop
from tstar_envs.stable_random import StableRandom

SHELVES, GOALS, TRIES = 3, 12, 300


def practice_shop(seed: int | str) -> Shop:
    """Three families of twenty products and about twelve goals each, the same for the same seed.

    The goals are proved as those of the mini tier are (``generate.prove``).
    """
    draw = StableRandom(f"webshop/practice/{seed}")
    chosen = draw.shuffled([family for family in FAMILIES if SPLIT_OF[family] == "train"])[:SHELVES]
    by_family = {family: make_drafts(family, draw) for family in chosen}
    drafts = [draft for own in by_family.values() for draft in own]
    products, catalogue = [draft.product for draft in drafts], collect(drafts)
    tasks: list[ShopTask] = []
    for family, own in by_family.items():
        for goal in choose_goals(family, own, products, catalogue, draw, GOALS, TRIES):
            tasks.append(task_of(goal, f"webshop-practice-{seed}-{len(tasks):02d}", "train", LEXICON.nouns(goal["name"])))
    return make_shop("practice", catalogue, draw.shuffled(tasks), practice_shop, seed)
