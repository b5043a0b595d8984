"""What an iteration makes of the episodes of one task, and of all its tasks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tstar_envs import Episode
from tstar_train.grafting.graft import Grafts
from tstar_train.rollout.action_kl import KLWork
from tstar_train.rollout.failures import failed
from tstar_train.rollout.types import Trajectory
from tstar_train.tree import Divergence, Tree


@dataclass
class GroupResult:
    """What was made of one group.

    Attributes:
        trajectories: its members, without those that failed for want of infrastructure.
        advantages: per member, one number per turn.
        tree: None if it was not built.
        divergences: where to graft.
    """

    trajectories: list[Trajectory]
    advantages: list[NDArray[np.float64]]
    tree: Tree | None
    divergences: list[Divergence]


@dataclass
class Played:
    """What an iteration's tasks gave, of one rank or of all.

    Attributes:
        groups: in order of task; one of which every episode failed is missing, and so is one that was not learnt from.
        failed: episodes that failed for want of infrastructure, which are in no group.
        overlong: episodes that ended because their context left no room for a reply; one that never began is in no group.
        tasks: how many tasks were played.
        dropped_groups: how many groups were played but are not learnt from (dynamic sampling).
        grafts: kept and dropped.
        work: of the KL estimates.
        seconds: per phase; of all ranks together those of the slowest.
        memory: per phase, GiB on a GPU; of all ranks together those of the one with most.
    """

    groups: list[GroupResult] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    overlong: int = 0
    tasks: int = 0
    dropped_groups: int = 0
    grafts: Grafts = field(default_factory=Grafts)
    work: KLWork = field(default_factory=KLWork)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    @classmethod
    def together(cls, parts: Sequence[Played]) -> Played:
        """Join what all ranks played, in order of rank."""
        whole = cls()
        for part in parts:
            whole.groups += part.groups
            whole.failed += part.failed
            whole.overlong += part.overlong
            whole.tasks += part.tasks
            whole.dropped_groups += part.dropped_groups
            whole.grafts.kept += part.grafts.kept
            whole.grafts.dropped += part.grafts.dropped
            whole.grafts.played_on += part.grafts.played_on
            for name, value in vars(part.work).items():
                setattr(whole.work, name, getattr(whole.work, name) + value)
            for mine, theirs in ((whole.seconds, part.seconds), (whole.memory, part.memory)):
                for phase, value in theirs.items():
                    mine[phase] = max(mine.get(phase, 0.0), value)
        return whole


def without_failed(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The members that have a result and a turn, numbered anew: trees, grafts and the report count members by their place."""
    ordered = sorted(group, key=lambda t: failed(t.episode) or not t.turns)
    for place, trajectory in enumerate(ordered):
        trajectory.member = trajectory.episode.sample = place
    return [t for t in ordered if t.turns and not failed(t.episode)]
