"""Measure how often the better child of a divergent node really is the better one, by playing on from both.

    python scripts/studies/measure_divergences.py --env blocksworld-stack --tasks 36 --plays 16

Groups are played by the built-in policy and trees built, as in an iteration of training. From the step into the best and from that into
the worst child of each divergence the policy then plays on anew, several times: the order is right where the best child's new episodes
earn more on average, wrong where they earn less. An episode that ended with the step has earned what it earned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tyro

from tstar_train.grafting import graft, verify
from tstar_train.rollout.collect import sampling_of
from tstar_train.tree import Divergence
from tstar_train.tree.node import Member
from tstar_train.types import Group

try:
    from scripts.studies.played_groups import Played, play
except ModuleNotFoundError:  # run as a script of this folder
    from played_groups import Played, play


@dataclass(frozen=True)
class Options:
    """Measure divergences."""

    env: str = "blocksworld-stack"
    """Environment with a built-in policy."""
    tasks: int = 36
    """Number of training tasks, with 8 episodes each."""
    plays: int = 16
    """Number of new episodes from each child."""
    shrink: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0)
    """Values of --graft.shrink to compare."""
    nodes: str = "depth"
    """How steps are merged into nodes: depth or state (--tree.nodes)."""


Found = tuple[Group, Divergence]


class Plays:
    """What new episodes from a step earn on average; a step that is asked for again is not played again."""

    def __init__(self, study: Played, plays: int) -> None:
        self._study, self._plays = study, plays
        self._known: dict[tuple[str, Member], float] = {}

    def pairs(self, found: list[Found]) -> list[tuple[float, float]]:
        """The rewards from the best and from the worst child, for each divergence."""
        steps = [
            (g, step)
            for g, d in found
            for step in (d.best_step, d.worst_step)
            if (g.trajectories[0].group, step) not in self._known
        ]
        new = {(g.trajectories[0].group, (i, t)): (g.trajectories[i], t + 1) for g, (i, t) in steps}
        ended = {key: old.episode.reward for key, (old, turn) in new.items() if turn == len(old.turns)}
        points = {key: point for key, point in new.items() if key not in ended}
        ends = self._study.play_on(
            [point for point in points.values() for _ in range(self._plays)], "measure"
        )
        rewards = (
            np.array([end.episode.reward for end in ends]).reshape(len(points), self._plays).mean(axis=1)
        )
        self._known |= ended | dict(zip(points, rewards.tolist(), strict=True))
        return [
            (
                self._known[g.trajectories[0].group, d.best_step],
                self._known[g.trajectories[0].group, d.worst_step],
            )
            for g, d in found
        ]


def row(name: str, found: list[Found], pairs: list[tuple[float, float]]) -> str:
    """One row of the table."""
    if not pairs:
        return f"| {name} | 0 |  |  |  |  |"
    gaps = np.array([best - worst for best, worst in pairs])
    single = np.mean([d.best_count == d.worst_count == 1 for _, d in found])
    error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return (
        f"| {name} | {len(pairs)} | {single:.2f} | {np.mean(gaps > 0):.2f} | {np.mean(gaps < 0):.2f} | "
        f"{gaps.mean():+.3f} +- {error:.3f} |"
    )


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    study = play(options.env, options.tasks)
    config, groups = study.config, study.groups
    for group, tree in zip(groups, study.trees([g.members for g in groups], options.nodes), strict=True):
        group.tree = tree
    plays = Plays(study, options.plays)
    print(f"{options.env}, {len(groups)} groups, nodes by {options.nodes}\n")
    print(
        "| divergences | number | one member on both sides | right order | wrong order | best - worst when played on |"
    )
    print("|---|---|---|---|---|---|")

    def of(shrink: float) -> list[Found]:
        return [
            (g, d)
            for g in groups
            if g.tree is not None
            for d in g.tree.divergences(config.tree.delta, shrink=shrink)
        ]

    def line(name: str, found: list[Found]) -> None:
        print(row(name, found, plays.pairs(found)), flush=True)

    whole = of(0.0)
    line("all", whole)
    for shrink in (s for s in options.shrink if s):
        line(f"shrink {shrink:g}", of(shrink))
    made = graft(
        study.engine,
        study.policy.codec,
        [(g.trajectories, d) for g, d in whole],
        seed="measure",
        max_tokens=config.rollout.max_tokens,
        fallback=config.graft.fallback,
    )
    by_task = {g.trajectories[0].group: g for g in groups}

    def kept() -> list[Found]:
        steps = {(g.group, g.worst_step) for g in made.kept}
        return [(g, d) for g, d in whole if (g.trajectories[0].group, d.worst_step) in steps]

    line("with a graft", kept())
    lost = [by_task[g.group].trajectories[g.worst_step[0]] for g in made.kept]
    verify(
        made,
        lost,
        study.spec,
        study.engine,
        study.policy.codec,
        split=config.split,
        seed="measure",
        sampling=sampling_of(config, config.rollout.temperature),
        fallback=config.graft.fallback,
    )
    line("with a verified graft", kept())


if __name__ == "__main__":
    main()
