"""How a run starts: what its command line refuses, and that a start that fails leaves no folder behind."""

from __future__ import annotations

import dataclasses
import re
import socket
import subprocess
import sys
from io import StringIO

import pytest
import torch
from rich.console import Console
from train_process import TrainProcess

from scripts.studies.small_models import REFUSED, save_small
from tstar_envs import MissingData, MissingExtra, UnknownOption, find_entry, list_envs, registry
from tstar_train import tracking
from tstar_train.__main__ import main
from tstar_train.build import device_of, make_env
from tstar_train.checkpoint import Progress
from tstar_train.config import Config
from tstar_train.evaluate import Measurement, header, summarized
from tstar_train.run import train
from tstar_train.tracking import Display

QA_OPTIONS = "valid: data, explain_invalid, horizon, list_actions, normalizer, observation_limit, prompt_style, retriever, skip_bad, topk"


def refused(capsys, *arguments):
    """What the command line says; it must be one line, and exit code 2."""
    assert main(list(map(str, arguments))) == 2
    message = capsys.readouterr().err
    assert message.startswith("tstar_train: ") and message.count("\n") == 1
    return message


@pytest.mark.parametrize(("name", "other"), [("popqa", "nq"), ("bamboogle", "musique")])
def test_a_set_for_evaluation_only_names_what_to_train_on(name, other, tmp_path, capsys):
    for split in ([], ["--split", "test"]):
        message = refused(capsys, "--env", name, *split, "--out", tmp_path / "run")
        assert "for evaluation only" in message and f"train with --env {other}" in message
        assert f"python -m tstar_envs eval --env {name} --agent tiny:" in message
    assert not (tmp_path / "run").exists()


def test_help_and_mistyped_options_do_not_wait_for_torch():
    program = """
import sys
from tstar_train.__main__ import main
given = [["--help"], ["--env", "hotpotqa", "--algo", "dapo", "--help"], ["--env", "hotpotqa", "--tree.histroy", "1"], [], ["--env", "x"]]
def code(arguments):
    try:
        return main(arguments)
    except SystemExit as error:  # of tyro's help
        return error.code
codes = [code(arguments) for arguments in given]
assert codes == [0, 0, 2, 2, 2], codes
assert not {"torch", "transformers"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "did you mean --tree.history?" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["--tree.gamma", "2"], 2, marks=pytest.mark.slow),
        pytest.param(["--tree.gamma"], 2, marks=pytest.mark.slow),
        (["--model", "tiny", "--dry-run"], 0),
    ],
)
def test_where_no_run_begins_the_first_rank_alone_says_why(arguments, code, tmp_path):
    """As ``torchrun`` starts them; the other rank used to take the first one for dead."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    given = ["--env", "hotpotqa", *arguments, "--out", tmp_path / "run"]
    ranks = [
        TrainProcess(
            tmp_path / f"{rank}",
            *given,
            environment={**variables, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"},
        )
        for rank in range(2)
    ]
    with ranks[0] as first, ranks[1] as second:
        said, silent = first.done(60), second.done(60)
    assert said.returncode == code and bool(said.stderr) == bool(code)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variables", "refused_for"),
    [
        (
            {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            "2 processes of this run are on a machine with 1 GPU,",
        ),
        ({"LOCAL_RANK": "3"}, "4 processes"),  # a scheduler that does not say how many it started
    ],
)
def test_more_processes_than_gpus_are_refused(variables, refused_for, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    message = refused(capsys, "--env", "hotpotqa", "--out", tmp_path / "run")
    assert refused_for in message and "--nproc-per-node 1" in message and "--device cuda:0" in message
    assert not (tmp_path / "run").exists()
    assert device_of(Config(env="hotpotqa", device="cuda:0")) == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert device_of(Config(env="hotpotqa")) == f"cuda:{variables['LOCAL_RANK']}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env-option", "split=test"], "use --split test"),
        (["--env-option", "dataset=other"], QA_OPTIONS),
        (["--env-option", "searcher=x"], QA_OPTIONS),
        (["--env-option", "topk=many"], "topk must be a whole number, got 'many'"),
        (["--training-option", "horizon=4"], "use --rollout.horizon 4"),
        (["--training-option", "end_when_lost=true"], "has no option 'end_when_lost'; valid: data"),
        (["--bogus", "3"], "valid: --env, --model"),
        (["--tree.histroy", "state"], "did you mean --tree.history"),
        (["--tree.gamma", "2"], "--tree.gamma must be above 0 and at most 1, got 2"),
        (["--device", "foo"], "--device must be"),
        (["--model", "/nonexistent"], "no model at /nonexistent"),
    ],
)
def test_a_refused_start_leaves_no_folder(arguments, message, tmp_path, capsys):
    assert message in refused(capsys, "--env", "hotpotqa", *arguments, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_model_that_cannot_be_trained_is_refused_before_anything_is_measured_or_written(
    name, tmp_path, capsys
):
    save_small(name, tmp_path / name)
    capsys.readouterr()
    options = ["--processes", 1, "--rollout.max-tokens", 8, "--out", tmp_path / "run"]
    message = refused(capsys, "--env", "sokoban-easy", "--model", tmp_path / name, *options)
    assert name in message and not (tmp_path / "run").exists()


def test_a_start_without_a_model_leaves_no_folder(tmp_path):
    with pytest.raises(MissingData):
        train(Config(env="hotpotqa", model="/nonexistent"), tmp_path / "run", None)
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_run_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert "is a file" in refused(capsys, "--env", "hotpotqa", "--out", tmp_path / "file")


def test_tensorboard_is_looked_for_before_anything_is_played(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # how Python itself marks what cannot be imported
    with pytest.raises(MissingExtra, match=r"'tensorboard'.*pip install -c constraints.txt -e '.\[train\]'"):
        train(Config(env="hotpotqa"), tmp_path / "run", None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "other",
    [
        ["--model", "nonsense"],
        ["--out", "y"],
        ["--env", "hotpotqa"],
        ["--seed", "1"],
    ],
)
def test_resume_takes_no_other_option(other, tmp_path, capsys):
    assert f"takes no others, got {other[0]}" in refused(capsys, "--resume", tmp_path, *other)


@pytest.mark.parametrize("given", [["--env-option", "topk=3"], ["--training-option", "topk=1"]])
def test_resume_takes_only_secrets_of_the_environment_again(given, tmp_path, capsys):
    (tmp_path / "config.json").write_text(Config(env="hotpotqa").to_json())
    assert f"takes no others, got {given[0]}" in refused(capsys, "--resume", tmp_path, *given)


def test_options_given_in_python_are_checked_too():
    config = Config(env="hotpotqa", env_options={"split": "test"})
    with pytest.raises(UnknownOption, match="use --split test"):
        make_env(config)
    with pytest.raises(UnknownOption, match="no option 'tpok'"):
        make_env(dataclasses.replace(config, env_options={"tpok": 1}))
    with pytest.raises(UnknownOption, match="no option 'end_when_won'"):
        make_env(Config(env="sokoban-easy", training_options={"end_when_won": True}))
    with pytest.raises(UnknownOption, match="use --split valid"):
        make_env(Config(env="sokoban-easy", training_options={"split": "valid"}))


def test_the_metric_has_one_name_per_family():
    assert {e.metric for e in list_envs() if e.family == "search_qa"} == {"EM"}
    assert find_entry("webshop").metric == "score", "success is a score of 1 there"
    assert {e.metric for e in list_envs() if e.family not in ("search_qa", "webshop")} == {"success"}


@pytest.mark.parametrize("name", ["hotpotqa", "webshop", "sokoban-easy"])
def test_results_are_named_by_the_entry(name, monkeypatch):
    others = tuple(dataclasses.replace(entry, metric=f"{entry.name}'s own") for entry in registry.ENTRIES)
    monkeypatch.setattr(registry, "ENTRIES", others)
    config, out = Config(env=name), StringIO()
    measured = Measurement([0.5], [0.5])
    assert header(config, [])["metric"] == f"{name}'s own"
    assert summarized(config, measured, measured, Progress(), 1.0)["metric"] == f"{name}'s own"
    Display(Console(file=out, width=200), config).update(1, {"success": 0.25, "reward": 0.5, "f1": 0.75}, 1.0)
    assert f"success 25.0%  {name}'s own 50.0%" in out.getvalue()


@pytest.mark.slow
def test_long_parts_say_how_far_they_are_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    """With the half minute between two lines taken away: measurements, validations, imitation."""
    monkeypatch.setattr(tracking, "SECONDS_BETWEEN_LINES", 0.0)
    tiny = "--iterations 1 --rollout.tasks-per-iteration 1 --rollout.group-size 2 --rollout.horizon 2"
    rest = "--rollout.max-tokens 4 --rollout.max-sequences 2 --processes 1 --evaluation.tasks 3 --evaluation.samples 2 --evaluation.greedy"
    validated = "--evaluation.validation-tasks 2 --evaluation.validate-every 1"
    arguments = ["--env", "hotpotqa", "--out", str(tmp_path / "run"), *f"{tiny} {rest} {validated}".split()]
    assert main(arguments) == 0
    printed = capsys.readouterr().err
    for what, episodes in [
        ("measuring the start", 9),
        ("validating the start on 2 tasks", 6),
    ]:
        said = re.findall(rf"^{what}: (\d+) of (\d+) episodes ended, turn \d of the others$", printed, re.M)
        ended = [int(done) for done, _ in said]
        assert {int(total) for _, total in said} == {episodes} and len(ended) >= 4, (what, printed)
        assert ended == sorted(ended) and ended[0] == 0 and ended[-1] < episodes

    assert main(["warmstart", "--env", "sokoban-easy", "--steps", "3", "--out", str(tmp_path / "made")]) == 0
    printed, told = capsys.readouterr()
    assert re.findall(r"^step (\d)/3  \d", told, re.M) == ["1", "2", "3"]
    assert (
        "making the tokenizer from 6,000 demonstrations" in printed and "stage 1 of 1: 3 updates" in printed
    )
