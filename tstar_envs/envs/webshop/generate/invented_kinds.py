"""Kinds of things for practice shops, whether there are such or not."""

from __future__ import annotations

from tstar_envs.stable_random import StableRandom

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


def invented_kind(rng: StableRandom) -> str:
    """A kind of thing, whether there is such or not: "lamp", "kettle rug"."""
    return " ".join(rng.shuffled(_THINGS)[: 1 + rng.below(2)])
