"""Runs on several environments and with curricula: their options, what they measure, and that a killed run comes out as a whole one."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from policies import random_policy, trainer
from rich.console import Console

from tstar_envs import UnknownOption, cluster_bootstrap, find_entry, registry
from tstar_train.__main__ import main
from tstar_train.agent import settings_seen
from tstar_train.build import measured_tasks, stream_of
from tstar_train.checkpoint import Progress, load_state, read_state, save_checkpoint, with_secrets
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.engines.local import LocalEngine
from tstar_train.evaluate import Measurement, by_environment, measure, paired_difference
from tstar_train.loop import iterate
from tstar_train.presets import make_config, option_for_each, read_shares
from tstar_train.rollout.collect import collect, play_on, training_specs
from tstar_train.rollout.player import Sampling
from tstar_train.rollout.stream import Slot
from tstar_train.run import resume_run, train
from tstar_train.stopping import hidden_options

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "kill_and_resume.py"
TWO = ["hotpotqa", "nq:0.5"]
IDS = ["tstar/HotpotQA", "tstar/NQ"]
TINY = {
    "iterations": 4,
    "processes": 1,
    "env_options": {"horizon": 2},
    "rollout": {"tasks_per_iteration": 3, "group_size": 2, "max_tokens": 8},
    "evaluation": {"tasks": 2, "samples": 1, "greedy": False},
    "tree.enabled": False,
    "graft.keep": 3,
}


def played(result):
    return [
        (t.episode.env, t.episode.task, turn.reply)
        for g in result.data.groups
        for t in g.members
        for turn in t.turns
    ]


@pytest.mark.parametrize("curriculum", ["none", "success"])
def test_a_run_on_two_environments_goes_on_from_its_checkpoint_as_if_nothing_had_happened(
    tmp_path, curriculum
):
    """Tasks, replies, weights and estimates are the same bit for bit; the slow test below kills whole runs."""
    config = make_config(TWO, curriculum=curriculum, **TINY, **{"rollout.horizon_growth": 1})
    whole, first = trainer(config, random_policy()), trainer(config, random_policy())
    results = [iterate(whole, number) for number in range(4)]
    for number in range(2):
        iterate(first, number)
        first.whole = True
    path = save_checkpoint(tmp_path, first, Progress(2), keep=1)
    state = read_state(path)
    assert ("estimates" in state) == (curriculum == "success")
    resumed = trainer(config, random_policy(seed=1))
    load_state(resumed, path)
    for number in (2, 3):
        result = iterate(resumed, number)
        assert played(result) == played(results[number])
        assert result.metrics == results[number].metrics
    assert resumed.estimates == whole.estimates and resumed.cursor == whole.cursor == 12
    for one, other in zip(resumed.policy.model.parameters(), whole.policy.model.parameters(), strict=True):
        assert torch.equal(one, other)
    if curriculum == "success":
        assert {env: len(tasks) for env, tasks in whole.estimates.by_env.items()} == dict(
            zip(IDS, (8, 4), strict=True)
        )
        state["estimates"][IDS[0]].popitem()
        (path / "state.json").write_text(json.dumps(state))
        with pytest.raises(Exception, match="was edited or is damaged"):
            read_state(path)


def test_groups_are_of_one_environment_with_its_own_horizon_and_metrics():
    config = make_config(TWO, **{**TINY, "env_options": {}, "rollout.horizon_growth": 1})
    own = dataclasses.replace(
        config, mix_options={IDS[1]: {"env_options": {"horizon": 3}, "training_options": {}}}
    )
    result = iterate(trainer(own, random_policy()), 3)  # a random policy plays to the horizon
    assert [(g.env, len({t.episode.task for t in g.members})) for g in result.data.groups] == [
        (IDS[0], 1),
        (IDS[1], 1),
        (IDS[0], 1),
    ]
    assert [g.trajectories[0].group for g in result.data.groups] == [0, 1, 2]
    found = result.metrics["by_env"]
    assert {env: part["groups"] for env, part in found.items()} == {IDS[0]: 2, IDS[1]: 1}
    assert (found[IDS[0]]["episode_length"], found[IDS[1]]["episode_length"]) == (6, 3)
    assert result.metrics["episode_length"] == 5 and result.metrics["curriculum_progress"] == 1.0


def test_episodes_of_several_environments_are_played_on_together_as_each_alone():
    config, policy = make_config(TWO, **TINY), random_policy()
    engine, sampling = LocalEngine(policy), Sampling(8, 1.0, snapshots=True)
    specs = training_specs(config, 1.0)
    points = []
    for task in ("hotpotqa-mini-train-0000", "nq-mini-train-0000", "hotpotqa-mini-train-0001"):
        env = IDS["nq" in task]
        options = {"size": 1, "split": "train", "seed": "s", "sampling": sampling}
        points += [(t, 1) for t in collect(specs[env], engine, policy.codec, [task], **options)]

    def ends(points, spec, seed):
        found = play_on(points, spec, engine, policy.codec, split="train", seed=seed, sampling=sampling)
        return [(t.episode.env, t.episode.task, [turn.reply for turn in t.turns]) for t in found]

    together = ends(points, specs, "more")
    assert [end[:2] for end in together] == [(t.episode.env, t.episode.task) for t, _ in points]
    for env, places in ((IDS[0], (0, 2)), (IDS[1], (1,))):
        alone = ends([points[n] for n in places], specs[env], f"more/{env}")
        assert alone == [together[n] for n in places] and all(len(end[2]) == 2 for end in alone)


def test_each_environment_is_measured_by_itself_and_together():
    config = make_config(TWO, **TINY)
    tasks, validated = measured_tasks(config)
    assert [slot.env for slot in tasks] == [IDS[0]] * 2 + [IDS[1]] * 2 and not validated
    whole = measure(trainer(config, random_policy()), tasks)
    alone = measure(trainer(config.of(IDS[1]), random_policy()), [slot.task for slot in tasks[2:]])
    assert whole.by_env()[IDS[1]].per_task == alone.per_task and whole.envs == [slot.env for slot in tasks]


def test_means_are_over_environments_however_many_tasks_each_has():
    one, other = Measurement([1.0, 0.0, None, 1.0], []), Measurement([0.0, 0.0], [])
    before = Measurement.joined(dict(zip(IDS, (one, other), strict=True)))
    after = dataclasses.replace(before, per_task=[1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    assert before.mean == pytest.approx((2 / 3 + 0) / 2) and before.greedy is None
    difference, low, high = paired_difference(before, after)
    assert difference == pytest.approx((1 / 3 + 1 / 2) / 2) and low < difference < high
    found = by_environment(make_config(TWO), before, after)
    assert found[IDS[0]]["difference"] == pytest.approx(1 / 3) and found[IDS[1]]["weight"] == 0.5
    assert (found[IDS[1]]["ci_low"], found[IDS[1]]["ci_high"]) == cluster_bootstrap([[0.0], [1.0]])
    record = json.loads(json.dumps(before.report()))
    assert Measurement.from_report(record, tasks=None) == before
    assert record["by_env"][IDS[0]]["mean"] == pytest.approx(2 / 3)
    assert "envs" not in one.report() and "by_env" not in one.report()


@pytest.fixture
def own_forgotten(monkeypatch):
    """Forget the environments that a test registers."""
    monkeypatch.setattr(registry, "OWN_ENTRIES", {})
    monkeypatch.delitem(sys.modules, "own_lamps", raising=False)
    before = set(gym.registry)
    yield
    sys.modules.pop("own_lamps", None)
    for added in set(gym.registry) - before:
        del gym.registry[added]


@pytest.mark.usefixtures("own_forgotten")
def test_weights_and_environments_are_read_and_refused():
    shares = read_shares(["hotpotqa", "tstar/NQ:0.5", "own_lamps:mine/lamps", "webshop:3"])
    assert [(s.entry.id, s.weight) for s in shares] == [
        ("tstar/HotpotQA", 1.0),
        ("tstar/NQ", 0.5),
        ("own_lamps:mine/Lamps", 1.0),
        ("tstar/WebShop", 3.0),
    ]
    # "lamps" is the short name of what own_lamps has registered, and here a module that cannot be imported.
    with pytest.raises(UnknownOption, match="import"):
        read_shares(["lamps:mine/Other"])
    for given, said in (
        (["lamps:0,5"], "must be a number, got '0,5'"),
        (["nq:0"], "must be a finite number above 0, got 0"),
        (["nq:nan"], "above 0, got nan"),
        (["nq:inf"], "above 0, got inf"),
        (["nq:0,5"], "must be a number, got '0,5'"),
        (["tstar/NQ:"], "must be a number, got ''"),
        (["nq", "tstar/NQ:2"], "tstar/NQ is given twice"),
    ):
        with pytest.raises(UnknownOption, match=said):
            read_shares(given)


def test_one_environment_is_a_run_as_ever():
    assert make_config(["nq"]) == make_config("nq") and make_config("nq").mix == {}
    config = make_config("nq")
    assert config.of(config.env) is config and config.environments == ["tstar/NQ"]


def test_a_built_in_policy_must_play_all():
    config = make_config(TWO)
    assert (
        config.model == "tiny"
        and config.env == IDS[0]
        and config.mix == dict(zip(IDS, (1.0, 0.5), strict=True))
    )
    assert config.optim.learning_rate == make_config("nq").optim.learning_rate, (
        "the preset of the policy that plays both"
    )
    assert make_config(TWO, model="Qwen/any").model == "Qwen/any"
    for envs in (["hotpotqa", "sokoban-easy"], ["sokoban-easy", "sokoban-hard"]):
        with pytest.raises(UnknownOption, match="no built-in policy plays all of .*--model PATH"):
            make_config(envs)
    with pytest.raises(UnknownOption, match="for evaluation only"):
        make_config(["nq", "popqa"])


def test_options_go_to_all_environments_that_have_them_or_to_one():
    entries = [find_entry(name) for name in ("sokoban-easy", "blocksworld-stack")]
    found = option_for_each(
        entries,
        "--env-option",
        [
            "horizon=9",
            "blocksworld-stack:horizon=7",
            "names=mystery",
            "tstar/Sokoban-easy:observation=grid_coords",
        ],
    )
    assert found == {
        "tstar/Sokoban-easy": {"horizon": 9, "observation": "grid_coords"},
        "tstar/Blocksworld-stack": {"horizon": 7, "names": "mystery"},
    }
    for pair, said in (
        ("nq:topk=1", "nq is no environment of this run, which has sokoban-easy, blocksworld-stack"),
        ("topk=1", "has no option 'topk'"),
        ("blocksworld-stack:multi_action=true", "tstar/Blocksworld-stack has no option"),
        ("split=test", "use --split test"),
    ):
        with pytest.raises(UnknownOption, match=said):
            option_for_each(entries, "--env-option", [pair], {"split": "--split"})
    # A colon of the value is no name.
    assert option_for_each([find_entry("nq")], "--env-option", ["retriever=http://h:1"]) == {
        "tstar/NQ": {"retriever": "http://h:1"}
    }
    with pytest.raises(UnknownOption, match="none of tstar/HotpotQA, tstar/NQ has the option 'names'"):
        make_config(TWO, env_options={"names": "mystery"})


def test_secrets_of_further_environments_are_in_no_file_and_given_again(tmp_path):
    config = make_config(TWO)
    config = dataclasses.replace(
        config,
        mix_options={
            IDS[1]: {"env_options": {"retriever": "http://me:secret@host:1"}, "training_options": {}}
        },
    )
    (tmp_path / "config.json").write_text(config.to_json())
    assert "secret" not in (tmp_path / "config.json").read_text()
    stored = Config.from_json(tmp_path / "config.json")
    assert stored.mix == config.mix
    with pytest.raises(UnknownOption, match="give them again"):
        with_secrets(stored, {}, tmp_path)
    [name, pair] = hidden_options(stored)
    assert name == "--env-option" and pair.startswith("tstar/NQ:retriever=")
    again = {"env_options": [f"tstar/NQ:retriever={config.mix_options[IDS[1]]['env_options']['retriever']}"]}
    assert with_secrets(stored, again, tmp_path) == config
    with pytest.raises(UnknownOption, match="takes no others"):
        with_secrets(stored, {"env_options": ["nq:topk=3"]}, tmp_path)


def test_an_agent_of_such_a_run_plays_with_the_options_of_its_environment(tmp_path):
    config = make_config(
        ["sokoban-easy", "sokoban-medium"], model="any", env_options={"observation": "grid_coords"}
    )
    options = {"env_options": {"observation": "grid"}, "training_options": {}}
    config = dataclasses.replace(config, mix_options={"tstar/Sokoban-medium": options})
    (tmp_path / "best-sokoban-medium").mkdir()
    (tmp_path / "best-sokoban-medium" / "state.json").write_text("{}")
    (tmp_path / "config.json").write_text(config.to_json())
    seen = {
        name: settings_seen(str(tmp_path / "best-sokoban-medium"), find_entry(name)).options.get(
            "observation"
        )
        for name in ("sokoban-easy", "sokoban-medium", "sokoban-hard", "blocksworld-stack")
    }
    assert list(seen.values()) == ["grid_coords", "grid", "grid_coords", None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"rollout.horizon_growth": 20},
            "--rollout.horizon-growth 20 is where the horizon begins, .* at most 20",
        ),
        ({"rollout.horizon_growth": 3, "env_options": {"horizon": "optimal*2"}}, "counts steps"),
        ({"curriculum_until": 0.0}, "--curriculum-until must be above 0"),
        ({"curriculum": "luck"}, "--curriculum must be one of none, success, optimum"),
    ],
)
def test_what_does_not_fit_is_refused(options, said):
    with pytest.raises(UnknownOption, match=said):
        check(make_config("sokoban-easy", **options))


def test_weights_that_do_not_fit_are_refused():
    config = make_config(TWO)
    with pytest.raises(UnknownOption, match="environments of mix_options"):
        check(dataclasses.replace(config, mix_options={}))
    with pytest.raises(
        UnknownOption, match="--env tstar/NQ: the weight must be a finite number above 0, got 0"
    ):
        check(dataclasses.replace(config, mix={**config.mix, "tstar/NQ": 0}))


def test_the_command_says_what_is_played(tmp_path, capsys):
    arguments = "--env blocksworld-stack --env blocksworld-unstack:0.5 --curriculum optimum --rollout.horizon-growth 10 --train-tasks 64"
    assert main([*arguments.split(), "--env-option", "blocksworld-unstack:horizon=30", "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "environments: blocksworld-stack 66.7%, blocksworld-unstack 33.3% of the tasks (--env)" in printed
    assert "from the shortest optimal solution to all after 50% of the run (--curriculum-until)" in printed
    assert "horizon: from 10 steps to the full one" in printed
    assert "tasks: the same 64 of the split (--train-tasks)" in printed
    assert main(["--env", "nq", "--curriculum", "optimum", "--dry-run"]) == 2
    assert "--curriculum optimum orders tasks by" in capsys.readouterr().err


def test_streams_of_one_environment_stay_what_they_were():
    config = make_config("nq", rollout={"tasks_per_iteration": 3})
    assert all(isinstance(task, str) and not isinstance(task, Slot) for task in stream_of(config).take(0, 5))
    own = dataclasses.replace(config, curriculum="success")
    assert own.mix == {} and own.environments == ["tstar/NQ"] and hasattr(stream_of(own), "at")


def test_a_short_name_is_the_same_environment():
    """Episodes are known by the id, whatever name the options have."""
    options = {**TINY, "tree.nodes": "depth"}  # as of several environments together
    config = dataclasses.replace(make_config("hotpotqa", curriculum="success", **options), env="hotpotqa")
    one = trainer(config, random_policy())
    for number in range(2):
        iterate(one, number)
        one.whole = True
    assert list(one.estimates.by_env) == [IDS[0]] and len(one.estimates.by_env[IDS[0]]) == 6
    [slot] = one.stream.at(6, 0.0, one.estimates).take(6, 1)
    assert slot.env == IDS[0]


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def killed_and_resumed(config, out):
    """A run that ends after its third iteration as if it had been killed, and goes on."""

    def stop(number, metrics):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, out, Console(quiet=True), callback=stop)
    shutil.rmtree(out / "checkpoints" / "000003")  # an interrupted run saves it, a killed one does not
    resume_run(out, Console(quiet=True))


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "ahead"), [(1, 0), (2, 0), (3, 0), (1, 1)])
def test_a_killed_run_with_a_curriculum_comes_out_as_a_whole_one(tmp_path, processes, ahead):
    """Every line, record and file of the checkpoints; the report shows each environment."""
    config = make_config(
        ["sokoban-easy", "sokoban-medium:0.5"],
        curriculum="success",
        iterations=4,
        processes=processes,
        checkpoint_every=1,
        keep_checkpoints=1,
        env_options={"horizon": 6},
        rollout={"tasks_per_iteration": 6, "group_size": 3, "horizon_growth": 2, "ahead": ahead},
        evaluation={"tasks": 2, "samples": 1, "greedy": False, "validate_every": 2, "validation_tasks": 2},
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(config, whole, Console(quiet=True))
    killed_and_resumed(config, killed)
    assert runpy.run_path(str(SCRIPT))["first_difference"](whole, killed) is None
    state = json.loads((whole / "checkpoints" / "000004" / "state.json").read_text())
    assert sum(len(tasks) for tasks in state["estimates"].values()) > 6
    assert {p.name for p in whole.glob("best*")} == {"best", "best-sokoban-easy", "best-sokoban-medium"}
    summary = json.loads((whole / "summary.json").read_text())
    parts = summary["by_env"].values()
    assert summary["after"] == pytest.approx(sum(part["after"] for part in parts) / 2)
    page = (whole / "report.html").read_text()
    assert (
        page.count("tstar/Sokoban-medium") > 3
        and "By environment" in page
        and "Success in training by environment" in page
    )
