"""The batched, cached, early-rejecting KL against its definition on the same samples."""

from __future__ import annotations

import copy
import math
from functools import cache, partial

import pytest
from policies import HOTPOT, random_policy

from tstar_envs import UnknownOption
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.codec import ACTION_CUE
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.kl import ActionKL, ExactKL, hash_ids
from tstar_train.rollout.player import Sampling
from tstar_train.tree import build_tree

EPS, K, SIZE = 0.25, 4, 3


@pytest.fixture(scope="module")
def played():
    # Nearly uniform next tokens make nearly equal contexts close in KL, so that both outcomes occur.
    policy = random_policy(spread=0.02)
    tasks = list(HOTPOT.load_class()(split="train").task_ids("train"))[:2]
    spec = EnvSpec("hotpotqa", {"topk": 1})
    trajectories = collect(
        spec,
        LocalEngine(policy),
        policy.codec,
        tasks,
        size=SIZE,
        split="train",
        seed="kl",
        sampling=Sampling(4),
    )
    return policy, [Group(trajectories[i : i + SIZE]) for i in (0, SIZE)]


@pytest.fixture(scope="module")
def definition(played):
    """Each value is worked out once, from samples that are drawn once a context: it has no state, and takes most of the time here."""
    policy, _ = played

    @cache
    def samples(source):
        engine, context = LocalEngine(policy), list(source)
        seeds = [f"kl/{hash_ids(context)}/{k}" for k in range(K)]
        return [s.ids for s in engine.generate([context] * K, seeds, max_tokens=5)]

    return cache(lambda group, *place: defined(policy, samples, group.trajectories, *place))


class Group:
    """A group that can be a key."""

    def __init__(self, trajectories):
        self.trajectories = trajectories


def defined(policy, samples, group, over, t, i, j):
    """1/K sum of log-ratio over K samples, each scored on its own."""
    engine = LocalEngine(policy)
    cue = policy.codec.text(ACTION_CUE) if over == "action" else []
    source, target = group[i].turns[t + 1].context + cue, group[j].turns[t + 1].context + cue
    if source == target:
        return 0.0
    drawn = samples(tuple(source))
    return (
        sum(engine.logprobs([source], [[a]])[0][0] - engine.logprobs([target], [[a]])[0][0] for a in drawn)
        / K
    )


@pytest.mark.parametrize("over", ["action", pytest.param("turn", marks=pytest.mark.slow)])
def test_values_and_rejections_agree_with_the_definition(played, definition, over):
    policy, groups = played
    accepted = rejected = 0
    for group in groups:
        kl = ActionKL(
            LocalEngine(policy),
            policy.codec,
            group.trajectories,
            samples=K,
            over=over,
            threshold=EPS,
            max_tokens=5,
        )
        for t in range(min(len(g.turns) for g in group.trajectories) - 1):
            for i in range(SIZE):
                for j in range(SIZE):
                    wanted, got = definition(group, over, t, i, j), kl(t, i, j)
                    assert (got < EPS) == (wanted < EPS)
                    if got < EPS:
                        assert math.isclose(got, wanted, abs_tol=1e-4)
                        accepted += 1
                    else:
                        assert got <= wanted + 1e-4  # a lower bound
                        rejected += 1
    assert accepted and rejected


@pytest.mark.parametrize("symmetry", ["max", "mean", "forward"])
def test_trees_equal_those_of_the_definition(played, definition, symmetry):
    policy, groups = played
    for group in groups:
        threshold = None if symmetry == "mean" else EPS
        kl = ActionKL(
            LocalEngine(policy),
            policy.codec,
            group.trajectories,
            samples=K,
            threshold=threshold,
            max_tokens=5,
        )
        fast = build_tree(group.trajectories, kl, eps_kl=EPS, kl_symmetry=symmetry)
        slow = build_tree(
            group.trajectories, partial(definition, group, "action"), eps_kl=EPS, kl_symmetry=symmetry
        )
        assert {n.members for n in fast.nodes} == {n.members for n in slow.nodes}


@pytest.mark.slow
def test_a_sampled_action_ends_with_its_line(played):
    """What a model goes on with behind it says nothing more about the action."""
    policy, groups = played
    kl = ActionKL(LocalEngine(policy), policy.codec, groups[0].trajectories, samples=300, max_tokens=40)
    kl.prefetch([(0, 0, 1)])
    breaks, ends = policy.codec.line_ends, policy.codec.ends
    samples = [ids for drawn in kl.drawn.values() for ids in drawn]
    assert any(len(ids) < 40 and ids[-1] in breaks for ids in samples)
    assert all(
        breaks.isdisjoint(ids[:-1]) and (len(ids) == 40 or ids[-1] in breaks | ends) for ids in samples
    )


def test_identical_contexts_cost_nothing(played):
    policy, groups = played
    twins = [groups[0].trajectories[0]] * 2
    kl = ActionKL(LocalEngine(policy), policy.codec, twins, samples=K)
    assert kl(0, 0, 1) == 0.0 and kl.work.sampled_contexts == 0 and kl.work.identical == 1


def test_exact_kl_enumerates_the_admissible_actions(played):
    policy, groups = played
    group = groups[0].trajectories[:2]
    lists = (["search[Velbar]", "finish[yes]", "finish[no]"], ["search[Velbar]", "finish[yes]"])
    for trajectory, actions in zip(group, lists, strict=True):
        trajectory.turns[0].next_actions = actions
    kl = ExactKL(LocalEngine(policy), policy.codec, group)
    kl.prefetch([(0, 0, 0)])
    assert kl(0, 0, 0) == 0.0 and (kl.work.identical, kl.work.scored) == (1, 0)  # equal contexts cost nothing
    assert kl(0, 0, 1) == math.inf  # an action that the other list lacks
    got = kl(0, 1, 0)
    engine, cue = LocalEngine(policy), policy.codec.text(ACTION_CUE)

    def distribution(i):
        context = group[i].turns[1].context + cue
        encoded = [policy.codec.reply(f"{ACTION_CUE} {a}")[len(cue) :] for a in lists[i]]
        weights = [math.exp(engine.logprobs([context], [[e]])[0][0]) for e in encoded]
        return {a: w / sum(weights) for a, w in zip(lists[i], weights, strict=True)}

    ours, theirs = distribution(1), distribution(0)
    assert (kl.work.scored, kl.work.unscored) == (5, 5 + 5)
    assert math.isclose(got, sum(p * math.log(p / theirs[a]) for a, p in ours.items()), abs_tol=1e-4)


def test_exact_kl_says_where_it_does_not_apply(played):
    policy, groups = played
    with pytest.raises(UnknownOption, match="use 'mc'"):
        ExactKL(LocalEngine(policy), policy.codec, groups[1].trajectories)(0, 0, 1)


def test_samples_are_as_long_as_the_longest_listed_action(played, monkeypatch):
    """A model that goes on after its action pays for the action alone; an open set has no longest one."""
    policy, groups = played
    group = copy.deepcopy(groups[0].trajectories)
    listed = ["look", "go to the northern door of the house"]
    longest = max(len(policy.codec.reply(f"{ACTION_CUE} {a}")) for a in listed) - len(
        policy.codec.text(ACTION_CUE)
    )
    for trajectory in group:
        for turn in trajectory.turns:
            turn.next_actions = listed
    engine, asked = LocalEngine(policy), []
    generate = engine.generate
    monkeypatch.setattr(
        engine, "generate", lambda *a, **o: (asked.append(o["max_tokens"]), generate(*a, **o))[1]
    )

    def lengths(**options):
        asked.clear()
        ActionKL(engine, policy.codec, group, samples=K, max_tokens=60, **options)(0, 0, 1)
        return set(asked)

    (drawn,) = lengths(as_listed=True)
    assert longest <= drawn < longest + 8 and drawn % 8 == 0
    assert lengths() == {60}
    group[1].turns[0].next_actions = None
    assert lengths(as_listed=True) == {60}
