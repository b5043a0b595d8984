"""Groups that a policy plays as an iteration of training does, with their trees, for the studies of trees and grafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tstar_envs import find_entry
from tstar_train.algorithms.tstar import TStar
from tstar_train.build import trainer_of
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.engines.local import LocalEngine
from tstar_train.loop import begin, collect_groups
from tstar_train.policy.model import Policy, load_policy
from tstar_train.presets import tiny, with_nodes
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.collect import EnvSpec, play_on, sampling_of, training_spec
from tstar_train.tree import Tree
from tstar_train.types import Group, KLWork, Trajectory

# Families in the order of the paper's tables, by the name that it gives them.
FAMILIES = {"alfworld": "ALFWorld", "webshop": "WebShop", "search_qa": "HotpotQA", "sokoban": "Sokoban"}


@dataclass(frozen=True)
class Played:
    """Groups of training tasks, each with snapshots to play on from.

    Attributes:
        config: options of a training run.
        policy: that played.
        engine: samples from it.
        groups: in order of task, without trees.
    """

    config: Config
    policy: Policy
    engine: LocalEngine
    groups: list[Group]

    @property
    def spec(self) -> EnvSpec:
        """The environment as training plays it."""
        return training_spec(self.config)

    def tstar(self, nodes: str) -> TStar:
        """T-STAR with nodes by depth or by state."""
        sampling = sampling_of(self.config, self.config.rollout.temperature)
        config = with_nodes(self.config, nodes)
        return TStar(config, self.engine, self.policy.codec, self.spec, sampling)

    def trees(self, groups: Sequence[Sequence[Trajectory]], nodes: str) -> list[Tree | None]:
        """Build trees as a run does; None where it builds none.

        Args:
            groups: trajectories of one task each.
            nodes: depth or state.
        """
        return self.tstar(nodes).trees(groups, 0, KLWork())

    def play_on(
        self,
        points: Sequence[tuple[Trajectory, int]],
        seed: str,
        begun: Sequence[Sequence[int]] | None = None,
    ) -> list[Trajectory]:
        """Continue episodes from given turns as training samples; see ``collect.play_on``."""
        return play_on(
            points,
            self.spec,
            self.engine,
            self.policy.codec,
            split=self.config.split,
            seed=seed,
            sampling=sampling_of(self.config, self.config.rollout.temperature),
            begun=begun,
        )


def play(
    env: str, tasks: int, *, model: str = "tiny", size: int | None = None, everywhere: bool = False
) -> Played:
    """Play groups of the first training tasks with a built-in policy.

    Args:
        env: environment id or short name.
        tasks: number of tasks.
        model: tiny, or a checkpoint of a built-in policy.
        size: episodes of a task; None for the preset's.
        everywhere: True to build trees of groups with equal rewards too.
    """
    torch.set_num_threads(1)
    entry = find_entry(env)
    preset = with_nodes(tiny(entry, model), "depth")
    rollout = replace(preset.rollout, tasks_per_iteration=tasks, group_size=size or preset.rollout.group_size)
    config = replace(
        preset,
        processes=1,
        rollout=rollout,
        tree=replace(preset.tree, statistics_everywhere=everywhere),
        graft=replace(preset.graft, verify=True),  # keeps what episodes are played on from
    )
    policy = load_policy(model, policy_name(entry))
    one = trainer_of(config, policy, SingleProcess())
    data = begin(one, 0, 0.0)
    collect_groups(one, data)
    return Played(config, policy, LocalEngine(policy), data.groups)
