"""The compact notation of configurations and goals, shared by the compact observation and the shipped files.

Towers are written from bottom to top and separated by `` / ``: ``red blue / green`` is blue on red, and green. A goal is
written in the same way, as far as it goes: a chain says what must stand on what, and the word ``table`` in front of it
says that its lowest block must be on the table. Chains come in the order in which the goal first mentions one of their blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tstar_envs.envs.blocksworld.facts import ON, ONTABLE, Fact
from tstar_envs.envs.blocksworld.goal import Goal, goal_towers
from tstar_envs.envs.blocksworld.state import TABLE
from tstar_envs.envs.blocksworld.task import Problem

TABLE_WORD = "table"
SEPARATOR = " / "


def write_towers(piles: Iterable[Sequence[int]], names: Sequence[str]) -> str:
    """Towers as text."""
    return SEPARATOR.join([" ".join([names[block] for block in tower]) for tower in piles])


def write_goal(goal: Goal, names: Sequence[str]) -> str:
    """The places that a goal demands, as text."""
    return SEPARATOR.join(
        " ".join(TABLE_WORD if block == TABLE else names[block] for block in chain)
        for chain in goal_towers(goal)
    )


def read_problem(start: str, goal: str) -> Problem:
    """A problem from its two texts; blocks are numbered in the order of the start text. For text written by this module."""
    piles = [tower.split() for tower in start.split(SEPARATOR)]
    names = tuple([name for tower in piles for name in tower])
    number = {name: block for block, name in enumerate(names)}
    facts = []
    for chain in goal.split(SEPARATOR):
        words = chain.split()
        for under, name in pairwise(words):
            facts.append(
                Fact(ONTABLE, number[name]) if under == TABLE_WORD else Fact(ON, number[name], number[under])
            )
    below: list[int] = []
    for tower in piles:
        below += (TABLE, *range(len(below), len(below) + len(tower) - 1))
    return Problem(names, tuple(below), Goal(tuple(facts), len(names)))
