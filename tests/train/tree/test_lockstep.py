"""The trees of an iteration, asked about together and drawn in as branches, against the definition worked out for each group by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from tstar_envs import find_entry
from tstar_train.algorithms.tstar import TStar
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.trie import Trie
from tstar_train.policy.codec import ACTION_CUE
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.collect import collect, sampling_of, training_spec
from tstar_train.rollout.kl import hash_ids, prefetch_together
from tstar_train.tree import build_tree, build_trees
from tstar_train.types import KLWork

SIZE, K = 5, 4


class Definition:
    """The estimate with no economy but that of not working out the same number twice: samples are drawn in rows of their own, and each is
    scored by a plain forward pass over context and sample.
    """

    def __init__(self, policy, seed, max_tokens):
        self._policy, self._seed, self._max_tokens = policy, seed, max_tokens
        self.samples, self._score = cache(self._samples), cache(self._plain)

    def kl(self, group, t, i, j):
        source, target = (
            (*group[n].turns[t + 1].context, *self._policy.codec.text(ACTION_CUE)) for n in (i, j)
        )
        if source == target:
            return 0.0
        return sum(self._score(source, a) - self._score(target, a) for a in self.samples(source)) / K

    def _samples(self, context):
        seeds = [f"{self._seed}/{hash_ids(context)}/{k}" for k in range(K)]
        ends = self._policy.codec.line_ends
        return [
            tuple(
                LocalEngine(self._policy)
                .generate([context], [s], max_tokens=self._max_tokens, ends=ends)[0]
                .ids
            )
            for s in seeds
        ]

    @torch.no_grad()
    def _plain(self, context, reply):
        logprobs = (
            self._policy.model(torch.tensor([[*context, *reply]]))
            .logits[0, len(context) - 1 : -1]
            .log_softmax(-1)
        )
        return float(logprobs.gather(-1, torch.tensor(reply)[:, None]).sum())


@pytest.mark.parametrize(
    ("env", "count", "symmetry", "history"),
    [
        ("hotpotqa", 3, "max", "sequence"),
        pytest.param("hotpotqa", 3, "mean", "state", marks=pytest.mark.slow),
        pytest.param("sokoban-easy", 3, "max", "sequence", marks=pytest.mark.slow),
        pytest.param("blocksworld-stack", 3, "max", "sequence", marks=pytest.mark.slow),
        pytest.param("blocksworld-stack", 3, "forward", "state", marks=pytest.mark.slow),
    ],
)
def test_trees_and_samples_are_those_of_the_definition(env, count, symmetry, history, monkeypatch):
    entry = find_entry(env)
    config = tiny(entry)
    tree = replace(
        config.tree,
        nodes="depth",
        kl_samples=K,
        kl_symmetry=symmetry,
        history=history,
        statistics_everywhere=True,
    )
    # A turn of history gives equal states different contexts, about which the policy is asked.
    config = replace(config, tree=tree, rollout=replace(config.rollout, horizon=6, history=1))
    policy = load_policy("tiny", policy_name(entry))
    engine, sampling, spec = (
        LocalEngine(policy, keep_rows=True),
        sampling_of(config, 1.0),
        training_spec(config),
    )
    tasks = list(entry.load_class()(**{**entry.kwargs, "split": "train"}).task_ids("train"))[:count]
    played = collect(
        spec, engine, policy.codec, tasks, size=SIZE, split="train", seed="lockstep", sampling=sampling
    )
    groups = [played[n : n + SIZE] for n in range(0, len(played), SIZE)]
    computed = []
    prefill = Trie.fill
    monkeypatch.setattr(
        Trie, "fill", lambda self, cache, own: (computed.extend(own), prefill(self, cache, own))
    )
    tstar, work = TStar(config, engine, policy.codec, spec, sampling), KLWork()
    kls = [tstar.estimator(group, 7, work) for group in groups]
    options = {"eps_kl": tree.eps_kl, "kl_symmetry": symmetry, "history": history}
    trees = build_trees(groups, kls, **options, start_keys=[None] * count, prefetch=prefetch_together)
    asked = {context for kl in kls for context in kl.drawn}
    if (
        config.rollout.context == "concat"
    ):  # then contexts are beginnings of rows that the rollout left behind
        assert len(computed) < len(asked) / 4

    slow = Definition(policy, f"{config.seed}/kl/7", config.rollout.max_tokens)
    for group, fast, kl in zip(groups, trees, kls, strict=True):
        wanted = build_tree(group, lambda t, i, j, group=group: slow.kl(group, t, i, j), **options)
        assert [(n.members, n.value) for n in fast.nodes] == [(n.members, n.value) for n in wanted.nodes]
        assert fast.stats() == wanted.stats(), "the same questions"
        for context, drawn in kl.drawn.items():
            assert sorted(drawn.elements()) == sorted(slow.samples(context))
    merged = sum(len(node.members) > 1 for made in trees for node in made.nodes)
    assert work.sampled_contexts >= 15 and merged >= 10
    assert bool(work.rejected_early) == (env != "hotpotqa")
    # Trees made one by one, in another engine, ask and count alike.
    alone, counted = TStar(config, LocalEngine(policy), policy.codec, spec, sampling), KLWork()
    for group, fast in zip(groups, trees, strict=True):
        own = build_tree(group, alone.estimator(group, 7, counted), **options)
        assert [n.members for n in own.nodes] == [n.members for n in fast.nodes]
    assert counted == work
