"""Forks where more than one thing comes together: horizons by task, invalid replies, other engines, sampling ahead, two environments."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from forking import config_of, policy_of, require_forks_are_episodes, sampled, tasks_of
from policies import plain_logprobs, trainer

from tstar_envs import find_entry
from tstar_train.ahead import Ahead
from tstar_train.build import make_env
from tstar_train.config_check import check
from tstar_train.distributed import SingleProcess
from tstar_train.engines.base import Sample
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.paged import PagedEngine
from tstar_train.learner.rows import make_rows
from tstar_train.loop import PhaseTimer, begin, forget_beginnings, iterate, sample
from tstar_train.policy.model import load_policy
from tstar_train.rollout.stream import Slot

ENV = "sokoban-easy"
MIXED = [tasks_of(ENV, 17)[n] for n in (11, 16)]  # tasks of which some episodes win and others lose


def with_parts(config, **parts):
    """A configuration with options of its parts changed."""
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **own) for name, own in parts.items()}
    )


def said(groups):
    """All replies, and where each fork began and whether it stopped."""
    return [
        (
            [turn.reply for turn in t.turns],
            t.fork and (t.fork.parent, t.fork.turn, t.fork.state, t.fork.stopped),
        )
        for g in groups
        for t in g.members
    ]


def credited(config, tasks):
    """A first iteration up to its credit, as the trainer samples it."""
    one = trainer(config, policy_of_its_own(), tasks)
    data = begin(one, 0, 0.0)
    sample(one, data, PhaseTimer(time.perf_counter, one.policy.model.device))
    return data


def policy_of_its_own():
    """Training changes it."""
    return load_policy("tiny", "sokoban")


def test_forks_end_at_the_horizon_of_their_own_task():
    """A multiple of each task's optimum, which differs between them; credit by reach counts its steps too."""
    config = with_parts(
        config_of(ENV, share=0.25, weights="reach"), rollout={"group_size": 4, "horizon": None}
    )
    config = dataclasses.replace(config, env_options={**config.env_options, "horizon": "optimal*2"})
    check(config)
    env, tasks = make_env(config), [tasks_of(ENV, 20)[n] for n in (1, 19)]  # some of their episodes win
    optimum = {task: env.reset(options={"task": task})[1]["optimal_length"] for task in tasks}
    groups, weighed, cut = credited(config, tasks).groups, 0, set()
    horizons = {g.trajectories[0].episode.task: g.horizon for g in groups}
    assert (
        horizons == {task: 2 * steps for task, steps in optimum.items()} and len(set(horizons.values())) == 2
    )
    assert all(group.forks for group in groups)
    for group in groups:
        require_forks_are_episodes(config, group)
        for member in group.members:
            assert member.before < group.horizon - 1 and len(member.episode.steps) <= group.horizon
            if member.truncated:
                assert len(member.episode.steps) == group.horizon
                cut.add(group.horizon)
        if group.tree is None or group.tree.zero_variance:
            continue
        graph, plain = group.tree.graph, group.tree.advantages(credit="transition")
        reach = graph.reach(2 * optimum[group.trajectories[0].episode.task])
        for step in graph.passages:
            i, t = step.member
            wanted = 4 * reach[step.state] / graph.visits[step.state] * plain[i][t]
            assert group.advantages[i][t] == pytest.approx(wanted)
            weighed += bool(wanted)
    assert weighed > 0 and cut


class Scripted(LocalEngine):
    """Gives one reply wherever a seed ends so, with the log-probabilities that the policy has for it."""

    def __init__(self, policy, text, where):
        super().__init__(policy)
        self.policy, self.ids, self.where = policy, policy.codec.reply(text), where
        self.given = 0

    def generate(self, contexts, seeds, **options):
        samples = super().generate(contexts, seeds, **options)
        for n, seed in enumerate(seeds):
            if "/fork/" in seed and self.where in seed:
                self.given += 1
                samples[n] = Sample(list(self.ids), plain_logprobs(self.policy, list(contexts[n]), self.ids))
        return samples


INVALID = "Thought: away.\nAction: fly"


def test_an_invalid_first_reply_of_a_fork_is_a_loop_that_counts_and_is_penalised():
    """It stays where it began, which is a known state: the fork stops, its turn is a visit, and its penalty is its own."""
    config = with_parts(
        config_of(ENV), rollout={"invalid_penalty": 0.5, "revisit_penalty": 0.0, "progress_credit": 0.0}
    )
    one = trainer(config, policy_of_its_own(), MIXED)
    one.engine = Scripted(one.policy, INVALID, "/fork/0/0/")
    result = iterate(one, 0)
    groups, credited = result.data.groups, 0
    loops = [(g, t) for g in groups for t in g.forks if t.turns[0].reply == one.engine.ids]
    assert len(loops) == one.engine.given > 0, "of each group's first round"
    assert all(t.fork.stopped and len(t.turns) == 1 and not t.steps[0].action_valid for _, t in loops)
    assert all(t.steps[0].state_key == t.fork.state and t.truncated is False for _, t in loops)
    members = [t for g in groups for t in g.members]
    assert result.metrics["turns_sampled"] == sum(len(t.turns) for t in members)
    assert result.metrics["tokens_sampled"] == sum(len(turn.reply) for t in members for turn in t.turns)
    of_start = [s for g in groups for t in g.trajectories for s in t.steps]
    assert result.metrics["invalid_rate"] == np.mean([not s.action_valid for s in of_start])
    rows = {(t.group, t.member): sequences for t, sequences in make_rows(config, groups)}
    for group, loop in loops:
        own = [
            a
            for s in rows[loop.group, loop.member]
            for a, m in zip(s.advantages, s.response_mask, strict=True)
            if m
        ]
        assert own == pytest.approx([-0.5] * len(loop.turns[0].reply)), "no credit, and the penalty"
        if group.tree is None:
            continue
        graph = group.tree.graph
        state = graph.keys.index(loop.fork.state)
        passage = next(p for p in graph.passages if p.member == (loop.member, 0))
        assert (passage.state, passage.next, passage.own, passage.action) == (
            state,
            state,
            True,
            loop.steps[0].action,
        )
        visits = sum(t.states_before.count(loop.fork.state) for t in group.members)
        assert graph.visits[state] == visits
        credited += any(row.any() for row in group.advantages)
    assert credited > 0, "beside steps that have credit"


def test_without_a_valid_reply_nothing_is_untried_and_what_was_drawn_counts():
    engine = Scripted(policy_of(ENV), INVALID, "/draw ")
    groups, data = sampled(config_of(ENV, first="untried"), tasks_of(ENV, 1), engine)
    episodes = [t for g in groups for t in g.members]
    assert not any(g.forks for g in groups) and engine.given > 0
    assert data.turns == sum(len(t.turns) for t in episodes) + engine.given
    drawn = sum(len(turn.reply) for t in episodes for turn in t.turns) + engine.given * len(engine.ids)
    assert data.tokens == drawn and not data.forks_failed


@pytest.mark.slow
def test_the_paged_engine_plays_the_forks_of_the_local_one():
    """Two rows at a time, so that episodes, draws and forks wait for one another; states are chosen by its scores."""
    pytest.importorskip("psutil", reason="continuous batching on a CPU needs psutil")
    config = with_parts(
        config_of(ENV, first="untried", where="policy"), rollout={"group_size": 5, "horizon": 4}
    )
    policy, tasks = policy_of(ENV), tasks_of(ENV, 1)
    paged = PagedEngine(policy, 2, 512, 0.02)
    assert paged.rows_at_once == 2
    local, data = sampled(config, tasks, LocalEngine(policy, limit=512))
    ours, counted = sampled(config, tasks, paged)
    assert said(ours) == said(local) and sum(len(g.forks) for g in ours) > 2
    assert (counted.turns, counted.tokens) == (data.turns, data.tokens)


def test_forks_come_back_from_the_queue_of_a_checkpoint(tmp_path):
    """With their trees, which hold the graph of states."""
    config = with_parts(config_of(ENV, first="untried"), rollout={"group_size": 4})
    data = credited(config, MIXED)
    forget_beginnings(data.groups)  # as sampling ahead does
    queue, other = Ahead(), Ahead()
    queue.start(lambda: data, lambda _: None, 0)
    queue.gather(SingleProcess())
    (tmp_path / "queue").write_bytes(queue.packed())
    other.load(tmp_path / "queue", SingleProcess())
    found = other.take()
    assert said(found.groups) == said(data.groups) and sum(len(g.forks) for g in found.groups) > 0
    assert any(group.tree is not None for group in data.groups)
    for loaded, group in zip(found.groups, data.groups, strict=True):
        assert [row.tolist() for row in loaded.advantages] == [row.tolist() for row in group.advantages]
        assert (loaded.tree is None) == (group.tree is None)
        if group.tree is not None:
            assert loaded.tree.graph.values(0.95).tolist() == group.tree.graph.values(0.95).tolist()


@pytest.mark.slow
def test_forks_sampled_ahead_by_an_engine_process_are_those_of_the_weights_it_has():
    """The first two iterations are sampled with the first weights: without a step between them the local engine plays the same."""
    config = with_parts(
        config_of(ENV, first="untried"), rollout={"group_size": 4}, optim={"learning_rate": 0.0}
    )
    plain = trainer(config, policy_of_its_own(), MIXED)
    one = trainer(with_parts(config, rollout={"ahead": 1}), policy_of_its_own(), MIXED)
    try:
        for number in range(2):
            ours, local = iterate(one, number), iterate(plain, number)
            one.whole = plain.whole = True
            assert ours.metrics["sampling_lag"] == number and ours.metrics["forks"] > 0
            assert said(ours.data.groups) == said(local.data.groups)
            assert ours.metrics["turns_sampled"] == local.metrics["turns_sampled"]
    finally:
        one.ahead.wait()
        one.sampler.engine.close()


def test_forks_of_two_environments_are_each_of_its_own():
    """With another horizon each; turns are counted together."""
    two = [ENV, "sokoban-medium"]
    names = [find_entry(env).id for env in two]
    config = with_parts(config_of(two), rollout={"group_size": 4, "horizon": None})
    own = {names[0]: 6, names[1]: 5}
    second = {
        names[1]: {
            **config.mix_options[names[1]],
            "env_options": {**config.mix_options[names[1]]["env_options"], "horizon": own[names[1]]},
        }
    }
    config = dataclasses.replace(
        config, env_options={**config.env_options, "horizon": own[names[0]]}, mix_options=second
    )
    slots = [Slot(name, tasks_of(env, 1)[0]) for name, env in zip(names, two, strict=True)]
    groups, data = sampled(config, slots)
    assert [g.env for g in groups] == names and all(g.forks for g in groups)
    for group in groups:
        assert group.horizon == own[group.env]
        assert {t.episode.env for t in group.members} == {group.env}
        require_forks_are_episodes(config.of(group.env), group)
    assert data.turns == sum(len(t.turns) for g in groups for t in g.members)
