"""Files of a run that were damaged, edited or are a stranger's: one sentence each, and nothing written is lost."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from policies import random_policy
from safetensors.torch import load_file, save_file

from tstar_envs import BadData, TStarError
from tstar_envs.cli import main as replay_main
from tstar_train.__main__ import main
from tstar_train.checkpoint import latest_checkpoint
from tstar_train.policy.chat import render
from tstar_train.policy.files import WEIGHTS
from tstar_train.policy.kv import context_limit, position_limit
from tstar_train.policy.model import load_policy
from tstar_train.report import write_report

RUN = (
    "--env hotpotqa --iterations 2 --checkpoint-every 1 --rollout.tasks-per-iteration 2 --rollout.group-size 2 "
    "--tree.nodes depth --tree.kl-samples 2 --processes 1 "
    "--evaluation.tasks 3 --evaluation.samples 1 --evaluation.no-greedy"
).split()


def tstar_train(capsys, *arguments):
    code = main([*map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert main([*RUN, "--out", str(out)]) == 0
    return out


def test_the_episodes_of_a_run_are_replayed_with_its_options(finished, capsys):
    assert replay_main(["replay", str(finished / "episodes.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert (
        "options: topk=1" in printed
        and "config.json)" in printed
        and "8 of 8 recordings are unchanged" in printed
    )


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def test_a_finished_run_says_so_and_is_left_alone(run, capsys):
    before = contents(run)
    code, out, _ = tstar_train(capsys, "--resume", run)
    assert code == 0 and "already complete: 2 iterations" in out and f"--resume {run} --iterations N" in out
    assert contents(run) == before


@pytest.mark.parametrize("left", [None, "that of a shorter run"])
def test_a_run_killed_between_its_summary_and_its_report_gets_one(left, run, capsys):
    report = run / "report.html"
    report.unlink()
    if left is not None:
        report.write_text(left)
        os.utime(report, (1e9, 1e9))
    code, out, _ = tstar_train(capsys, "--resume", run)
    made = report.read_bytes()
    assert code == 0 and f"report: {report}" in out and made == write_report(run).read_bytes()


def test_a_finished_run_can_be_made_longer(run, finished, tmp_path, capsys):
    code, out, err = tstar_train(capsys, "--resume", run, "--iterations", 3)
    assert code == 0, err
    assert "goes on to 3 iterations instead of 2" in out and int(latest_checkpoint(run).name) == 3
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert lines[:2] == (finished / "metrics.jsonl").read_text().splitlines() and len(lines) == 3
    assert json.loads((run / "summary.json").read_text())["iterations"] == 3
    assert json.loads((run / "summary-000002.json").read_text())["iterations"] == 2, (
        "the result that it had is kept"
    )
    code, _, err = tstar_train(capsys, "--resume", run, "--iterations", 2)
    assert code == 2 and "can only be made longer" in err


def test_a_run_from_before_there_was_a_grafting_set_is_made_longer_as_it_was(run, tmp_path, capsys):
    same = shutil.copytree(run, tmp_path / "same")
    for path in (run / "config.json", run / STATE):
        record = json.loads(path.read_text())
        config = record.get("config", record)
        del config["graft"]["keep"], config["graft"]["batch"], config["optim"]["epochs"]
        path.write_text(json.dumps(record))
    for folder in (run, same):
        assert tstar_train(capsys, "--resume", folder, "--iterations", 3)[0] == 0
    assert (run / "metrics.jsonl").read_bytes() == (same / "metrics.jsonl").read_bytes()
    for name in ("config.json", "checkpoints/000003/state.json"):
        record = json.loads((run / name).read_text())
        assert record.get("config", record)["graft"]["keep"] == "iteration"
    assert not list(run.glob("checkpoints/*/grafts.jsonl"))


STATE = "checkpoints/000002/state.json"
EDITS = {
    "seed": ("config.json", lambda c: {**c, "seed": 5}, "seed is 5, the run was made with 0"),
    "tstar": ("config.json", lambda c: {**c, "tstar": False}, "tstar is False"),
    "iterations": ("config.json", lambda c: {**c, "iterations": 9}, "--iterations N"),
    "a part": (
        "config.json",
        lambda c: {**c, "optim": {**c["optim"], "learning_rate": 1.0}},
        "optim.learning_rate is 1.0",
    ),
    "an unknown option": ("config.json", lambda c: {**c, "colour": 1}, "colour"),
    "sums": (STATE, lambda s: {**s, "sha256": {}}, "no sha256 is recorded"),
    "a sum elsewhere": (
        STATE,
        lambda s: {**s, "sha256": {**s["sha256"], "/dev/zero": "0"}},
        "not a file of this folder",
    ),
    "a sum above": (
        STATE,
        lambda s: {**s, "sha256": {**s["sha256"], "../x": "0"}},
        "not a file of this folder",
    ),
    "iteration": (STATE, lambda s: {**s, "iteration": 1}, "is of iteration 1"),
    "cursor": (STATE, lambda s: {**s, "cursor": s["cursor"] + 1}, "state.json was edited"),
    "no number as cursor": (STATE, lambda s: {**s, "cursor": True}, "no valid 'cursor'"),
    "episodes": (STATE, lambda s: {**s, "episodes": s["episodes"] + 1}, "state.json was edited"),
    "seconds": (STATE, lambda s: {**s, "seconds": 0.0}, "state.json was edited"),
    "grafts": (STATE, lambda s: {**s, "grafted": [["x", "y"]]}, "state.json was edited"),
    "its sum": (STATE, lambda s: {**s, "state_sha256": None}, "state.json was edited"),
    "options of a checkpoint": (STATE, lambda s: {**s, "config": None}, "which options it was made with"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_runs_are_refused_with_what_was_edited(edit, run, capsys):
    name, change, message = EDITS[edit]
    (run / "summary.json").unlink()  # as if it was stopped just before its end
    (run / name).write_text(json.dumps(change(json.loads((run / name).read_text()))))
    before = contents(run)
    code, _, err = tstar_train(capsys, "--resume", run)
    assert code == 2 and message in err and err.count("\n") == 1, err
    assert contents(run) == before


def test_every_folder_of_a_model_names_its_class(run):
    """By which vLLM and llama.cpp's converter choose their own."""
    shipped = sorted(path for path in WEIGHTS.iterdir() if path.is_dir())
    assert len(shipped) > 5
    for folder in (latest_checkpoint(run), *shipped):
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"], (
            folder
        )


def test_a_run_older_than_an_option_goes_on_with_what_it_did_without_it(run, capsys):
    """And no other value of that option is taken for the one that it was made with."""
    state = run / STATE
    record = json.loads(state.read_text())
    younger = record["config"]["evaluation"].pop("validate_every")
    record["config"].pop("learner")
    state.write_text(json.dumps(record))
    code, _, err = tstar_train(capsys, "--resume", run, "--iterations", 3)
    assert code == 0, err
    assert younger == 0 and int(latest_checkpoint(run).name) == 3


def test_a_run_with_old_names_of_options_goes_on(run, capsys):
    for path in (run / "config.json", run / STATE):
        record = json.loads(path.read_text())
        options = record if path.name == "config.json" else record["config"]
        options["rollout"]["group"] = options["rollout"].pop("group_size")
        options["optim"]["precision"] = {"float32": "single"}[options["optim"].pop("dtype")]
        options["optimizer"] = options.pop("learner")
        path.write_text(json.dumps(record))
    code, _, err = tstar_train(capsys, "--resume", run, "--iterations", 3)
    assert code == 0, err
    assert int(latest_checkpoint(run).name) == 3


def test_a_run_older_than_an_option_refuses_another_value_of_it(run, capsys):
    (run / "summary.json").unlink()
    for name, path in (("config.json", run / "config.json"), ("state", run / STATE)):
        record = json.loads(path.read_text())
        options = record if name == "config.json" else record["config"]
        if name == "state":
            options["evaluation"].pop("validate_every")
        else:
            options["evaluation"]["validate_every"] = 1
        path.write_text(json.dumps(record))
    code, _, err = tstar_train(capsys, "--resume", run)
    assert code == 2 and "evaluation.validate_every is 1, the run was made with 0" in err, err


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "not text": lambda data: b"\xff\xfe" + data,
    "deep": lambda data: b"[" * 100_000,
    "a list": lambda data: b"[1, 2]",
    "digits": lambda data: b'{"iteration": ' + b"9" * 6000 + b"}",
    "zeros": lambda data: b"\0" * len(data),
    "null": lambda data: b"null",
}
FILES = (
    "config.json",
    "evaluation.json",
    "summary.json",
    "metrics.jsonl",
    STATE,
    "checkpoints/000002/config.json",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_end_in_one_sentence(damage, name, run, capsys):
    path = run / name
    if name != "summary.json":
        (run / "summary.json").unlink()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    code, _, err = tstar_train(capsys, "--resume", run)
    assert code == 2 and err.count("\n") == 1 and len(err) < 900, err
    assert Path(name).name in err


@pytest.mark.parametrize("name", ["evaluation.json", "metrics.jsonl"])
def test_a_missing_file_is_said(name, run, capsys):
    (run / "summary.json").unlink()
    (run / name).unlink()
    code, _, err = tstar_train(capsys, "--resume", run)
    assert code == 2 and name in err and err.count("\n") == 1


@pytest.mark.parametrize("times", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_random_damage_of_metrics_never_passes_silently(times, run, finished, capsys):
    draw = random.Random(0)
    whole = (finished / "metrics.jsonl").read_bytes()
    (run / "summary.json").unlink()
    for _ in range(times):
        lines = whole.splitlines(keepends=True)
        lines.pop(draw.randrange(len(lines)))  # a line that is gone
        (run / "metrics.jsonl").write_bytes(b"".join(lines))
        code, _, err = tstar_train(capsys, "--resume", run)
        assert code == 2 and "metrics.jsonl" in err


def test_a_file_system_without_hard_links(tmp_path, monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    out = tmp_path / "run"
    assert main([*RUN, "--iterations", "1", "--out", str(out)]) == 0
    newest = latest_checkpoint(out)
    assert (newest / "model.safetensors").read_bytes() == (newest / "policy.safetensors").read_bytes()


# A stranger's model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    policy = random_policy()
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


CLAIMS = {
    "layers": ({"num_hidden_layers": 1_000_000}, "layers"),
    "vocabulary": ({"vocab_size": 10**9}, "parameters"),
    "width": ({"hidden_size": 1 << 17, "intermediate_size": 1 << 19}, "parameters"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_configuration_that_claims_more_than_the_files_hold(claim, model):
    change, message = CLAIMS[claim]
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(TStarError, match=message):
        load_policy(str(model), None, "cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(value, model):
    weights = load_file(model / "model.safetensors")
    name = sorted(weights)[0]
    weights[name].view(-1)[0] = value
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadData, match="not all finite"):
        load_policy(str(model), None, "cpu")


def test_a_missing_tensor_is_not_drawn_at_random(model):
    weights = load_file(model / "model.safetensors")
    weights.pop(sorted(weights)[1])
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TStarError, match="no weights for"):
        load_policy(str(model), None, "cpu")


def test_code_of_a_folder_is_never_run(model, tmp_path):
    (model / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Model: pass\nclass Config: pass\n"
    )
    path = model / "config.json"
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    changed = {**json.loads(path.read_text()), "model_type": "evil", "auto_map": names}
    path.write_text(json.dumps(changed))
    with pytest.raises(TStarError) as caught:
        load_policy(str(model), None, "cpu")
    assert not (tmp_path / "ran").exists() and "set the option" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for a in range(99999) %}{% for b in range(99999) %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{% endfor %}",
    ],
)
def test_a_chat_template_that_never_ends(template, monkeypatch):
    monkeypatch.setattr("tstar_train.policy.chat.SECONDS", 0.5)
    tokenizer = copy.deepcopy(random_policy().tokenizer)  # the others share it
    tokenizer.chat_template = template
    with pytest.raises(BadData, match="chat template"):
        render(tokenizer, [{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{% for %}", "{{ messages.x.y }}"]
)
def test_a_chat_template_that_fails(template):
    tokenizer = copy.deepcopy(random_policy().tokenizer)  # the others share it
    tokenizer.chat_template = template
    with pytest.raises(BadData, match="fails"):
        render(tokenizer, [{"role": "user", "content": "x"}])


def test_the_limit_of_a_context():
    config = random_policy().model.config
    assert context_limit(config, None) == position_limit(config) <= config.max_position_embeddings
    assert context_limit(config, 100) == 100 and context_limit(config, 10**9) == position_limit(config)


def test_no_model_is_fed_more_than_its_positions(capsys, tmp_path):
    code, _, err = tstar_train(
        capsys, *RUN, "--rollout.context-tokens", 60, "--rollout.max-tokens", 60, "--out", tmp_path / "run"
    )
    assert code == 2 and "leaves no room for a context" in err and not (tmp_path / "run").exists()
    code, out, err = tstar_train(
        capsys, *RUN, "--rollout.context-tokens", 60, "--rollout.max-tokens", 20, "--out", tmp_path / "run"
    )
    assert code == 0, err
    assert "outgrew the context and ended there, unsolved" in out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    ended = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    cut = [episode for episode in ended if episode["extra"].get("overlong")]
    assert sum(line["overlong_episodes"] for line in lines) == len(cut) > 0
    assert all(
        (episode["ended"], episode["success"], episode["reward"]) == ("truncated", False, 0.0)
        for episode in cut
    )
