"""Playing grafts on: against an independent loop over one Gymnasium environment and the bare model, token by token."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import pytest
import torch

import tstar_envs  # noqa: F401  # registers the ids
from tstar_envs.envs.search_qa.service import HttpSearcher
from tstar_train.engines.local import LocalEngine
from tstar_train.grafting import graft, verify
from tstar_train.policy.model import load_policy
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.player import Sampling
from tstar_train.tree import build_tree
from tstar_train.types import Grafts

SPEC = EnvSpec("hotpotqa", {"topk": 1})
SIZE = 6
GREEDY = Sampling(max_tokens=48, temperature=0.0)


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return load_policy("tiny", "search_qa")


@pytest.fixture(scope="module")
def found(policy):
    """(group, divergence) pairs of real groups; every step apart counts as different, so trees branch at the root."""
    engine = LocalEngine(policy)
    tasks = [f"hotpotqa-mini-train-{n:04d}" for n in range(12)]
    played = collect(
        SPEC,
        engine,
        policy.codec,
        tasks,
        size=SIZE,
        split="train",
        seed="verify",
        sampling=Sampling(48, snapshots=True),
    )
    groups = [played[i : i + SIZE] for i in range(0, len(played), SIZE)]
    groups = [g for g in groups if len({t.reward for t in g}) > 1]
    return [(g, d) for g in groups for d in build_tree(g, lambda t, i, j: 1.0, gamma=1.0).divergences(0.3)]


def make_grafts(policy, found, fallback="z_plus"):
    grafts = graft(
        LocalEngine(policy), policy.codec, found, seed="g", max_tokens=48, temperature=0.0, fallback=fallback
    )
    by_step = {(g[0].group, d.worst_step): g[d.worst_step[0]] for g, d in found}
    return grafts, [by_step[(g.group, g.worst_step)] for g in grafts.kept]


def play_by_hand(policy, one, failed):
    """The same, written anew: Gymnasium's environment, the whole context fed to the bare model for every token."""
    env = gym.make("tstar/HotpotQA", split="train", topk=1)
    env.reset(options={"task": failed.episode.task})
    turn = one.worst_step[1]
    for step in failed.steps[:turn]:
        env.step(step.reply)
    context, begun = list(one.context), list(one.rectified)
    while True:
        reply = begun
        budget = 48
        while budget and (not reply or reply[-1] != policy.codec.end):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([context + reply])).logits[0, -1]
            reply = [*reply, int(logits.argmax())]
            budget -= 1
        observation, reward, terminated, truncated, _ = env.step(policy.codec.decode(reply))
        if terminated or truncated:
            return reward
        ending = [] if reply[-1] == policy.codec.end else [policy.codec.end]
        context = [*context, *reply, *ending, *policy.codec.observation(observation)]
        begun = []


def run_verify(policy, grafts, failed, fallback="z_plus", **more):
    verify(
        grafts,
        failed,
        SPEC,
        LocalEngine(policy),
        policy.codec,
        split="train",
        seed="v",
        sampling=GREEDY,
        fallback=fallback,
        **more,
    )


def test_written_thoughts_are_counted_as_sampled(policy, found):
    written, taken = (make_grafts(policy, found, fallback)[0] for fallback in ("none", "z_plus_only"))
    assert 0 < len(written.kept) <= written.turns < written.tokens
    assert (taken.turns, taken.tokens) == (0, 0)


def test_what_a_graft_earns_is_what_it_earns_by_hand(policy, found):
    grafts, failed = make_grafts(policy, found)
    assert len(grafts.kept) >= 6
    every = list(grafts.kept)
    run_verify(policy, grafts, failed, fallback="none")
    assert [g.verified for g in every] == [
        play_by_hand(policy, g, t) for g, t in zip(every, failed, strict=True)
    ]
    assert {g.verified for g in every} == {0.0, 1.0}, "both outcomes must occur, or the test shows nothing"
    assert grafts.kept == [g for g in every if g.verified == 1.0]
    assert grafts.played_on == len(every) and grafts.dropped["earned no more when played on"] == len(
        every
    ) - len(grafts.kept)


def test_a_thought_that_leads_nowhere_is_replaced_by_the_successful_one(policy, found):
    grafts, failed = make_grafts(policy, found)
    useless = policy.codec.reply("Thought: I give up.\nAction: finish[nobody]")
    cut = len(useless) - len(policy.codec.reply("Action: finish[nobody]"))
    chosen = [n for n, g in enumerate(grafts.kept) if g.source == "model" and g.successful]
    assert len(chosen) >= 4
    grafts = Grafts([replace(grafts.kept[n], rectified=useless[:cut]) for n in chosen])
    failed = [failed[n] for n in chosen]
    every = list(grafts.kept)
    run_verify(policy, grafts, failed)
    replaced = [g for g in every if g.source == "z_plus"]
    assert replaced and all(g.rectified == g.successful for g in replaced)
    assert grafts.kept == [g for g in every if g.verified == 1.0]
    assert [g.verified for g in replaced] == [
        play_by_hand(policy, g, t) for g, t in zip(every, failed, strict=True) if g.source == "z_plus"
    ]
    assert grafts.played_on == len(every) + len(replaced)


def test_what_an_algorithm_takes_off_a_failed_episode_is_no_reason_to_keep_a_graft(policy, found):
    kept = []
    for penalty in (0.0, 0.5):  # DAPO's, for replies that are too long: played on, nothing is taken off
        grafts, failed = make_grafts(policy, found)
        run_verify(policy, grafts, [replace(t, penalty=penalty) for t in failed], fallback="none")
        kept.append([(g.group, g.worst_step, g.verified) for g in grafts.kept])
    assert kept[0] == kept[1]


def test_a_thought_must_earn_more_than_what_was_expected_of_a_fork_that_stopped(policy, found):
    """Such a fork has no reward of its own."""
    grafts, failed = make_grafts(policy, found)
    every, sure = list(grafts.kept), [1.0] * len(grafts.kept)
    run_verify(policy, grafts, failed, "none", earned=sure)
    assert max(g.verified for g in every) == 1.0 and not grafts.kept
    assert len(every) <= grafts.turns < grafts.tokens, "what was sampled is counted"


def test_nothing_to_verify_plays_nothing(policy):
    grafts = Grafts()
    run_verify(policy, grafts, [])
    assert grafts.played_on == 0 and not grafts.kept


def test_a_thought_that_could_not_be_played_on_is_dropped(policy, found):
    grafts, failed = make_grafts(policy, found)
    count = len(grafts.kept)
    nobody = EnvSpec("hotpotqa", {"topk": 1, "searcher": HttpSearcher("http://127.0.0.1:9", tries=1)})
    verify(
        grafts, failed, nobody, LocalEngine(policy), policy.codec, split="train", seed="v", sampling=GREEDY
    )
    assert grafts.dropped["could not be played on"] > 0 and all(g.verified is not None for g in grafts.kept)
    assert (
        len(grafts.kept)
        + grafts.dropped["could not be played on"]
        + grafts.dropped["earned no more when played on"]
        >= count
        > 0
    )
