"""Endless practice: small fresh shops of the train families, for warm starts and curricula.

Families of valid and test never occur, and every brand, title and price is drawn anew, so that nothing shipped is seen. Most
families get another name: who only ever sells three dozen kinds of things learns their list, and takes a new one for one of it.
"""

from __future__ import annotations

from tstar_envs.envs.webshop.catalogue.nouns import LEXICON
from tstar_envs.envs.webshop.generate.families import FAMILIES, SPLIT_OF
from tstar_envs.envs.webshop.generate.goals import choose_goals, task_of
from tstar_envs.envs.webshop.generate.products import collect, make_drafts
from tstar_envs.envs.webshop.shop import Shop, make_shop
from tstar_envs.envs.webshop.task import ShopTask
from tstar_envs.stable_random import StableRandom

SHELVES, GOALS, TRIES = 3, 3, 300
RENAMED = 0.75  # share of families with another name
# Plain English, as any larger policy has met it before: a name is one or two of these words, whatever they are together. The held-out
# families' words are among them ("cushion"), their products and goals are not.
_THINGS = (
    "anchor apron armchair axe backpack bag ball band banner bar basin basket bat bead bean bed bell belt bench bib bicycle bin "
    "blade blanket blender blind block board boat bolt book boot bottle bow bowl box bracelet bracket branch bread brick bridge "
    "broom brush bucket buckle bulb button cabinet cable cage cake camera candle cap cape cardigan carpet cart case chain chair "
    "chalk charger chart chest clamp clasp clock cloth coat coaster coin collar comb compass cooker cord cork corner couch "
    "cover cradle crate cream crib crown cube cup curl curtain cushion dart desk dial dish doll door drawer dress drill drum "
    "earring easel fan faucet feather fence fiddle file filter flag flask floor flower flute fork frame fridge fur gate gem "
    "glass globe glove gown grater grill guitar gum hair hairbrush hammer hammock handle hanger harp hat headset heater helmet "
    "hinge holder hood hook horn hose jacket jar jeans jewel jug kettle key keyboard kite knife knob lace ladder lamp lantern "
    "latch leash lens lid lip lock loom lotion magnet map mask mat mattress mirror mitten mixer mop mouse mug nail napkin "
    "needle net nib night notebook nut oar oil organizer oven pad paddle pail paint pan panel pants paper pedal pen pencil "
    "pillow pin pipe plank planter plate plug pole polish pot pouch powder projector pump purse puzzle quilt rack radio rail "
    "rake ramp razor ribbon ring robe rod roller rope rug ruler sack saddle sandal saw scale scarf scissor scoop screen screw "
    "serum shade shampoo shawl shed sheet shelf shell shield shirt shoe shower shovel sieve sink skirt sled sleeve slipper soap "
    "sock sofa spade speaker sponge spoon spring stamp stapler steamer stick stool stove strap string suit suitcase swing "
    "switch table tablet tank tap tape teapot tent thread throw tie tile timer toaster tongs tool towel toy tray trousers trunk "
    "tub tube umbrella urn vase vest violin wagon wallet watch wheel whistle wig window wire wrench yarn zipper balm beets body "
    "bookcase boots chews chili cocoa crackers drink duvet face footstool fruit granola headphone herbal insert knit laptop "
    "loafers mix monitor oat pasta paste pickled rain rice riser sauce shorts slippers swim tea tote trail tripod"
).split()


def practice_shop(seed: int | str) -> Shop:
    """Three families of twenty products and about three goals each, the same for the same seed.

    The goals are proved as those of the mini tier are (``generate.prove``).
    """
    draw = StableRandom(f"webshop/practice/{seed}")
    chosen = draw.shuffled([family for family in FAMILIES if SPLIT_OF[family] == "train"])[:SHELVES]
    chosen = [family._replace(query=_name(draw)) if draw.chance(RENAMED) else family for family in chosen]
    by_family = {family: make_drafts(family, draw) for family in chosen}
    drafts = [draft for own in by_family.values() for draft in own]
    products, catalogue = [draft.product for draft in drafts], collect(drafts)
    tasks: list[ShopTask] = []
    for family, own in by_family.items():
        for goal in choose_goals(family, own, products, catalogue, draw, GOALS, TRIES):
            tasks.append(
                task_of(
                    goal, f"webshop-practice-{seed}-{len(tasks):02d}", "train", LEXICON.nouns(goal["name"])
                )
            )
    return make_shop("practice", catalogue, draw.shuffled(tasks), practice_shop, seed)


def _name(draw: StableRandom) -> str:
    """A kind of thing, whether there is such or not: "lamp", "kettle rug"."""
    return " ".join(draw.shuffled(_THINGS)[: 1 + draw.below(2)])
