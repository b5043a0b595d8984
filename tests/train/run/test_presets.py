"""Where a run's defaults come from, and which of them a choice on the command line brings along."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import tyro
from policies import HOTPOT, random_policy

from tstar_envs import UnknownOption, find_entry, list_envs
from tstar_train import make_config
from tstar_train.__main__ import main
from tstar_train.cli import for_choices
from tstar_train.config import Config, GraftConfig
from tstar_train.config_check import check
from tstar_train.policy.model import save_tiny
from tstar_train.presets import choose, tiny


def test_config_round_trip(tmp_path):
    config = dataclasses.replace(tiny(HOTPOT), seed=3, graft=GraftConfig(surgical_weight=0.2))
    (tmp_path / "config.json").write_text(config.to_json())
    assert Config.from_json(tmp_path / "config.json") == config
    record = json.loads(config.to_json()) | {"unknown": 1}
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(UnknownOption, match="unknown"):
        Config.from_json(tmp_path / "config.json")


def test_presets_say_what_they_chose():
    config, reason = choose(HOTPOT, "some/model")
    assert (
        config.graft.surgical_weight == 0.15
        and config.tree.gamma == 0.99
        and config.tree.kl_samples == 16
        and config.rollout.horizon == 20
    )
    assert config.optim.learning_rate == 5e-6 and "paper" in reason
    assert choose(HOTPOT, "auto")[0].model == "tiny"


def test_a_checkpoint_of_the_tiny_policy_gets_the_tiny_preset(tmp_path):
    policy = random_policy()
    save_tiny(policy.model, policy.tokenizer, tmp_path)
    config, reason = choose(HOTPOT, str(tmp_path))
    assert config == dataclasses.replace(tiny(HOTPOT), model=str(tmp_path)) and str(tmp_path) in reason


@pytest.mark.parametrize("model", ["auto", "some/model"])
def test_nodes_by_state_bring_their_discount_and_no_grafts(model):
    preset, _ = choose(find_entry("sokoban-easy"), model)
    words = ["--tree.nodes", "state"]
    by_state = for_choices(preset, words)
    assert (by_state.tree.nodes, by_state.tree.gamma, by_state.graft.enabled) == ("state", 0.95, False)
    assert tyro.cli(Config, default=by_state, args=[*words, "--graft.enabled"]).graft.enabled
    assert for_choices(preset, ["--tree.nodes", "depth"]) == preset and preset.graft.enabled


def test_from_a_preset_by_state_one_option_leads_to_the_papers_reading():
    hotpot, preset = (choose(find_entry(env), "auto")[0] for env in ("hotpotqa", "blocksworld-stack"))
    for one in (hotpot, preset):
        assert (one.tree.nodes, one.tree.credit, one.tree.values) == ("state", "transition", "bellman")
    assert not hotpot.graft.enabled and not hotpot.forks
    assert preset.imitates_ways and preset.forks
    papers = for_choices(preset, ["--tree.nodes", "depth"])
    assert (papers.tree.nodes, papers.tree.credit, papers.tree.gamma) == ("depth", "value", 1.0)
    assert (papers.tree.values, papers.graft.source, papers.explore.share) == ("mean", "divergence", 0.0)
    tiny = [choose(entry, "tiny")[0].tree for entry in list_envs() if "train" in entry.splits]
    assert {tree.gamma for tree in tiny if tree.nodes == "depth"} == {papers.tree.gamma}
    assert papers.graft.enabled and papers.graft.surgical_weight == preset.graft.surgical_weight
    assert for_choices(preset, []) == for_choices(preset, ["--tree.nodes", "state"]) == preset
    assert for_choices(hotpot, ["--tree.nodes", "depth"]).graft.enabled
    plain = for_choices(preset, ["--no-tstar"])
    assert not plain.explore.share, "forks are T-STAR's"


IGNORED = {
    "--no-tstar --graft.source way": "--graft.source way needs T-STAR: give --tstar, or leave --graft.source out",
    "--algo ppo --graft.source way": "needs T-STAR: choose another --algo than ppo",
    "--no-tstar --tree.values bellman": "--tree.values bellman needs T-STAR",
    "--no-tstar --graft.way-only": "--graft.way-only needs T-STAR",
    "--graft.source way --graft.no-enabled": "--graft.source way needs grafts: leave out --graft.no-enabled",
    "--tree.no-enabled --tree.values bellman --graft.source way": "--tree.values bellman needs values: leave out --tree.no-enabled",
    "--tree.no-enabled --tree.credit value": "--tree.credit value needs the tree's credit",
    "--tree.nodes depth --graft.no-surgical --graft.keep all": "--graft.keep all needs the surgical loss",
    "--tree.nodes state --graft.way-weight 3": "--graft.way-weight 3 needs ways to imitate: give --graft.source way",
    "--tree.nodes depth --graft.loss surgical": "--graft.loss surgical needs ways: give --graft.source way",
    "--graft.source way --graft.keep all": "--graft.keep all needs grafted thoughts: give --graft.source both",
    "--graft.source way --graft.verify": "--graft.verify needs grafted thoughts",
    "--tree.nodes depth --graft.keep iteration --graft.batch 32": "--graft.batch 32 needs a set that is kept",
    "--tree.nodes state --explore.first untried": "--explore.first untried needs forks: give --explore.share 0.5",
    "--explore.share 0 --explore.where policy": "--explore.where policy needs forks",
    "--explore.share 0.5 --explore.credit graph --explore.weights reach": "--explore.weights reach needs credit by turns",
    "--explore.share 0.5 --explore.credit graph --tree.credit value": "--tree.credit value needs credit by turns",
}


@pytest.mark.parametrize("words", IGNORED)
def test_what_would_be_ignored_is_refused_where_it_was_asked_for(words):
    """From Python as on the command line, and whatever the preset has."""
    given: dict[str, object] = {}
    for word in words.split():
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            last = name.rpartition(".")[2]
            on = not last.startswith("no_")
            given[name if on else name.replace("no_", "")] = on
        else:
            given[name] = json.loads(word) if word[0].isdigit() else word
    for env in ("hotpotqa", "sokoban-easy"):
        with pytest.raises(UnknownOption, match=re.escape(IGNORED[words])):
            for_choices(choose(find_entry(env), "auto")[0], words.split())
        with pytest.raises(UnknownOption, match=re.escape(IGNORED[words])):
            make_config(env, **given)


def test_the_command_line_says_it_once_and_shows_its_help(capsys):
    """Underscores are read as well; a missing value is reported by the trainer's own parser; help is never refused."""
    preset = choose(find_entry("sokoban-easy"), "auto")[0]
    with pytest.raises(UnknownOption, match=r"--graft.way-weight 3 needs ways"):
        for_choices(preset, ["--graft.way_weight=3"])
    with pytest.raises(UnknownOption, match=r"leave out --graft.no-enabled"):
        for_choices(preset, ["--graft.no_enabled", "--graft.source", "way"])
    for_choices(preset, ["--explore.where"])
    with pytest.raises(UnknownOption, match="algo"):
        check(make_config("sokoban-easy", algo=3))
    assert main(["--env", "sokoban-easy", "--algo", "3", "--dry-run"]) == 2
    assert "--algo must be one of grpo" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--env", "sokoban-easy", "--no-tstar", "--graft.source", "way", "--help"])
    assert ended.value.code == 0 and "--graft.way-weight" in capsys.readouterr().out


def test_an_option_that_asks_for_nothing_is_never_refused():
    for words in (
        "--no-tstar --graft.source divergence --tree.values mean",
        "--tree.nodes state --graft.keep iteration --explore.first policy --explore.where reach --graft.no-verify",
    ):
        check(for_choices(choose(find_entry("sokoban-easy"), "auto")[0], words.split()))
    check(for_choices(choose(find_entry("blocksworld-stack"), "auto")[0], ["--no-tstar"]))
