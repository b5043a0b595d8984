"""Ranks that take tasks as they get free: whoever plays what, the run is the same."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from policies import trainer

from tstar_envs import UnknownTask
from tstar_train.build import processes_of
from tstar_train.config import Config, ExploreConfig, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.distributed import SingleProcess, launched
from tstar_train.learner.rows import PackedEpisode, cut_evenly, moved_episodes
from tstar_train.loop import iterate
from tstar_train.metrics import figures_of
from tstar_train.policy.model import load_policy
from tstar_train.presets import with_algorithm
from tstar_train.rollout.sample import sample_groups, units_of
from tstar_train.types import TokenSequence, Trajectory, Turn, join_rows, rows_of

SMALL = Config(
    env="tstar/HotpotQA",
    iterations=2,
    env_options={"topk": 1, "horizon": 3},
    rollout=RolloutConfig(tasks_per_iteration=6, group_size=4, max_tokens=24, tasks_at_once=1),
    tree=TreeConfig(kl_samples=3, statistics_everywhere=True),
    graft=GraftConfig(batch=5),
    optim=OptimConfig(learning_rate=1e-3, num_minibatches=2),
)
SOKOBAN = dataclasses.replace(
    SMALL,
    env="sokoban-easy",
    env_options={},
    rollout=dataclasses.replace(SMALL.rollout, horizon=5, max_tokens=16),
    tree=TreeConfig(nodes="state", values="bellman", gamma=0.95),
    explore=ExploreConfig(share=0.5, where="policy", credit="graph"),
    graft=GraftConfig(source="both", keep=5, batch=4),
)


class Forced:
    """A communicator that hands units out by lot: ``seed`` decides who plays what, and in which order."""

    def __init__(self, world, seed):
        self._world, self._random = world, random.Random(seed)

    def __getattr__(self, name):
        return getattr(self._world, name)

    def hand_out(self, count, fixed=False):
        if fixed:
            yield from self._world.hand_out(count, fixed)
            return
        of = [self._random.randrange(self._world.size) for _ in range(count)]
        order = self._random.sample(range(count), count)
        yield from (n for n in order if of[n] == self._world.rank)


def outcome(config, world, recipe="search_qa"):
    """Metrics of all iterations, a digest of the weights after them, and the groups that files show with their credit."""
    torch.set_num_threads(1)
    one, found = trainer(config, load_policy("tiny", recipe), world=world), []
    for number in range(config.iterations):
        result = iterate(one, number)
        groups = [] if world.rank else result.data.groups
        credit = [[row.tolist() for row in group.advantages] for group in groups]
        found.append((result.metrics, [[t.episode for t in group.members] for group in groups], credit))
    digest = hashlib.sha256()
    for tensor in one.policy.model.parameters():
        digest.update(tensor.detach().numpy().tobytes())
    return found, digest.hexdigest()


def outcomes(world, cases, seeds):
    """For each case what comes of it with units handed out by each of the seeds."""
    return [
        [outcome(config, Forced(world, f"{seed}"), recipe) for seed in seeds] for config, recipe in cases
    ]


CASES = {
    "grpo": (SMALL, "search_qa"),
    "dapo": (with_algorithm(SMALL, "dapo"), "search_qa"),
    "ppo": (with_algorithm(dataclasses.replace(SMALL, tstar=False), "ppo"), "search_qa"),
    "forks": (SOKOBAN, "sokoban"),
}


def all_alike(size, name, seeds, **changes):
    config, recipe = CASES[name]
    cases = [(dataclasses.replace(config, **changes), recipe)]
    with launched(size, partial(outcomes, cases=cases, seeds=seeds), 5.0) as world:
        first, *others = outcomes(world, cases, seeds)[0]
    assert others and first[0][-1][0]["gradient_norm"] > 0, "it learns something"
    for other in others:
        for mine, theirs in zip(first[0], other[0], strict=True):
            assert mine == theirs
        assert other == first


@pytest.mark.usefixtures("start_method")
def test_whoever_plays_what_the_run_is_the_same():
    rollout = dataclasses.replace(SMALL.rollout, tasks_per_iteration=4, max_tokens=16)
    all_alike(2, "grpo", [1, 2], iterations=1, rollout=rollout)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [2, 3])
def test_whoever_of_many_plays_what_the_run_is_the_same(size, name):
    all_alike(size, name, range(4))
