"""One iteration, what is measured around it, and the files that it leaves."""

from __future__ import annotations

import dataclasses
import errno
import json
import resource

import numpy as np
import pytest
import torch
from policies import HOTPOT, Given, random_policy, trainer
from rich.console import Console

from tstar_envs import BadData, UnknownOption, UnknownTask, find_entry
from tstar_envs.evaluation.runner import play_episode
from tstar_train import evaluate
from tstar_train.build import make_env
from tstar_train.checkpoint import (
    BadCheckpoint,
    Progress,
    latest_checkpoint,
    load_state,
    read_state,
    save_checkpoint,
)
from tstar_train.config import Config, DAPOConfig, EvaluationConfig, GraftConfig, RolloutConfig, TreeConfig
from tstar_train.distributed import SingleProcess, launched
from tstar_train.engines.local import LocalEngine
from tstar_train.evaluate import Measurement, measure, paired_difference, play_held_out, summarized
from tstar_train.learner.reference import CopiedReference
from tstar_train.learner.torch import TorchLearner
from tstar_train.loop import iterate
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny, with_algorithm
from tstar_train.ranks import run_on_all_ranks
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.collect import EnvSpec, collect
from tstar_train.rollout.player import Sampling
from tstar_train.run import resume_run, train
from tstar_train.tracking import RunFolder

SMALL = Config(
    env="tstar/HotpotQA",
    iterations=2,
    env_options={"topk": 1},
    rollout=RolloutConfig(tasks_per_iteration=2, group_size=4, max_tokens=8),
    tree=TreeConfig(kl_samples=3, statistics_everywhere=True),
    graft=GraftConfig(),
)


@pytest.mark.slow
def test_dynamic_sampling_ends_with_the_episodes_that_it_sampled(tmp_path):
    """Groups that are dropped cost episodes as well: at equal episodes DAPO has fewer iterations."""
    config = dataclasses.replace(
        tiny(HOTPOT),
        iterations=50,
        episodes=64,
        processes=1,
        evaluation=EvaluationConfig(tasks=2, samples=1, greedy=False),
    )
    config = with_algorithm(
        dataclasses.replace(
            config,
            rollout=dataclasses.replace(config.rollout, tasks_per_iteration=4, group_size=4),
            tstar=False,
        ),
        "dapo",
    )
    summary = train(config, tmp_path / "run", Console(quiet=True)).summary
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    sampled = [4 * row["played_tasks"] for row in metrics]
    assert sum(sampled[:-1]) < 64 <= sum(sampled) and any(row["dropped_groups"] for row in metrics)
    assert summary["iterations"] == len(metrics) < 6 and summary["episodes"] < sum(sampled)
    with pytest.raises(UnknownOption, match="ended by --episodes 64"):
        resume_run(tmp_path / "run", Console(quiet=True), 60)


class Buyers:
    """Plays by the expert's advice; at temperature 1 it buys without choosing options."""

    def play(self, trainer, tasks, split, samples, temperature, purpose, on_turn=None):
        entry = find_entry("webshop")
        self.env, self.temperature = entry.load_class()(data="mini", split=split), temperature
        return [
            play_episode(self.env, entry, self, name="n", task=task, sample=n)
            for task in tasks
            for n in range(samples)
        ]

    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        reply = self.env.oracle()
        return "click[buy now]" if self.temperature and "(not chosen)" in observation else reply


def test_where_success_is_not_the_reward_both_are_measured(monkeypatch):
    env = find_entry("webshop").load_class()(data="mini", split="valid")
    tasks = env.task_ids()[::9]
    monkeypatch.setattr(evaluate, "play_held_out", Buyers().play)
    config = dataclasses.replace(
        SMALL, evaluation=EvaluationConfig(split="valid", tasks=len(tasks), samples=2)
    )
    measured = measure(trainer(config, random_policy()), tasks)
    plain = [not env.reset(options={"task": task})[0].count(", in ") for task in tasks]
    assert measured.solved_per_task == plain and 0 < measured.success == np.mean(plain) < 1
    assert measured.success < measured.mean < 1 == measured.greedy == measured.greedy_success
    assert Measurement.from_report(json.loads(json.dumps(measured.report()))) == measured
    old = {name: value for name, value in measured.report().items() if "solved" not in name}
    assert Measurement.from_report(old).success is None
    summary = summarized(Config(env="webshop"), measured, measured, Progress(), 1.0)
    assert (summary["metric"], summary["after"], summary["greedy_success_after"]) == (
        "score",
        measured.mean,
        1.0,
    )
    assert summary["success_before"] == summary["success_after"] == measured.success
    assert "success_after" not in summarized(SMALL, measured, measured, Progress(), 1.0)


@pytest.mark.parametrize(
    ("env", "fact"), [("alfworld", "task_type"), ("hotpotqa", "kind"), ("musique", "kind")]
)
def test_a_measurement_names_each_tasks_kind(env, fact):
    played = find_entry(env).load_class()(**find_entry(env).kwargs, data="mini", split="valid")
    tasks = played.task_ids()[:6]
    evaluation = EvaluationConfig(split="valid", tasks=len(tasks), samples=1)
    config = dataclasses.replace(SMALL, env=env, env_options={"horizon": 1}, evaluation=evaluation)
    measured = measure(trainer(config, random_policy()), tasks)
    assert measured.kinds == [played.reset(options={"task": task})[1][fact] for task in tasks]
    assert sum(row["tasks"] for row in measured.by_kind().values()) == 6


def test_a_score_of_webshop_in_training_names_its_tagger():
    policy = random_policy()
    spec = EnvSpec("webshop", {"data": "mini", "horizon": 2})
    played = collect(
        spec,
        LocalEngine(policy),
        policy.codec,
        ["webshop-00-00"],
        size=2,
        split="train",
        seed="t",
        sampling=Sampling(4),
    )
    assert [t.episode.extra["tagger"] for t in played] == ["lexicon-1"] * 2


def test_paired_difference_is_by_task():
    before, after = Measurement([0.0, 0.5, 1.0], [0, 0, 1]), Measurement([0.25, 0.75, 1.25], [0, 1, 1])
    difference, low, high = paired_difference(before, after)
    assert np.allclose(
        [difference, low, high], 0.25
    )  # equal differences have no spread, whatever the spread of the tasks


def test_cut_drops_what_came_after_a_checkpoint(tmp_path):
    folder = RunFolder(tmp_path, SMALL)
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2}\n{"iteration": 3}\n{"iter')
    first, later = (
        '{"extra": {"iteration": 1}}\n',
        '{"extra": {"iteration": 2}}\n{"extra": {"iteration": 3}}\n',
    )
    (tmp_path / "episodes.jsonl").write_text(later)
    (tmp_path / "trees" / "0002.json").write_text("{}")
    (tmp_path / "trees" / "0003.json").write_text("{}")
    with pytest.raises(BadData, match="does not hold iterations 1 to 2"):
        folder.cut(2)
    assert (tmp_path / "episodes.jsonl").read_text() == later, "nothing is changed then"
    (tmp_path / "episodes.jsonl").write_text(first + later)
    folder.cut(2)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"iteration": 1}\n{"iteration": 2}\n'
    assert (tmp_path / "episodes.jsonl").read_text() == first + '{"extra": {"iteration": 2}}\n'
    assert [p.name for p in (tmp_path / "trees").iterdir()] == ["0002.json"]


def test_an_iteration_that_dropped_every_group_has_no_episodes_to_miss(tmp_path):
    """All replies alike, however often DAPO played: nothing is learnt, and nothing shown."""
    one = small(
        with_algorithm(
            dataclasses.replace(SMALL, env_options={"topk": 1, "horizon": 1}, dapo=DAPOConfig(rounds=2)),
            "dapo",
        )
    )
    folder = RunFolder(tmp_path, one.config)
    for number in (1, 2):
        folder.log(number, iterate(one, number - 1), 1.0)
    metrics = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line)["dropped_groups"] for line in metrics.splitlines()] == [4, 4] and not (
        tmp_path / "episodes.jsonl"
    ).exists()
    folder.cut(2)
    assert (tmp_path / "metrics.jsonl").read_text() == metrics
    metrics += '{"iteration": 3, "reward": 0.0}\n{"iteration": 4, "reward": null, "failed_episodes": 1}\n'
    (tmp_path / "metrics.jsonl").write_text(metrics)
    with pytest.raises(BadData, match=r"episodes.jsonl is missing"):
        folder.cut(3)
    (tmp_path / "episodes.jsonl").write_text('{"extra": {"iteration": 3}}\n')
    folder.cut(3)
    with pytest.raises(BadData, match=r"metrics.jsonl does not hold iterations 1 to 4"):
        folder.cut(4)
    (tmp_path / "metrics.jsonl").write_text(metrics)
    with pytest.raises(BadData, match=r"episodes.jsonl does not hold the 2 iterations with episodes"):
        folder.cut(4)


TASKS = [f"hotpotqa-mini-train-{n:04d}" for n in range(6)]


def small(config=SMALL, tasks=2, world=None):
    return trainer(config, random_policy(spread=0.02), TASKS[:tasks], world)


def weights(one):
    return torch.cat([p.detach().flatten() for p in one.policy.model.parameters()])


def test_zero_variance_changes_nothing():
    one = small()
    before = weights(one)
    result = iterate(one, 0)
    assert result.metrics["zero_variance_groups"] == 1.0 and result.metrics["grafts"] == 0
    assert (
        result.metrics["tree_nodes_before"] > 0
    )  # statistics_everywhere: trees of equal rewards are in the figures
    assert torch.equal(weights(one), before)


def test_a_disk_that_fills_at_a_checkpoint_is_reported_and_the_one_before_stays(tmp_path):
    one = small()
    save_checkpoint(tmp_path, one, Progress(1, 2.0, 8, 3.0), keep=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))  # a write beyond fails, as on a full disk
    try:
        with pytest.raises(OSError, match="could not be written") as caught:
            save_checkpoint(tmp_path, one, Progress(2, 4.0, 16, 6.0), keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.ENOSPC
    newest = latest_checkpoint(tmp_path)
    assert Progress.of(read_state(newest)) == Progress(1, 2.0, 8, 3.0)
    load_state(one, newest)
    save_checkpoint(tmp_path, one, Progress(2, 4.0, 16, 6.0), keep=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000001", "000002"]


def test_a_checkpoint_with_a_damaged_state_is_named(tmp_path):
    one = small()
    path = save_checkpoint(tmp_path, one, Progress(1), keep=2)
    good = json.loads((path / "state.json").read_text())
    for text in ("[]", "{", json.dumps({k: v for k, v in good.items() if k != "grafted"})):
        (path / "state.json").write_text(text)
        with pytest.raises(BadCheckpoint, match="delete it to resume"):
            read_state(path)


@pytest.mark.slow
def test_only_divergences_that_got_a_graft_are_remembered():
    config = dataclasses.replace(
        SMALL,
        rollout=RolloutConfig(tasks_per_iteration=6, group_size=6, max_tokens=48),
        graft=GraftConfig(verify=True, fallback="none"),
    )
    one = trainer(config, load_policy("tiny", "search_qa"), TASKS)
    played = iterate(one, 0).data
    found = sum(len(g.divergences) for g in played.groups)
    assert 0 < len(one.grafted) <= len(played.grafts.kept) < found


SHARED = dataclasses.replace(
    SMALL, rollout=dataclasses.replace(SMALL.rollout, tasks_per_iteration=2, invalid_penalty=0.5)
)


def second_rank(world):
    """What the other rank does in the test below: the same."""
    other = small(SHARED, 2, world)
    iterate(other, 0)
    other.stream = Given([TASKS[0], "nowhere"])
    iterate(other, 1)


@pytest.mark.usefixtures("start_method")
def test_ranks_share_one_result_and_what_fails_on_one_is_raised_by_all():
    alone = small(SHARED)
    first = iterate(alone, 0)
    with launched(2, second_rank, 5.0) as world:
        shared = small(SHARED, 2, world)
        second = iterate(shared, 0)
        assert [t.episode for g in first.data.groups for t in g.trajectories] == [
            t.episode for g in second.data.groups for t in g.trajectories
        ]
        assert first.metrics["gradient_norm"] > 0
        assert second.metrics["gradient_norm"] == pytest.approx(first.metrics["gradient_norm"], rel=1e-4)
        assert second.metrics["base_gradient_norm"] == pytest.approx(
            first.metrics["base_gradient_norm"], rel=1e-4
        )
        torch.testing.assert_close(weights(alone), weights(shared), atol=1e-5, rtol=0)
        shared.stream = Given([TASKS[0], "nowhere"])
        with pytest.raises(UnknownTask, match="no task 'nowhere'"):
            iterate(shared, 1)


def longest(trajectories_or_episodes):
    return max(len(t.steps) for t in trajectories_or_episodes)


def test_what_draws_from_torch_draws_alike_however_a_process_came_to_an_iteration():
    drawn = []
    for before in (1, 2):
        one = trainer(SMALL, random_policy())
        torch.manual_seed(before)
        run_on_all_ranks(one, "measure", [])
        drawn.append(torch.rand(1).item())
        one.cursor += SMALL.rollout.tasks_per_iteration
        run_on_all_ranks(one, "measure", [])
        drawn.append(torch.rand(1).item())
    assert drawn[:2] == drawn[2:] and drawn[0] != drawn[1]


def test_training_episodes_may_be_shorter_than_those_of_the_evaluation():
    for horizon, wanted in ((2, 2), (20, 6)):
        config = dataclasses.replace(
            SMALL, rollout=dataclasses.replace(SMALL.rollout, tasks_per_iteration=1, horizon=horizon)
        )
        one = small(config, 1)
        assert longest(t for g in iterate(one, 0).data.groups for t in g.trajectories) == wanted
    assert longest(play_held_out(one, TASKS[:1], "train", 4, 1.0, "x")) == 6


@pytest.mark.slow
def test_options_of_training_alone_are_no_options_of_the_evaluation():
    config = dataclasses.replace(
        tiny(find_entry("sokoban-hard")),
        rollout=RolloutConfig(tasks_per_iteration=1, group_size=6, max_tokens=48, context="step"),
    )
    assert config.training_options == {"end_when_lost": True}
    policy = load_policy("tiny", policy_name(find_entry("sokoban-hard")))
    config = dataclasses.replace(config, tstar=False, env_options={**config.env_options, "horizon": 25})
    tasks = make_env(config).task_ids("train")[:1]
    one = trainer(config, policy, tasks)
    trained = [t.episode for g in iterate(one, 0).data.groups for t in g.trajectories]
    early = [e for e in trained if e.ended == "terminated" and not e.success]
    assert early and all(len(e.steps) < 25 for e in early), "hard levels are lost by a push sooner or later"
    assert all(e.success or len(e.steps) == 25 for e in play_held_out(one, tasks, "train", 1, 1.0, "x"))


def test_reference_follows_by_alpha():
    model, reference = random_policy(0).model, random_policy(1).model
    start, target = next(reference.parameters()).clone(), next(model.parameters())
    TorchLearner(
        model, CopiedReference(model, reference), SingleProcess(), learning_rate=0.1, alpha=0.9
    ).end_iteration()
    torch.testing.assert_close(next(reference.parameters()), 0.9 * start + 0.1 * target)
