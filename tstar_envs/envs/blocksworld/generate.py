"""Problem generator, files of the mini tier, and practice sets."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tstar_envs.data.generator_command import generator_command
from tstar_envs.data.shipped import write_shipped
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.blocksworld.language import COLOURS, read_problem, write_goal, write_towers
from tstar_envs.envs.blocksworld.problem import (
    ON,
    ONTABLE,
    TABLE,
    Fact,
    Goal,
    Problem,
    State,
    Task,
    state_of,
    towers,
)
from tstar_envs.envs.blocksworld.solver import optimal_plan
from tstar_envs.envs.blocksworld.tasks import VARIANTS, load_shipped, shipped_file, task_set, write_task
from tstar_envs.errors import UnknownOption
from tstar_envs.utils import SPLITS, StableRandom, check_option

CanonicalForm = tuple[Any, ...]


def canonical_form(problem: Problem) -> CanonicalForm:
    """Compute a canonical form that is equal for problems that are equal up to renaming of blocks.

    Every block has at most one block below and one above it, in start and goal. So from any first block, all connected blocks
    are visited in an order that does not depend on names. A connected part is described by the minimum of its descriptions
    over all first blocks, and the problem by its sorted parts.
    """
    start, goal = problem.start, problem.goal
    relations = [start, _inverse(start), goal.below, _inverse(goal.below)]
    left = set(range(len(start)))
    parts = []
    while left:
        first = min(left)
        part = _visit(first, relations)
        left.difference_update(part)
        parts.append(min(_describe(_visit(block, relations), start, goal) for block in part))
    return goal.hand_empty, *sorted(parts)


def _inverse(below: tuple[int, ...]) -> tuple[int, ...]:
    above = [TABLE] * len(below)
    for block, under in enumerate(below):
        if under >= 0:
            above[under] = block
    return tuple(above)


def _visit(first: int, relations: list[tuple[int, ...]]) -> list[int]:
    """Visit all blocks connected with ``first``, breadth-first."""
    order, seen = [first], {first}
    for block in order:
        for relation in relations:
            other = relation[block]
            if other >= 0 and other not in seen:
                seen.add(other)
                order.append(other)
    return order


def _describe(order: list[int], start: State, goal: Goal) -> tuple[tuple[int, ...], ...]:
    number = {block: position for position, block in enumerate(order)}
    # Table, hand and anywhere keep their negative codes.
    return tuple(
        (
            number.get(start[b], start[b]),
            number.get(goal.below[b], goal.below[b]),
            b in goal.clear,
            b == goal.held,
        )
        for b in order
    )


# blocks -> optimal length -> share among problems of that size; sizes have equal shares. The mean length is 14.2.
LENGTHS: Mapping[int, Mapping[int, float]] = {
    6: {10: 0.45, 12: 0.40, 14: 0.15},
    7: {12: 0.20, 14: 0.45, 16: 0.30, 18: 0.05},
    8: {14: 0.15, 16: 0.42, 18: 0.31, 20: 0.12},
}
HIGHEST_LOW_TOWER = 3


def random_problem(variant: str, blocks: int, rng: StableRandom) -> Problem:
    """Draw a problem of a variant, of any optimal length.

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
    # A round trip through text numbers the blocks as in the files.
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
    """Generate problems endlessly, with the shipped distribution of sizes and optimal lengths.

    Args:
        seed: the same seed gives the same problems.
        variant: ``stack`` or ``unstack``.
        avoid: canonical forms to avoid.
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


SEED = 20260101
SIZES = {"train": 2000, "valid": 200, "test": 400}  # per variant


def quotas(size: int) -> dict[tuple[int, int], int]:
    """Compute the number of problems per (blocks, optimal length) of a split, by largest remainders."""
    exact = {
        (blocks, length): size * share / len(LENGTHS)
        for blocks, shares in LENGTHS.items()
        for length, share in shares.items()
    }
    counts = {cell: int(wanted + 1e-9) for cell, wanted in exact.items()}
    by_remainder = sorted(exact, key=lambda cell: (round(counts[cell] - exact[cell], 9), cell))
    for cell in by_remainder[: size - sum(counts.values())]:
        counts[cell] += 1
    return counts


def build_all(seed: int = SEED) -> dict[str, bytes]:
    """Build the shipped files as name (without ``.gz``) -> bytes."""
    seen: set[CanonicalForm] = set()
    files = {}
    for variant in VARIANTS:
        rng = StableRandom(f"{seed}/{variant}")
        lines: dict[str, list[str]] = {split: [] for split in SPLITS}
        needs = {split: quotas(size) for split, size in SIZES.items()}
        for blocks in LENGTHS:
            # Each accepted problem goes to a random split that needs its length, weighted by need.
            while any(needs[split][blocks, length] for split in SPLITS for length in LENGTHS[blocks]):
                problem = random_problem(variant, blocks, rng)
                length = len(optimal_plan(problem.start, problem.goal))
                if not any(needs[split].get((blocks, length)) for split in SPLITS):
                    continue
                form = canonical_form(problem)
                if form in seen:
                    continue
                seen.add(form)
                open_places = [split for split in SPLITS for _ in range(needs[split][blocks, length])]
                split = rng.choice(open_places)
                needs[split][blocks, length] -= 1
                start = write_towers(towers(problem.start), problem.names)
                lines[split].append(write_task(length, start, write_goal(problem.goal, problem.names)))
        for split in SPLITS:
            files[shipped_file(variant, split)] = "".join(rng.shuffled(lines[split])).encode()
    return files


def write(folder: Path, files: Mapping[str, bytes], seed: int) -> None:
    """Write the files and their manifest."""
    what = "Blocksworld problems, generated by this project (Apache-2.0); lines of optimal length, start and goal"
    write_shipped(
        folder, files, what, f"python -m tstar_envs.envs.blocksworld.generate --seed {seed} --out FOLDER"
    )


def main() -> None:
    """Run the command line of the generator."""
    out, seed = generator_command(__doc__, SEED)
    files = build_all(seed)
    write(out, files, seed)
    counts = ", ".join(f"{len(data.splitlines())} problems in {name}" for name, data in files.items())
    print(f"{counts} in {out}")


if __name__ == "__main__":
    main()


TASKS = 160


@lru_cache(maxsize=1)
def held_out_forms() -> frozenset[CanonicalForm]:
    """Collect the canonical forms of the shipped valid and test problems of both variants."""
    shipped = [task for variant in VARIANTS for task in load_shipped(variant).tasks.values()]
    return frozenset(canonical_form(task.problem) for task in shipped if task.split != "train")


def practice_set(
    seed: int | str, variants: str | Sequence[str] = VARIANTS, size: int = TASKS
) -> LoadedTasks[Task]:
    """Generate new train tasks, reproducible from the seed.

    Args:
        seed: seed of the tasks.
        variants: ``stack``, ``unstack``, or several of them, in turn.
        size: number of tasks.

    Raises:
        UnknownOption: a variant is missing or unknown.
    """
    variants = (variants,) if isinstance(variants, str) else tuple(variants)
    if not variants:
        raise UnknownOption(f"no variant to practise; choose of: {', '.join(VARIANTS)}")
    for variant in variants:
        check_option("variants", variant, VARIANTS)
    streams = [fresh_problems(f"practice/{seed}", variant, held_out_forms()) for variant in variants]
    problems = [next(streams[number % len(streams)]) for number in range(size)]
    tasks = [Task(f"practice-{seed}-{number:04d}", "train", p) for number, p in enumerate(problems)]
    return task_set("practice", tasks)
