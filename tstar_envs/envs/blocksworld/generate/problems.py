"""The problem generator: random starts and goals of a variant, and of wanted optimal lengths."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import pairwise

from tstar_envs.envs.blocksworld.compact_notation import read_problem, write_goal, write_towers
from tstar_envs.envs.blocksworld.facts import ON, ONTABLE, Fact
from tstar_envs.envs.blocksworld.generate.canonical import CanonicalForm, canonical_form
from tstar_envs.envs.blocksworld.goal import Goal
from tstar_envs.envs.blocksworld.solver.plan import optimal_plan
from tstar_envs.envs.blocksworld.state import state_of, towers
from tstar_envs.envs.blocksworld.task import Problem
from tstar_envs.envs.blocksworld.vocabularies import COLOURS
from tstar_envs.stable_random import StableRandom

# Blocks -> optimal length -> share among the problems of that size; the sizes have equal shares. The mean is 14.2.
LENGTHS: Mapping[int, Mapping[int, float]] = {
    6: {10: 0.45, 12: 0.40, 14: 0.15},
    7: {12: 0.20, 14: 0.45, 16: 0.30, 18: 0.05},
    8: {14: 0.15, 16: 0.42, 18: 0.31, 20: 0.12},
}
HIGHEST_LOW_TOWER = 3


def random_problem(variant: str, blocks: int, rng: StableRandom) -> Problem:
    """A problem of a variant, of any optimal length.

    ``stack``: towers of 1 to 3 blocks; the goal is one tower of all blocks, or two of at least 2. ``unstack``: one tower of all
    blocks, or two of at least 2; the goal puts all blocks, or all but one, into towers of 1 or 2 on the table, at
    least one of them of 2.
    """
    first, second = rng.shuffled(range(blocks)), rng.shuffled(range(blocks))
    if variant == "stack":
        piles = []
        while first:
            height = 1 + rng.below(HIGHEST_LOW_TOWER)
            piles.append(first[:height])
            first = first[height:]
        facts = [
            Fact(ON, block, under) for tower in _one_or_two(second, rng) for under, block in pairwise(tower)
        ]
    else:
        piles = _one_or_two(first, rng)
        second = second[rng.below(2) :]
        pairs = 1 + rng.below(len(second) // 2)
        facts = []
        for pair in range(pairs):
            under, block = second[2 * pair : 2 * pair + 2]
            facts += [Fact(ONTABLE, under), Fact(ON, block, under)]
        facts += [Fact(ONTABLE, block) for block in second[2 * pairs :]]
    # Written and read again: blocks are numbered as in the files.
    names = rng.shuffled(COLOURS)[:blocks]
    goal = Goal(tuple(facts), blocks)
    return read_problem(write_towers(towers(state_of(piles, blocks)), names), write_goal(goal, names))


def _one_or_two(order: list[int], rng: StableRandom) -> list[list[int]]:
    if rng.chance(0.5):
        return [order]
    cut = 2 + rng.below(len(order) - 3)
    return [order[:cut], order[cut:]]


def fresh_problems(
    seed: int | str, variant: str, avoid: Container[CanonicalForm] = frozenset()
) -> Iterator[Problem]:
    """Problems without end, distributed over sizes and optimal lengths as the shipped ones.

    Args:
        seed: the same seed gives the same problems.
        variant: ``stack`` or ``unstack``.
        avoid: canonical forms that must not occur.
    """
    rng = StableRandom(f"blocksworld/{variant}/{seed}")
    while True:
        blocks = rng.choice(tuple(LENGTHS))
        length = _random_length(LENGTHS[blocks], rng)
        while True:
            problem = random_problem(variant, blocks, rng)
            if (
                len(optimal_plan(problem.start, problem.goal)) == length
                and canonical_form(problem) not in avoid
            ):
                break
        yield problem


def _random_length(shares: Mapping[int, float], rng: StableRandom) -> int:
    position = rng.below(100)
    for length, share in shares.items():
        position -= round(100 * share)
        if position < 0:
            return length
    raise ValueError(f"the shares {dict(shares)} must be whole percentages that add up to 1")
