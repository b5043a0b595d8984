"""Shaped rewards in training: what a group is compared by is all that the environment gave, counted anew in Gymnasium's environment."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import pytest
import torch

import tstar_envs  # noqa: F401  # registers the ids
from tstar_envs import make_group
from tstar_train.engines.local import LocalEngine
from tstar_train.grafting import graft, verify
from tstar_train.policy.model import load_policy
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.player import Sampling
from tstar_train.tree import build_tree

OPTIONS = {"observation": "grid_coords", "multi_action": True, "horizon": 12, "reward": "shaped"}
SAMPLING = Sampling(max_tokens=96, context="step", history=0)
SIZE = 6


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return load_policy("tiny", "sokoban_harder")


def groups_of(policy, options, count):
    tasks = make_group("sokoban-medium", [0], 1, split="train").envs[0].task_ids()[:count]
    played = collect(
        EnvSpec("sokoban-medium", options),
        LocalEngine(policy),
        policy.codec,
        tasks,
        size=SIZE,
        split="train",
        seed="shaped",
        sampling=SAMPLING,
    )
    return [played[i : i + SIZE] for i in range(0, len(played), SIZE)]


@pytest.fixture(scope="module")
def groups(policy):
    return groups_of(policy, OPTIONS, 8)


def start_again(task):
    env = gym.make("tstar/Sokoban-medium", split="train", **OPTIONS)
    return env, env.reset(options={"task": task})


@pytest.mark.slow
def test_a_trajectory_is_worth_all_that_the_environment_gave(groups):
    trajectories = [t for group in groups for t in group]
    for t in trajectories:
        env, _ = start_again(t.episode.task)
        rewards = [env.step(step.reply)[1] for step in t.steps]
        assert t.reward == pytest.approx(sum(rewards), abs=1e-9)
        assert t.episode.reward == rewards[-1] == float(t.episode.success), (
            "the record keeps the terminal reward"
        )
    assert {round(t.reward, 9) for t in trajectories} == {0.0, 0.5, 1.5}, (
        "none, one or both boxes home; the last one wins the 1"
    )


def test_without_the_option_it_is_the_terminal_reward(policy):
    for group in groups_of(policy, {**OPTIONS, "reward": "success"}, 2):
        assert all(t.reward == t.episode.reward and not any(turn.shaping for turn in t.turns) for t in group)


def play_by_hand(policy, one, lost):
    """From the start to the divergence as before, then with the graft's thought, each token by the bare model's highest logit."""
    env, (observation, info) = start_again(lost.episode.task)
    turn = one.worst_step[1]
    rewards = []
    for step in lost.steps[:turn]:
        observation, reward, *_ = env.step(step.reply)
        rewards.append(reward)
    earned, begun = sum(rewards), list(one.rectified)
    while True:
        shown = observation if info["instruction"] in observation else f"{info['instruction']}\n{observation}"
        context = policy.codec.start(env.unwrapped.prompt(), shown)
        reply, budget = begun, SAMPLING.max_tokens
        while budget and (not reply or reply[-1] != policy.codec.end):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([context + reply])).logits[0, -1]
            reply, budget = [*reply, int(logits.argmax())], budget - 1
        observation, reward, terminated, truncated, _ = env.step(policy.codec.decode(reply))
        rewards.append(reward)
        if terminated or truncated:
            return earned, sum(rewards)
        begun = []


@pytest.mark.slow
def test_a_graft_is_judged_by_the_whole_episode(policy, groups):
    mixed = [g for g in groups if len({t.reward for t in g}) > 1]
    found = [
        (g, d)
        for g in mixed
        for d in build_tree(g, lambda t, i, j: 0.0, gamma=1.0, history="state").divergences(0.1)
    ]
    later = [
        (g, d) for g, d in found if any(turn.shaping for turn in g[d.worst_step[0]].turns[: d.worst_step[1]])
    ]
    found = later[:3] + [one for one in found if one not in later][:1]
    by_step = {(g[0].group, d.worst_step): g[d.worst_step[0]] for g, d in found}
    grafts = graft(
        LocalEngine(policy),
        policy.codec,
        found,
        seed="g",
        max_tokens=96,
        temperature=0.0,
        fallback="z_plus_only",
    )
    every = list(grafts.kept)
    lost = [by_step[(g.group, g.worst_step)] for g in every]
    spec = EnvSpec("sokoban-medium", OPTIONS)
    greedy = replace(SAMPLING, temperature=0.0)
    verify(
        grafts,
        lost,
        spec,
        LocalEngine(policy),
        policy.codec,
        split="train",
        seed="v",
        sampling=greedy,
        fallback="none",
    )
    by_hand = [play_by_hand(policy, g, t) for g, t in zip(every, lost, strict=True)]
    assert [g.verified for g in every] == pytest.approx([total for _, total in by_hand], abs=1e-9)
    assert sum(earned > 0 for earned, _ in by_hand) >= 2, (
        "some must have earned something before the divergence"
    )
    assert grafts.kept == [g for g, t in zip(every, lost, strict=True) if g.verified > t.reward]
