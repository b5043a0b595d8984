"""Generates Blocksworld problems; as a command it makes the shipped files, the same bytes for the same seed everywhere.

``python -m tstar_envs.envs.blocksworld.generate --out FOLDER`` writes ``<variant>.<split>.txt.gz`` and ``MANIFEST.json``. Both
variants get the same numbers of problems of each size and optimal length (``LENGTHS``), so that a difference between them
is not one of length; no two problems of all files are equal up to the names of their blocks.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from collections.abc import Container, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from tstar_envs.choices import SPLITS
from tstar_envs.envs.blocksworld.notation import read_problem, write_goal, write_towers
from tstar_envs.envs.blocksworld.planner import optimal_plan
from tstar_envs.envs.blocksworld.problem import CanonicalForm, Problem, canonical_form
from tstar_envs.envs.blocksworld.rules import ON, ONTABLE, Fact, Goal, state_of, towers
from tstar_envs.envs.blocksworld.tasks import VARIANTS, shipped_file, task_line
from tstar_envs.envs.blocksworld.vocabulary import COLOURS
from tstar_envs.stable_random import StableRandom

SEED = 20260101
SIZES = {"train": 2000, "valid": 200, "test": 400}  # per variant
# Blocks -> optimal length -> share among the problems of that size; the sizes have equal shares. The mean is 14.2.
LENGTHS: Mapping[int, Mapping[int, float]] = {
    6: {10: 0.45, 12: 0.40, 14: 0.15},
    7: {12: 0.20, 14: 0.45, 16: 0.30, 18: 0.05},
    8: {14: 0.15, 16: 0.42, 18: 0.31, 20: 0.12},
}
HIGHEST_LOW_TOWER = 3


def draw_problem(variant: str, blocks: int, draw: StableRandom) -> Problem:
    """A problem of a variant, of any optimal length.

    ``stack``: towers of 1 to 3 blocks; the goal is one tower of all blocks, or two of at least 2. ``unstack``: one tower of all
    blocks, or two of at least 2; the goal puts all blocks, or all but one, into towers of 1 or 2 on the table, at
    least one of them of 2.
    """
    first, second = draw.shuffled(range(blocks)), draw.shuffled(range(blocks))
    if variant == "stack":
        piles = []
        while first:
            height = 1 + draw.below(HIGHEST_LOW_TOWER)
            piles.append(first[:height])
            first = first[height:]
        facts = [
            Fact(ON, block, under) for tower in _one_or_two(second, draw) for under, block in pairwise(tower)
        ]
    else:
        piles = _one_or_two(first, draw)
        second = second[draw.below(2) :]
        pairs = 1 + draw.below(len(second) // 2)
        facts = []
        for pair in range(pairs):
            under, block = second[2 * pair : 2 * pair + 2]
            facts += [Fact(ONTABLE, under), Fact(ON, block, under)]
        facts += [Fact(ONTABLE, block) for block in second[2 * pairs :]]
    # Written and read again: blocks are numbered as in the files.
    names = draw.shuffled(COLOURS)[:blocks]
    goal = Goal(tuple(facts), blocks)
    return read_problem(write_towers(towers(state_of(piles, blocks)), names), write_goal(goal, names))


def _one_or_two(order: list[int], draw: StableRandom) -> list[list[int]]:
    if draw.chance(0.5):
        return [order]
    cut = 2 + draw.below(len(order) - 3)
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
    draw = StableRandom(f"blocksworld/{variant}/{seed}")
    while True:
        blocks = draw.choice(tuple(LENGTHS))
        length = _draw_length(LENGTHS[blocks], draw)
        while True:
            problem = draw_problem(variant, blocks, draw)
            if (
                len(optimal_plan(problem.start, problem.goal)) == length
                and canonical_form(problem) not in avoid
            ):
                break
        yield problem


def _draw_length(shares: Mapping[int, float], draw: StableRandom) -> int:
    position = draw.below(100)
    for length, share in shares.items():
        position -= round(100 * share)
        if position < 0:
            return length
    raise ValueError(f"the shares {dict(shares)} must be whole percentages that add up to 1")


def quotas(size: int) -> dict[tuple[int, int], int]:
    """How many problems of each (blocks, optimal length) a split of ``size`` problems has: largest remainders."""
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


def build(seed: int = SEED) -> dict[str, bytes]:
    """The shipped files: name (without ``.gz``) -> bytes."""
    seen: set[CanonicalForm] = set()
    files = {}
    for variant in VARIANTS:
        draw = StableRandom(f"{seed}/{variant}")
        lines: dict[str, list[str]] = {split: [] for split in SPLITS}
        needs = {split: quotas(size) for split, size in SIZES.items()}
        for blocks in LENGTHS:
            # Every accepted problem goes to a split that still needs one of its length, drawn by how many each needs.
            while any(needs[split][blocks, length] for split in SPLITS for length in LENGTHS[blocks]):
                problem = draw_problem(variant, blocks, draw)
                length = len(optimal_plan(problem.start, problem.goal))
                if not any(needs[split].get((blocks, length)) for split in SPLITS):
                    continue
                form = canonical_form(problem)
                if form in seen:
                    continue
                seen.add(form)
                open_places = [split for split in SPLITS for _ in range(needs[split][blocks, length])]
                split = draw.choice(open_places)
                needs[split][blocks, length] -= 1
                start, goal = (
                    write_towers(towers(problem.start), problem.names),
                    write_goal(problem.goal, problem.names),
                )
                lines[split].append(task_line(length, start, goal))
        for split in SPLITS:
            files[shipped_file(variant, split)] = "".join(draw.shuffled(lines[split])).encode()
    return files


def write(folder: Path, files: Mapping[str, bytes], seed: int) -> None:
    """Write the files gzipped (without time stamps) and the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "what": "Blocksworld problems, generated by this project (Apache-2.0); lines of optimal length, start and goal",
        "made_by": f"python -m tstar_envs.envs.blocksworld.generate --seed {seed} --out FOLDER",
        "sha256_uncompressed": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    for name, data in files.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    files = build(arguments.seed)
    write(arguments.out, files, arguments.seed)
    print(
        ", ".join(f"{len(data.splitlines())} problems in {name}" for name, data in files.items())
        + f" in {arguments.out}"
    )


if __name__ == "__main__":
    main()
