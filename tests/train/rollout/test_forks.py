"""Forks: states restored, played on until a known state, and counted by turns (docs/tstar.md), in all families."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import tyro
from embedded_service import EmbeddedHandler
from forking import config_of, policy_of, require_forks_are_episodes, sampled, tasks_of
from loopback import listening
from policies import trainer

from tstar_envs import UnknownOption, prompt_of
from tstar_envs.envs.search_qa.service import HttpSearcher
from tstar_train.algorithms.grpo import GRPO
from tstar_train.algorithms.tstar import TStar, _earned
from tstar_train.build import make_env, training_tasks
from tstar_train.cli import for_choices
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.engines.local import LocalEngine
from tstar_train.learner.rows import make_rows
from tstar_train.loop import iterate
from tstar_train.metrics import anchor
from tstar_train.policy.model import load_policy
from tstar_train.presets import make_config
from tstar_train.rollout.collect import EnvSpec, collect, training_spec
from tstar_train.rollout.explore import Explorer
from tstar_train.rollout.kl import action_logprobs
from tstar_train.rollout.sample import training_sampling
from tstar_train.tree import StateGraph, build_tree
from tstar_train.types import Group, IterationData, KLWork, without_failed

FAMILIES = ["hotpotqa", "sokoban-easy", "blocksworld-stack", "webshop", "alfworld"]
QUICK = {"hotpotqa", "sokoban-easy"}


@pytest.mark.parametrize(
    "env", [pytest.param(e, marks=() if e in QUICK else pytest.mark.slow) for e in FAMILIES]
)
def test_forks_are_episodes_of_the_environment(env):
    """Replayed from the start by a fresh environment, every observation and state of a fork's record is the same."""
    config = config_of(env)
    groups, data = sampled(config, tasks_of(env))
    assert all(len(g.trajectories) == 3 for g in groups) and any(g.forks for g in groups)
    for group in groups:
        require_forks_are_episodes(config, group)
    members = [t for g in groups for t in g.members]
    assert data.turns == sum(len(t.turns) for t in members)
    assert data.tokens == sum(len(turn.reply) for t in members for turn in t.turns)


def test_a_fork_begins_in_a_known_state_and_stops_at_the_first_one():
    """Known is what was known before the fork's round; later members know more."""
    groups, _ = sampled(config_of("sokoban-easy"), tasks_of("sokoban-easy"))
    for group in groups:
        left = {key for t in group.trajectories for key in t.states_before}
        horizon = group.horizon
        for fork in group.forks:
            assert fork.fork.state in left and fork.fork.turn < horizon - 1
            inside = [s.state_key for s in fork.steps[:-1]]
            roots = {key for t in group.trajectories for key in t.states_before}
            assert not roots & set(inside), "it went on through a known state"
            if fork.fork.stopped:
                assert fork.steps[-1].state_key in left
            parent = group.members[fork.fork.parent]
            assert parent.states_before[fork.fork.turn - parent.before] == fork.fork.state
            earliest = min(
                t.before + n
                for t in group.members[: fork.member]
                for n, key in enumerate(t.states_before)
                if key == fork.fork.state
            )
            assert fork.fork.turn == earliest
            left |= set(fork.states_before)
        StateGraph(group.members, group.trajectories[0].start_key)  # which refuses what is no graph


def test_a_group_samples_as_many_turns_as_all_episodes_would_have_taken():
    config = config_of("sokoban-easy")
    groups, _ = sampled(config, tasks_of("sokoban-easy", 4))
    for group in groups:
        lengths = [len(t.turns) for t in group.trajectories]
        budget = config.rollout.group_size * np.mean(lengths)
        forks = [len(t.turns) for t in group.forks]
        assert budget <= sum(lengths) + sum(forks)
        assert sum(lengths) + sum(forks) < budget + sum(sorted(forks)[-3:])


def test_the_number_of_episodes_from_the_start():
    sizes = {share: config_of("hotpotqa", share=share).first_episodes for share in (0.01, 0.5, 0.75, 1.0)}
    assert sizes == {0.01: 6, 0.5: 3, 0.75: 2, 1.0: 2}


def test_forks_do_not_depend_on_the_groups_beside_them():
    """So that ranks, which have their own groups, sample what one process would."""
    config = config_of("sokoban-easy")
    tasks = tasks_of("sokoban-easy")
    both, _ = sampled(config, tasks)
    policy = policy_of("sokoban-easy")
    for n, task in enumerate(tasks):
        data = IterationData()
        played = collect(
            training_spec(config),
            LocalEngine(policy),
            policy.codec,
            [task],
            size=3,
            split="train",
            seed=f"{config.seed}/rollout/0",
            sampling=training_sampling(config, 1.0),
            first_group=n,
        )
        alone = Group(without_failed(played))
        explorer = Explorer(
            config,
            training_spec(config),
            LocalEngine(policy),
            policy.codec,
            training_sampling(config, 1.0),
            data,
        )
        explorer.explore([alone], f"{config.seed}/fork/0", {n: 0})
        assert [[turn.reply for turn in t.turns] for t in alone.members] == [
            [turn.reply for turn in t.turns] for t in both[n].members
        ]


class CountingHandler(EmbeddedHandler):
    """Counts queries, and answers 503 to unknown ones, if it is said which are known."""

    asked = 0
    known: frozenset[str] | None = None

    def busy(self, queries: Sequence[str]) -> bool:
        type(self).asked += len(queries)
        return self.known is not None and not self.known.issuperset(f"search[{q}]" for q in queries)


def over_http(url: str, **explore) -> Config:
    config = config_of("hotpotqa", **explore)
    return dataclasses.replace(
        config, env_options={"topk": 1, "searcher": HttpSearcher(url, patience_seconds=0.5)}
    )


def queries(trajectories) -> set[str]:
    return {
        s.action for t in trajectories for s in t.steps if s.action.startswith("search") and s.action_valid
    }


@pytest.mark.parametrize("first", ["policy", "untried"])
def test_no_search_is_made_to_come_back_to_a_state(first):
    """Every query is one of a step that was sampled."""
    handler = type("Handler", (CountingHandler,), {})
    with listening(handler) as url:
        groups, data = sampled(over_http(url, first=first), tasks_of("hotpotqa"))
    assert sum(len(g.forks) for g in groups) > 0
    steps = [s for g in groups for t in g.members for s in t.steps]
    searches = sum(s.action.startswith("search") and s.action_valid for s in steps)
    assert len(queries(t for g in groups for t in g.members)) <= handler.asked <= searches
    assert not data.failed and not data.forks_failed


def test_a_fork_whose_service_fails_is_dropped_and_its_turns_count():
    config = over_http("")
    groups, _ = sampled(config_of("hotpotqa"), tasks_of("hotpotqa"))
    known = queries(t for g in groups for t in g.trajectories)
    handler = type("Handler", (CountingHandler,), {"known": frozenset(known)})
    with listening(handler) as url:
        failing, data = sampled(over_http(url), tasks_of("hotpotqa"))
    assert data.forks_failed > 0 and not data.failed and config.forks
    played = sum(len(t.turns) for g in failing for t in g.members)
    assert data.turns > played
    assert queries(t for g in failing for t in g.forks) <= known


def test_an_untried_first_action_is_one_that_nobody_tried_there():
    groups, data = sampled(config_of("sokoban-easy", first="untried"), tasks_of("sokoban-easy"))
    forks = 0
    for group in groups:
        for fork in group.forks:
            tried = {
                step.action
                for t in group.members[: fork.member]
                for key, step in zip(t.states_before, t.steps, strict=True)
                if key == fork.fork.state
            }
            forks += 1
            # Of one round's forks, which know nothing of each other, all begin in different states.
            assert fork.steps[0].action not in tried and fork.steps[0].action_valid and fork.fork.untried
    drawn = data.turns - sum(len(t.turns) for g in groups for t in g.members)
    assert forks > 0 and drawn > 0, "replies that were drawn and not played count as turns"


@pytest.mark.parametrize(
    ("env", "reply", "untried"),
    [
        ("hotpotqa", "Thought: so.\nAction: search[a lake nobody asked for]", True),
        ("hotpotqa", "Thought: so.\nAction: finish[nowhere]", True),
        ("hotpotqa", "Thought: so.\nAction: look around", False),
        ("hotpotqa", "Thought: so.", False),
        ("hotpotqa", "Action: {tried}", False),
        ("hotpotqa", "Action: {TRIED}", False),
        ("sokoban-easy", "Action: {tried}", False),
        ("sokoban-easy", "Action: fly", False),
    ],
)
def test_an_untried_action_is_valid_and_new_as_the_environment_reads_it(env, reply, untried):
    config = config_of(env, first="untried")
    policy, (task,) = policy_of(env), tasks_of(env, 1)
    engine, spec, sampling = LocalEngine(policy), training_spec(config), training_sampling(config, 1.0)
    played = collect(spec, engine, policy.codec, [task], size=2, split="train", seed="w", sampling=sampling)
    group, pool = Group(without_failed(played)), spec.group([task], 3, "train")
    explorer = Explorer(config, spec, engine, policy.codec, sampling, IterationData())
    (opened,) = explorer.opened([group], pool)
    (point, *_) = explorer._points(opened, prompt_of(pool.envs[0]), "s", {0: 0})
    tried = min(action for action in opened.tried[point.state] if action)
    said = reply.format(
        tried=tried, TRIED=tried.replace("search[", "Search[ ").replace("finish[", "FINISH[ ")
    )
    assert explorer._is_untried(point, pool.envs[0], said) == untried


@pytest.mark.parametrize("first", ["policy", "untried"])
def test_a_context_without_room_ends_a_group_and_samples_nothing(first):
    """Turns are those that were sampled, not attempts."""
    config = config_of("sokoban-easy", first=first)
    groups, _ = sampled(config, tasks_of("sokoban-easy"))
    policy, data = policy_of("sokoban-easy"), IterationData()
    for group in groups:
        group.forks = []

    class Full(LocalEngine):
        """Has no room for a reply."""

        limit = 20

    sampling = training_sampling(config, 1.0)
    explorer = Explorer(config, training_spec(config), Full(policy), policy.codec, sampling, data)
    explorer.explore(groups, "s", dict.fromkeys(range(len(groups)), 0))
    assert (data.turns, data.tokens) == (0, 0) and not any(g.forks for g in groups)


def test_the_weights_are_those_of_the_definition():
    """Reach over visits plus one; the policy's probability of what nobody tried, times reach."""
    env = "sokoban-easy"
    config = config_of(env)
    policy, (task,) = policy_of(env), tasks_of(env, 1)
    engine, spec = LocalEngine(policy), training_spec(config)
    sampling = training_sampling(config, 1.0)
    played = collect(spec, engine, policy.codec, [task], size=3, split="train", seed="w", sampling=sampling)
    group = Group(without_failed(played))
    graph = StateGraph(group.members, group.trajectories[0].start_key)
    reach, found = graph.reach(8), {}
    for where in ("reach", "policy", "uniform"):
        options = config_of(env, where=where)
        explorer = Explorer(options, spec, engine, policy.codec, sampling, IterationData())
        opened = explorer.opened([group], spec.group([task], 1, "train"))
        found[where] = dict(zip(graph.keys, explorer.weights(opened[0], graph.keys, ""), strict=True))
    assert set(found["uniform"].values()) == {1.0}
    for s, key in enumerate(graph.keys):
        assert found["reach"][key] == pytest.approx(reach[s] / (graph.visits[s] + 1))
        member, turn = min(
            ((t, n) for t in group.trajectories for n, k in enumerate(t.states_before) if k == key),
            key=lambda visit: (visit[1], visit[0].member),
        )
        listed = member.start_actions if turn == 0 else member.turns[turn - 1].next_actions
        (chances,) = action_logprobs(engine, policy.codec, [member.turns[turn].context], [listed])
        tried = {
            s.action
            for t in group.trajectories
            for k, s in zip(t.states_before, t.steps, strict=True)
            if k == key
        }
        untried = sum(np.exp(p) for a, p in chances.items() if a not in tried)
        assert found["policy"][key] == pytest.approx(reach[s] * untried, abs=1e-6)


def test_an_open_set_of_actions_has_no_probabilities():
    with pytest.raises(
        UnknownOption, match="--explore.where policy needs listed actions, which tstar/HotpotQA"
    ):
        sampled(config_of("hotpotqa", where="policy"), tasks_of("hotpotqa"))


def test_options_that_need_listed_actions_are_refused_before_anything_is_measured():
    for explore, said in (({"where": "policy"}, "use reach or uniform"), ({"credit": "graph"}, "use rows")):
        config = config_of("hotpotqa", **explore)
        with pytest.raises(UnknownOption, match=f"needs listed actions, which tstar/HotpotQA .*: {said}"):
            training_tasks(make_env(config), config)
        listed = config_of("sokoban-easy", **explore)
        assert training_tasks(make_env(listed), listed)
    without = dataclasses.replace(config, explore=dataclasses.replace(config.explore, share=0.0))
    assert training_tasks(make_env(without), without)


def test_collected_without_snapshots_nothing_can_be_played_on():
    from tstar_train.rollout.collect import play_on
    from tstar_train.rollout.player import Sampling

    policy, spec = policy_of("hotpotqa"), EnvSpec("hotpotqa", {"topk": 1})
    named = {"split": "train", "seed": "s", "sampling": Sampling(12)}
    played = collect(spec, LocalEngine(policy), policy.codec, tasks_of("hotpotqa", 1), size=1, **named)
    with pytest.raises(ValueError, match=r"collect them with Sampling\(snapshots=True\)"):
        play_on([(played[0], 0)], spec, LocalEngine(policy), policy.codec, **named)


def test_options_that_forks_need_are_set_or_named():
    config = make_config("sokoban-easy", explore={"share": 0.5})
    assert (config.tree.nodes, config.tree.values, config.tree.credit) == ("state", "bellman", "transition")
    ways = make_config("sokoban-easy", graft={"source": "way"})
    assert ways.tree.nodes == "state" and ways.graft.enabled and not ways.needs_reference
    check(config)
    check(ways)
    refused = {
        "needs the graph of states: give --tree.nodes state": {"tree.nodes": "depth"},
        "give --tree.values bellman, got mean": {"tree.values": "mean"},
        "needs T-STAR: give --tstar, or leave it out": {"tstar": False},
        "--tree.no-enabled turns off": {"tree.enabled": False},
    }
    for message, options in refused.items():
        with pytest.raises(UnknownOption, match=message):
            check(make_config("sokoban-easy", **{"explore.share": 0.5, **options}))
    for size, share, remedy in ((8, 0.1, "0.125 or more"), (3, 0.3, "0.334 or more"), (2, 0.5, "0,")):
        few = {"explore.share": share, "rollout.group_size": size}
        with pytest.raises(
            UnknownOption, match=rf"all {size} episodes begin at the start .*--explore.share {remedy}"
        ):
            check(make_config("sokoban-easy", **few))
    check(make_config("sokoban-easy", **{"explore.share": 0.334, "rollout.group_size": 3}))
    with pytest.raises(UnknownOption, match="choose another --algo than ppo, which has none"):
        check(make_config("sokoban-easy", **{"explore.share": 0.5, "algo": "ppo"}))
    with pytest.raises(UnknownOption, match=r"--tree.values bellman needs the graph of states"):
        check(make_config("sokoban-easy", **{"tree.values": "bellman", "tree.nodes": "depth"}))
    for wrong in ("half", None):
        with pytest.raises(UnknownOption, match=r"--explore.share must be a number"):
            check(make_config("sokoban-easy", **{"explore.share": wrong}))
    with pytest.raises(UnknownOption, match=r"--graft.source both needs the graph of states"):
        check(make_config("sokoban-easy", **{"graft.source": "both", "tree.nodes": "depth"}))
    with pytest.raises(UnknownOption, match=r"--graft.way-only needs ways to imitate"):
        check(make_config("sokoban-easy", **{"graft.way_only": True, "tree.nodes": "state"}))


def test_a_tree_of_equal_rewards_is_for_statistics_alone():
    """Of winners by ways of different length: with a discount their actions differ in value."""
    config = config_of("sokoban-easy", credit="graph")
    policy, (task,) = policy_of("sokoban-easy"), tasks_of("sokoban-easy", 1)
    spec, sampling = training_spec(config), training_sampling(config, 1.0)
    played = collect(
        spec, LocalEngine(policy), policy.codec, [task], size=3, split="train", seed="w", sampling=sampling
    )
    for trajectory in played:
        trajectory.episode.reward, trajectory.episode.ended = 1.0, "terminated"
    base = [np.ones(len(t.turns)) for t in played]
    for everywhere in (False, True):
        config = dataclasses.replace(
            config, tree=dataclasses.replace(config.tree, statistics_everywhere=everywhere)
        )
        tstar = TStar(config, LocalEngine(policy), policy.codec, spec, sampling)
        group = Group(played, horizon=8)
        (group.tree,) = tstar.trees([played], 0, KLWork())
        (chances,) = tstar.chances([group])
        assert (group.tree is not None) == everywhere
        assert not any(row.any() for row in tstar.value(group, base, chances))
    evenly = {s: dict.fromkeys(actions, 0.5) for s, actions in group.tree.graph.tried().items()}
    assert any(group.tree.graph.advantages_of_actions(evenly, 0.95, 8).values()), "else nothing is tested"


def test_a_stopped_fork_earned_what_is_expected_where_it_stopped():
    groups, _ = sampled(config_of("sokoban-easy"), tasks_of("sokoban-easy"))
    seen = 0
    for group in groups:
        for n, trajectory in enumerate(group.trajectories):
            trajectory.episode.reward, trajectory.episode.ended = float(n == 0), "terminated"
        group.tree = build_tree(
            group.members, None, nodes="state", start_key=group.trajectories[0].start_key, values="bellman"
        )
        graph = StateGraph(group.members, group.trajectories[0].start_key)
        value = dict(zip(graph.keys, graph.values(1.0), strict=True))
        for i, member in enumerate(group.members):
            stopped = member.fork is not None and member.fork.stopped
            seen += stopped
            wanted = value[member.steps[-1].state_key] if stopped else member.earned
            assert _earned(group, i) == pytest.approx(wanted)
    assert seen > 0


def test_anchors_of_forks_are_the_states_that_they_begin_in():
    groups, _ = sampled(config_of("sokoban-easy"), tasks_of("sokoban-easy"))
    for group in groups:
        task, start = group.trajectories[0].episode.task, group.trajectories[0].start_key
        for member in group.members:
            divergence = SimpleNamespace(worst_step=(member.member, 0))
            begun = member.states_before[0]
            assert anchor(group, divergence) == (task, "" if begun == start else begun)
    assert any(f.fork.state != g.trajectories[0].start_key for g in groups for f in g.forks)


def test_an_untried_first_turn_has_neither_penalty_nor_progress_credit():
    """It was chosen among several replies."""
    config = config_of("sokoban-easy", first="untried")
    options = {"progress_credit": 1.0, "revisit_penalty": 0.25, "invalid_penalty": 0.5}
    config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **options))
    groups, _ = sampled(config, tasks_of("sokoban-easy"))
    drawn, others = [], []
    for group in groups:
        group.advantages = [np.zeros(len(t.turns)) for t in group.members]
        for trajectory, rows in make_rows(config, [group]):
            own = [a for s in rows for a, m in zip(s.advantages, s.response_mask, strict=True) if m]
            first = len(trajectory.turns[0].reply)
            if trajectory.fork is not None:
                drawn += own[:first]
                others += own[first:]
    assert drawn and not any(drawn) and any(others)


@pytest.mark.parametrize("aggregation", ["episode-mean", "token-mean"])
def test_a_turn_of_a_fork_weighs_what_a_turn_from_the_start_does(aggregation):
    """Most forks are a single turn: each as an episode of its own, they would have nine tenths of the loss."""
    config = config_of("sokoban-easy")
    config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, aggregation=aggregation))
    groups, _ = sampled(config, tasks_of("sokoban-easy"))
    for group in groups:
        group.advantages = [np.zeros(len(t.turns)) for t in group.members]
        rows = [row for _, rows in make_rows(config, [group]) for row in rows]
        assert group.forks and len({row.weight for row in rows}) == 1
        tokens = sum(row.num_response_tokens for row in rows)
        whole = 6 if aggregation == "episode-mean" else tokens
        assert rows[0].weight * tokens == pytest.approx(whole)
        group.forks, group.advantages = [], group.advantages[: len(group.trajectories)]
        alone = [sum(s.weight * s.num_response_tokens for s in own) for _, own in make_rows(config, [group])]
        if aggregation == "episode-mean":
            assert alone == pytest.approx([1.0] * len(alone))


class Nothing(GRPO):
    """Takes all credit of tokens back."""

    def token_advantages(self, episodes, world):
        for _, rows in episodes:
            for sequence in rows:
                sequence.advantages = [0.0] * len(sequence.advantages)


def test_an_algorithms_own_credit_of_tokens_holds_in_every_optimizer_step():
    """The credit of actions is solved anew before each."""
    config = config_of("sokoban-easy", credit="graph")
    optim = dataclasses.replace(config.optim, num_minibatches=2)
    config = dataclasses.replace(config, optim=optim, iterations=2)
    norms = []
    for kind in (GRPO, Nothing):
        one = trainer(config, load_policy("tiny", "sokoban"), tasks_of("sokoban-easy"))
        one.algorithm = kind(config)
        norms.append(iterate(one, 0).metrics["base_gradient_norm"])
    assert norms[0] > 0 == norms[1]


@pytest.mark.parametrize(
    ("words", "share", "way_only"),
    [
        ("", 0.5, True),
        ("--no-tstar", 0.0, False),
        ("--algo ppo", 0.0, False),
        ("--tree.nodes depth", 0.0, False),
        ("--tree.values mean", 0.0, True),
        ("--tree.no-enabled", 0.0, True),
        ("--rollout.group-size 2", 0.0, True),
        ("--graft.source divergence", 0.5, False),
        ("--graft.loss surgical", 0.5, False),
        ("--graft.no-enabled", 0.5, False),
    ],
)
def test_what_a_preset_has_is_off_where_it_does_not_fit_what_was_asked(words, share, way_only):
    """Only what is asked for is refused."""
    options = {"explore.share": 0.5, "graft.source": "way", "graft.way_only": True}
    config = for_choices(make_config("sokoban-easy", **options), words.split())
    assert (config.explore.share, config.graft.way_only) == (share, way_only)
    check(tyro.cli(Config, default=config, args=words.split()))


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["torch", "deepspeed"])
def test_two_ranks_play_the_forks_of_one(tmp_path, learner):
    """The first iteration's episodes are the same, and with the credit of actions all ranks sync between optimizer steps."""
    if find_spec(learner) is None:
        pytest.skip(f"{learner} is not installed")
    words = (
        "--env sokoban-easy --explore.share 0.5 --explore.credit graph --graft.source way --rollout.tasks-per-iteration 2 "
        "--rollout.group-size 4 --rollout.horizon 8 --optim.num-minibatches 2 --evaluation.tasks 2 --evaluation.samples 1 "
        f"--evaluation.no-greedy --iterations 1 --learner {learner}"
    ).split()
    figures = ("reward", "turns_sampled", "tokens_sampled", "forks", "forks_stopped", "ways", "way_length")
    found = []
    for processes in ("1", "2"):
        out = tmp_path / processes
        command = [sys.executable, "-m", "tstar_train", *words, "--processes", processes, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
        metrics = json.loads((out / "metrics.jsonl").read_text())
        found.append([metrics[name] for name in figures])
    assert found[0] == found[1] and found[0][3] > 0


def test_a_group_whose_forks_all_failed_asks_a_dead_service_no_more():
    """Each group's first round with a search waits for the service once; the iteration ends, and names the error."""
    groups, _ = sampled(config_of("hotpotqa"), tasks_of("hotpotqa"))
    known = queries(t for g in groups for t in g.trajectories)
    handler = type("Handler", (CountingHandler,), {"known": frozenset(known)})
    with listening(handler) as url:
        config = over_http(url, first="untried")
        _, data = sampled(config, tasks_of("hotpotqa"))
    assert 0 < data.forks_failed <= 3 * len(groups) and "full" in data.fork_error
    merged = IterationData.merge([IterationData(), data, IterationData()])
    assert merged.fork_error == data.fork_error
