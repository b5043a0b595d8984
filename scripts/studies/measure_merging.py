"""Measure how trees merge as groups grow, and the paper's tree statistics (docs/results/grafting.md).

    python scripts/studies/measure_merging.py --env hotpotqa sokoban-easy --tasks 4
    python scripts/studies/measure_merging.py --env alfworld webshop hotpotqa sokoban-easy sokoban-hard --sizes 8 --tasks 8

The built-in policy plays each task as often as the largest group has episodes. Smaller groups are parts of it: its first M episodes, the
next M, and so on, so that every size is measured on the same episodes. Each part gets the paper's tree (nodes by depth, merged by KL) and
the tree by state, with the preset's options; figures are means over all parts of all tasks, also of those whose rewards are all equal.
Seconds are CPU seconds of one thread for one tree, from an empty cache of contexts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tyro

from tstar_envs import UnknownOption, find_entry
from tstar_train.tree import Tree
from tstar_train.types import Trajectory

try:
    from scripts.studies.played_groups import Played, play
except ModuleNotFoundError:  # run as a script of this folder
    from played_groups import Played, play

NODES = ("depth", "state")  # the paper's tree, and that of states
# The paper's statistics at M = 8: depth, nodes, merge ratio, divergences.
PAPER = {
    "alfworld": (12.4, 47.2, 0.52, 5.8),
    "webshop": (8.6, 38.5, 0.44, 4.2),
    "hotpotqa": (6.4, 28.3, 0.45, 3.6),
    "sokoban-easy": (12.8, 52.1, 0.58, 6.4),
    "sokoban-hard": (24.6, 89.4, 0.41, 8.2),
}


@dataclass(frozen=True)
class Options:
    """Measure merging."""

    env: tuple[str, ...] = ("hotpotqa",)
    """Environment ids or short names, with a built-in policy."""
    tasks: int = 4
    """Training tasks of each environment."""
    sizes: tuple[int, ...] = (8, 16, 32, 64)
    """Episodes of a group; each size divides the next."""
    most: int = 8
    """At most so many groups of a size and task are measured, the first ones."""
    model: str = "tiny"
    """tiny (the built-in policy), or a checkpoint of it."""


@dataclass(frozen=True)
class Measured:
    """One tree.

    Attributes:
        size: episodes of its group.
        nodes: depth or state.
        before: steps of all episodes.
        after: nodes without the root.
        depth: of the deepest node.
        length: mean steps of an episode.
        divergences: divergent nodes.
        mixed: True if the group's rewards differ.
        seconds: of building.
    """

    size: int
    nodes: str
    before: int
    after: int
    depth: int
    length: float
    divergences: int
    mixed: bool
    seconds: float


def parts(group: Sequence[Trajectory], size: int, most: int) -> list[list[Trajectory]]:
    """The first episodes of a group, the next ones, and so on; what is left over is not used."""
    return [list(group[n : n + size]) for n in range(0, len(group) - size + 1, size)][:most]


def measure(study: Played, group: Sequence[Trajectory], nodes: str) -> Measured:
    """Build one tree and read it."""
    study.engine.clear_cache()
    began = time.process_time()
    tree: Tree | None = study.trees([group], nodes)[0]
    seconds = time.process_time() - began
    if tree is None:
        raise UnknownOption("groups with equal rewards have no tree here: play with everywhere=True")
    config = study.config
    found = tree.stats(config.tree.delta, config.graft.shrink)
    return Measured(
        len(group),
        nodes,
        int(found["nodes_before"]),
        int(found["nodes_after"]),
        int(found["depth"]),
        found["nodes_before"] / len(group),
        int(found["divergent_nodes"]),
        not found["zero_variance"],
        seconds,
    )


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuse sizes of which the smaller ones are no parts of the larger.

    Raises:
        UnknownOption: a size does not divide the next.
    """
    if not sizes or min(sizes) < 2 or any(b % a or b <= a for a, b in itertools.pairwise(sizes)):
        raise UnknownOption(
            f"--sizes {' '.join(map(str, sizes))}: give sizes from 2, each a divisor of the next, such as 8 16 32"
        )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


MERGING = (
    "| environment | M | groups | rewards differ | nodes before | after | merge ratio | divergences | seconds |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
STATISTICS = (
    "| environment | groups | mean length | depth | nodes | merge ratio | divergences | paper: depth, nodes, merge ratio, divergences |\n"
    "|---|---|---|---|---|---|---|---|"
)
Trees = Mapping[str, Sequence[Measured]]  # by kind of nodes, of the same groups


def both(trees: Trees, figure: Callable[[Measured], float], digits: int) -> str:
    """A cell: the means of a figure over the paper's trees and over those by state."""
    return " / ".join(f"{mean([figure(tree) for tree in trees[nodes]]):.{digits}f}" for nodes in NODES)


def merge_ratio(tree: Measured) -> float:
    return 1 - tree.after / tree.before


def merging_row(env: str, size: int, trees: Trees) -> str:
    """A row of the first table: means over the groups of a size."""
    first = trees["depth"]
    cells = (
        f"{mean([t.mixed for t in first]):.2f}",
        f"{mean([t.before for t in first]):.0f}",
        both(trees, lambda t: t.after, 0),
        both(trees, merge_ratio, 2),
        both(trees, lambda t: t.divergences, 1),
        both(trees, lambda t: t.seconds, 3),
    )
    return f"| {env} | {size} | {len(first)} | {' | '.join(cells)} |"


def statistics_row(env: str, trees: Trees) -> str:
    """A row of the paper's table of statistics."""
    first = trees["depth"]
    paper = ", ".join(f"{figure:g}" for figure in PAPER.get(find_entry(env).name, ()))
    cells = (
        f"{mean([t.length for t in first]):.1f}",
        f"{mean([t.depth for t in first]):.1f}",
        both(trees, lambda t: t.after, 1),
        both(trees, merge_ratio, 2),
        both(trees, lambda t: t.divergences, 1),
    )
    return f"| {env} | {len(first)} | {' | '.join(cells)} | {paper} |"


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    check_sizes(options.sizes)
    merging, statistics = [], []
    for env in options.env:
        study = play(env, options.tasks, model=options.model, size=options.sizes[-1], everywhere=True)
        for size in options.sizes:
            cut = [part for g in study.groups for part in parts(g.trajectories, size, options.most)]
            trees = {nodes: [measure(study, part, nodes) for part in cut] for nodes in NODES}
            if cut and len(options.sizes) > 1:
                merging.append(merging_row(env, size, trees))
            if cut and size == options.sizes[0]:
                statistics.append(statistics_row(env, trees))
    print("Two figures: the paper's tree (nodes by depth, merged by KL) / the tree by state.\n")
    if merging:
        print(MERGING, *merging, "", sep="\n")
    print(STATISTICS, *statistics, sep="\n", flush=True)


if __name__ == "__main__":
    main()
