"""Groups with forks for the tests: small configurations, their tasks, and what a fork's record must say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from policies import Given

from tstar_envs import find_entry
from tstar_train.algorithms import algorithm_class
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.engines.base import Engine
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.model import Policy, load_policy
from tstar_train.presets import make_config
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.collect import training_spec
from tstar_train.rollout.sample import sample_groups
from tstar_train.rollout.stream import Slot
from tstar_train.types import Group, IterationData


@lru_cache(maxsize=2)
def policy_of(env: str) -> Policy:
    torch.set_num_threads(1)
    return load_policy("tiny", policy_name(find_entry(env)))


def config_of(env: str | Sequence[str], **explore: Any) -> Config:
    """Two groups of six episodes of eight steps at most, half of which become forks."""
    return make_config(
        env,
        explore={"share": 0.5, **explore},
        rollout={"group_size": 6, "tasks_per_iteration": 2, "horizon": 8},
        processes=1,
    )


def tasks_of(env: str, count: int = 2) -> list[str]:
    entry = find_entry(env)
    return list(entry.load_class()(**{**entry.kwargs, "split": "train"}).task_ids("train"))[3 : 3 + count]


def sampled(
    config: Config, tasks: Sequence[str | Slot], engine: Engine | None = None
) -> tuple[list[Group], IterationData]:
    """The groups of a first iteration, and what was counted."""
    policy, data = policy_of(config.env), IterationData()
    algorithm, engine = algorithm_class(config.algo)(config), engine or LocalEngine(policy)
    groups = sample_groups(config, algorithm, engine, policy.codec, Given(tasks), 0, SingleProcess(), data)
    return groups, data


def require_forks_are_episodes(config: Config, group: Group) -> None:
    """Replayed from the start by a fresh environment, every observation and state of a fork's record is the same."""
    fresh = training_spec(config).group([0], 1, "train").envs[0]
    for fork in group.forks:
        assert fork.fork is not None and len(fork.turns) == len(fork.steps) > 0
        assert len(fork.episode.steps) == fork.fork.turn + len(fork.turns)
        fresh.reset(options={"task": fork.episode.task})
        keys = [fresh.unwrapped.state_key()]
        for step in fork.episode.steps:
            observation, reward, terminated, truncated, info = fresh.step(step.reply)
            assert (observation, info["state_key"]) == (step.observation, step.state_key)
            keys.append(info["state_key"])
        assert keys[fork.fork.turn] == fork.fork.state == fork.start_key
        assert fork.fork.stopped == (not (terminated or truncated)) or fork.episode.extra.get("overlong")
        if terminated or truncated:
            assert fork.episode.reward == pytest.approx(reward) and fork.truncated == truncated
