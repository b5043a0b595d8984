"""Endless practice: small fresh shops of the train families, for warm starts and curricula.

Families of valid and test never occur, and every brand, title and price is drawn anew, so that nothing shipped is seen. Most
families get another name: who only ever sells three dozen kinds of things learns their list, and takes a new one for one of it.
"""

from __future__ import annotations

from tstar_envs.envs.webshop.generate import (
    FAMILIES,
    SPLIT_OF,
    choose_goals,
    collect,
    invented_kind,
    make_drafts,
    task_of,
)
from tstar_envs.envs.webshop.shop import Shop, Task, make_shop
from tstar_envs.envs.webshop.stores import LEXICON
from tstar_envs.utils import StableRandom

FAMILIES_OF_A_SHOP, GOALS, TRIES = 3, 3, 300
RENAMED = 0.75  # share of families with another name


def practice_shop(seed: int | str) -> Shop:
    """Three families of twenty products and about three goals each, the same for the same seed.

    The goals are proved as those of the mini tier are (``generate.proof``).
    """
    rng = StableRandom(f"webshop/practice/{seed}")
    chosen = rng.shuffled([family for family in FAMILIES if SPLIT_OF[family] == "train"])[:FAMILIES_OF_A_SHOP]
    chosen = [
        family._replace(query=invented_kind(rng)) if rng.chance(RENAMED) else family for family in chosen
    ]
    by_family = {family: make_drafts(family, rng) for family in chosen}
    drafts = [draft for own in by_family.values() for draft in own]
    products, catalogue = [draft.product for draft in drafts], collect(drafts)
    tasks: list[Task] = []
    for family, own in by_family.items():
        for goal in choose_goals(family, own, products, catalogue, rng, GOALS, TRIES):
            tasks.append(
                task_of(
                    goal, f"webshop-practice-{seed}-{len(tasks):02d}", "train", LEXICON.nouns(goal["name"])
                )
            )
    return make_shop("practice", catalogue, rng.shuffled(tasks), practice_shop, seed)
