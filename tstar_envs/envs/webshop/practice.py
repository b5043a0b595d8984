"""Endless practice: small fresh shops of the train families, for warm starts and curricula.

Families of valid and test never occur, and every brand, title and price is drawn anew, so that nothing shipped is seen. Most
families get an invented name: who only ever sells three dozen kinds of things learns their list, and takes a new one for one of it.
"""

from __future__ import annotations

from tstar_envs.envs.webshop.families import FAMILIES, SPLIT_OF
from tstar_envs.envs.webshop.generate import choose_goals, collect, make_drafts, task_of
from tstar_envs.envs.webshop.goals import ShopTask
from tstar_envs.envs.webshop.nouns import LEXICON
from tstar_envs.envs.webshop.shop import Shop, make_shop
from tstar_envs.stable_random import StableRandom

SHELVES, GOALS, TRIES = 3, 12, 300
INVENTED = 0.75  # share of families with an invented name
_STARTS, _MIDDLES = "b bl c ch d dr f g gr h k l m n p pl r s sh st t tr v w".split(), "a ai e ea i o oo u".split()
_ENDS = "ck d ft g ll m mp n nd ng p r rd sh st t x".split()


def practice_shop(seed: int | str) -> Shop:
    """Three families of twenty products and about twelve goals each, the same for the same seed.

    The goals are proved as those of the mini tier are (``generate.prove``).
    """
    draw = StableRandom(f"webshop/practice/{seed}")
    chosen = draw.shuffled([family for family in FAMILIES if SPLIT_OF[family] == "train"])[:SHELVES]
    chosen = [family._replace(query=_invented(draw)) if draw.chance(INVENTED) else family for family in chosen]
    by_family = {family: make_drafts(family, draw) for family in chosen}
    drafts = [draft for own in by_family.values() for draft in own]
    products, catalogue = [draft.product for draft in drafts], collect(drafts)
    tasks: list[ShopTask] = []
    for family, own in by_family.items():
        for goal in choose_goals(family, own, products, catalogue, draw, GOALS, TRIES):
            tasks.append(task_of(goal, f"webshop-practice-{seed}-{len(tasks):02d}", "train", LEXICON.nouns(goal["name"])))
    return make_shop("practice", catalogue, draw.shuffled(tasks), practice_shop, seed)


def _invented(draw: StableRandom) -> str:
    """A kind of thing that does not exist, in one or two words: "gromp shaindeft"."""
    words = []
    for _ in range(1 + draw.below(2)):
        syllables = (draw.choice(_STARTS) + draw.choice(_MIDDLES) + draw.choice(_ENDS) for _ in range(1 + draw.below(2)))
        words.append("".join(syllables))
    return " ".join(words)
