"""The two mini worlds: how large they are, their seeds, and their passages.

Both are made for the shipped files and, smaller and with names of their own, for practice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tstar_envs.envs.search_qa.generate.worlds import passages
from tstar_envs.envs.search_qa.generate.worlds.graph import World
from tstar_envs.envs.search_qa.generate.worlds.plain import build_plain_world
from tstar_envs.envs.search_qa.generate.worlds.population import RegionSize
from tstar_envs.envs.search_qa.generate.worlds.rich import build_rich_world
from tstar_envs.envs.search_qa.question_sets import PLAIN_WORLD, RICH_WORLD
from tstar_envs.stable_random import StableRandom


@dataclass(frozen=True)
class MiniWorld:
    """A world with its corpus: (id, Search-R1 contents) per entity, in order of creation."""

    world: World
    corpus: list[tuple[str, str]]


@dataclass(frozen=True)
class WorldMaker:
    """How a world is made.

    Attributes:
        build: (seed, regions, names that must not occur) -> the world without passages.
        seed: of the shipped world.
        regions: region -> how many entities of each type, in the shipped world.
        practice: the size of a practice world.
    """

    build: Callable[[int | str, Mapping[str, RegionSize], Collection[str]], World]
    seed: int
    regions: Mapping[str, RegionSize]
    practice: RegionSize

    def make(
        self,
        seed: int | str | None = None,
        regions: Mapping[str, RegionSize] | None = None,
        taken: Collection[str] = (),
    ) -> MiniWorld:
        """A world with one passage for each entity.

        Args:
            seed: the shipped world's by default.
            regions: the shipped world's by default.
            taken: names that must not occur.

        Raises:
            ValueError: names run out.
        """
        seed = self.seed if seed is None else seed
        world = self.build(seed, self.regions if regions is None else regions, taken)
        rng = StableRandom(f"{seed}/passages")
        corpus = [(e.id, f'"{e.title}"\n{passages.render(world, e, rng)}') for e in world.entities.values()]
        return MiniWorld(world, corpus)


# The distractors are never asked about: namesakes and like-named people and towns that a sloppy query finds instead.
PLAIN = WorldMaker(
    build_plain_world,
    20260101,
    {
        "train": RegionSize(people=460, works=330, companies=66, schools=60, cities=130, countries=40),
        "valid": RegionSize(people=130, works=95, companies=22, schools=20, cities=40, countries=14),
        "test": RegionSize(people=250, works=180, companies=40, schools=36, cities=75, countries=24),
        "distractors": RegionSize(people=300, works=120, companies=30, schools=30, cities=60, countries=12),
    },
    RegionSize(people=90, works=70, companies=16, schools=16, cities=30, countries=12),
)
RICH = WorldMaker(
    build_rich_world,
    20260202,
    {
        "train": RegionSize(
            people=720, works=440, companies=80, schools=60, cities=150, countries=36, awards=36
        ),
        "valid": RegionSize(
            people=240, works=140, companies=28, schools=22, cities=50, countries=14, awards=14
        ),
        "test": RegionSize(
            people=440, works=280, companies=50, schools=40, cities=90, countries=24, awards=24
        ),
        "distractors": RegionSize(
            people=280, works=120, companies=28, schools=22, cities=50, countries=10, awards=12
        ),
    },
    RegionSize(people=240, works=130, companies=24, schools=18, cities=40, countries=12, awards=12),
)
WORLDS = {PLAIN_WORLD: PLAIN, RICH_WORLD: RICH}
