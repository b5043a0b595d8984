"""Validation: the best weights are kept and measured once, however a run is interrupted, and no run without it changes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from policies import papers_preset
from safetensors.torch import load_file
from test_run_files import contents
from test_train_run import curves, lines
from train_process import TrainProcess, run

from tstar_envs import UnknownOption
from tstar_train import checkpoint as best
from tstar_train import ranks
from tstar_train.__main__ import main
from tstar_train.build import build, held_out_tasks, make_env, validation_tasks
from tstar_train.checkpoint import Progress, latest_checkpoint, load_state, save_checkpoint
from tstar_train.config import Config, EvaluationConfig
from tstar_train.distributed import SingleProcess
from tstar_train.loop import iterate
from tstar_train.policy.model import load_policy
from tstar_train.report import write_report
from tstar_train.run import Validation

installed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)
PLAIN = (
    "--env hotpotqa --iterations 4 --checkpoint-every 3 --keep-checkpoints 1 --rollout.tasks-per-iteration 2 --rollout.group-size 4 "
    "--tree.nodes depth --tree.kl-samples 2 "
    "--evaluation.tasks 3 --evaluation.samples 1 --evaluation.no-greedy --optim.learning-rate 0.0005 --processes 1"
).split()
VALIDATED = [*PLAIN, "--evaluation.validate-every", "1", "--evaluation.validation-tasks", "8"]


def means(out: Path) -> dict[int, float]:
    return {record["iteration"]: record["mean"] for record in lines(out / "validation.jsonl")}


def by_brute_force(found: dict[int, float]) -> int:
    """The first of the highest."""
    return min(n for n in found if all(found[n] >= mean for mean in found.values()))


def record(out: Path, name: str) -> dict:
    return json.loads((out / name).read_text())


def without_clocks(out: Path) -> dict:
    return {k: v for k, v in record(out, "summary.json").items() if k != "seconds"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose best weights are those of an iteration on the way, its seed, and for each measurement its tasks and weights."""
    true_measure = ranks.ORDERS["measure"]
    for seed in range(1, 9):
        out = tmp_path_factory.mktemp("runs") / "whole"
        measured = []

        def seen(trainer, tasks, *split):
            state = {name: tensor.clone() for name, tensor in trainer.learner.weights()}
            measured.append((list(tasks), state))  # noqa: B023  # called within this pass alone
            return true_measure(trainer, tasks, *split)

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(ranks.ORDERS, "measure", seen)
            assert main([*VALIDATED, "--seed", str(seed), "--out", str(out)]) == 0
        if 0 < by_brute_force(means(out)) < 4:
            return out, seed, measured
    raise AssertionError("no seed whose best weights are those of an iteration on the way")


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of that run as it was before its end; hard links are copied as files of their own."""
    out = shutil.copytree(whole[0], tmp_path / "copied")
    (out / "summary.json").unlink()
    return out


def require_same(mine: Path, theirs: Path) -> None:
    for name in (
        "metrics.jsonl",
        "episodes.jsonl",
        "validation.jsonl",
        "best/model.safetensors",
        "best/optimizer.pt",
        "evaluation.json",
    ):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes(), name
    assert without_clocks(mine) == without_clocks(theirs)
    assert curves(mine) == curves(theirs)
    assert points(mine) == points(theirs) and [step for step, _ in points(mine)["validation/mean"]] == list(
        means(mine)
    )
    assert not list(mine.rglob(".partial*"))


def points(out: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's points of the validations."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard" / "validation")).Reload()
    return {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_the_first_of_the_best_is_chosen_and_every_record_says_which_it_was_so_far(whole):
    out, _, _ = whole
    found = means(out)
    assert list(found) == [0, 1, 2, 3, 4]
    for line in lines(out / "validation.jsonl"):
        so_far = {n: mean for n, mean in found.items() if n <= line["iteration"]}
        assert (line["best"], line["best_mean"]) == (by_brute_force(so_far), max(so_far.values()))
        assert (
            line["ci_low"] <= line["mean"] <= line["ci_high"]
            and line["greedy"] is None
            and line["tasks"] == 8
        )
    assert (
        record(out, "best/state.json")["iteration"]
        == by_brute_force(found)
        == record(out, "summary.json")["chosen_iteration"]
    )
    assert record(out, "summary.json")["iterations"] == 4
    assert record(out, "evaluation.json")["chosen"] == {
        "iteration": by_brute_force(found),
        "by": "validation",
        "mean": max(found.values()),
        "candidates": 5,
        "split": "valid",
        "tasks": 8,
        "samples": 1,
    }


def test_test_tasks_are_measured_once_at_the_end_with_the_best_weights(whole):
    out, _, measured = whole
    config = Config.from_json(out / "config.json")
    env = make_env(config)
    held_out, validated = held_out_tasks(env, config), validation_tasks(env, config)
    assert set(validated).isdisjoint([*env.task_ids("train"), *env.task_ids("test")]) and set(
        validated
    ) <= set(env.task_ids("valid"))
    assert [tasks for tasks, _ in measured] == [held_out, *[validated] * 5, held_out]
    kept, last = weights(out / "best"), weights(latest_checkpoint(out))
    used = measured[-1][1]
    assert set(used) == set(kept) and all(torch.equal(used[name], kept[name]) for name in used)
    assert not all(torch.equal(kept[name], last[name]) for name in kept)
    chosen = measured[1 + by_brute_force(means(out))][1]
    assert all(torch.equal(used[name], chosen[name]) for name in used)


def test_the_best_is_a_model_of_its_own_whatever_checkpoints_are_kept(whole, tmp_path):
    out, _, _ = whole
    alone = shutil.copytree(out / "best", tmp_path / "alone")
    policy = load_policy(str(alone), "search_qa")
    assert torch.equal(
        policy.model.get_input_embeddings().weight, weights(alone)["model.embed_tokens.weight"]
    )
    # Two are kept though --keep-checkpoints is 1: from the newest one on, its choice must be there.
    assert {int(p.name) for p in (out / "checkpoints").iterdir()} == {by_brute_force(means(out)), 4}


def test_the_report_tells_the_choice(whole):
    out, _, _ = whole
    html = " ".join(write_report(out).read_text(encoding="utf-8").split())
    assert (
        f"The weights of iteration {by_brute_force(means(out))} were chosen by validation" in html
        and "on 8 tasks of the split" in html
    )
    assert "<b>Validation</b>" in html


@pytest.mark.slow
def test_without_validation_a_run_is_as_before_and_learns_the_same(whole, tmp_path, capsys):
    out, seed, _ = whole
    plain = tmp_path / "plain"
    assert main([*PLAIN, "--seed", str(seed), "--out", str(plain)]) == 0
    printed = capsys.readouterr().out
    assert "validation of" not in printed and "chosen by" not in printed
    ours, theirs = ({str(p.relative_to(folder)) for p in folder.iterdir()} for folder in (plain, out))
    assert theirs - ours == {"best", "validation.jsonl"} and ours <= theirs
    assert sorted(p.name for p in (plain / "checkpoints").iterdir()) == ["000004"]
    assert not (plain / "tensorboard" / "validation").exists()
    assert set(record(out, "summary.json")) - set(record(plain, "summary.json")) == {
        "chosen_iteration",
        "validation_mean",
    }
    assert (
        "chosen" not in record(plain, "evaluation.json")
        and "<b>Validation</b>" not in (plain / "report.html").read_text()
    )
    for name in ("metrics.jsonl", "episodes.jsonl", "checkpoints/000004/policy.safetensors"):
        assert (plain / name).read_bytes() == (out / name).read_bytes(), name


# Killed by SIGKILL as it comes to a function for the n-th time, each within or around a validation.
KILLS = {
    "saved, not measured": ("tstar_train.run.Validation.validate", 2),
    "measured, not recorded": ("tstar_train.tracking.RunFolder.log_validation", 3),
    "recorded, not drawn": ("tstar_train.tracking.RunFolder.draw_validation", 3),
    "recorded, not kept": ("tstar_train.run.keep_best_checkpoint", 2),
    "copied, not in its place": ("tstar_train.checkpoint.replace_folder", 2),
    "in its place, the old one not removed": ("tstar_train.checkpoint.remove_folder", 7),
    "the start recorded, not kept": ("tstar_train.run.keep_best_checkpoint", 1),
    "all trained, the best not loaded": ("tstar_train.run.Validation.load_best_checkpoint", 1),
    "the next checkpoint saved, old ones not removed": ("tstar_train.checkpoint.remove_checkpoint", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", KILLS)
def test_a_killed_run_comes_out_as_a_whole_one(where, whole, tmp_path):
    out, seed, _ = whole
    killed = tmp_path / "killed"
    with TrainProcess(
        tmp_path, *VALIDATED, "--seed", seed, "--out", killed, killed_at=KILLS[where]
    ) as process:
        process.done_by_kill()
    assert not (killed / "summary.json").exists()
    if where != "the start recorded, not kept":
        load_policy(str(killed / "best"), "search_qa")  # the old one or the new one, but whole
    run(tmp_path, "--resume", killed)
    require_same(killed, out)


@pytest.mark.slow
def test_a_longer_run_goes_on_with_the_best_so_far(whole, tmp_path, capsys):
    out, _, _ = whole
    longer = shutil.copytree(out, tmp_path / "longer")
    assert main(["--resume", str(longer), "--iterations", "6"]) == 0
    found = means(longer)
    assert list(found) == list(range(7)) and {n: found[n] for n in range(5)} == means(out)
    assert (
        record(longer, "best/state.json")["iteration"]
        == by_brute_force(found)
        == record(longer, "summary.json")["chosen_iteration"]
    )
    assert record(longer, "evaluation-000004.json")["chosen"]["iteration"] == by_brute_force(means(out))
    assert record(longer, "evaluation.json")["chosen"]["candidates"] == 7


def test_a_run_that_falls_back_to_an_older_checkpoint_has_its_choice(copied, whole):
    """Its newest checkpoint is lost; what is kept as the best is of a later iteration than the one it goes on from, or is lost too."""
    out, seed, _ = whole
    shutil.rmtree(copied / "checkpoints" / "000004")
    assert main(["--resume", str(copied)]) == 0
    require_same(copied, out)


def test_a_best_that_is_later_than_the_checkpoint_is_replaced_by_its_choice(copied, whole):
    chosen = by_brute_force(means(copied))
    shutil.rmtree(copied / "best")
    shutil.copytree(copied / "checkpoints" / "000004", copied / "best")
    assert main(["--resume", str(copied)]) == 0
    assert record(copied, "best/state.json")["iteration"] == chosen
    require_same(copied, whole[0])


def test_damage_is_reported_with_its_remedy(copied, whole, capsys):
    data = bytearray((copied / "best" / "policy.safetensors").read_bytes())
    data[-100] ^= 1
    (copied / "best" / "policy.safetensors").write_bytes(data)
    before = contents(copied)
    assert main(["--resume", str(copied)]) == 2
    message = capsys.readouterr().err
    assert (
        "best/policy.safetensors is damaged" in message
        and f"delete it, and --resume {copied} makes it again" in message
    )
    assert contents(copied) == before
    shutil.rmtree(copied / "best")
    assert main(["--resume", str(copied)]) == 0
    require_same(copied, whole[0])


def test_lost_weights_and_lost_records_are_reported(copied, capsys):
    chosen = by_brute_force(means(copied))
    text = (copied / "validation.jsonl").read_text()
    (copied / "validation.jsonl").write_text("".join(text.splitlines(keepends=True)[:1]))
    assert main(["--resume", str(copied)]) == 2
    assert "validation.jsonl lacks the validation of iteration 1" in capsys.readouterr().err
    (copied / "validation.jsonl").unlink()
    assert main(["--resume", str(copied)]) == 2
    assert "validation.jsonl lacks the validation of iteration 0" in capsys.readouterr().err
    (copied / "validation.jsonl").write_text(text)
    for name in ("best", f"checkpoints/{chosen:06d}"):
        shutil.rmtree(copied / name)
    assert main(["--resume", str(copied)]) == 2
    message = capsys.readouterr().err
    assert (
        f"the weights of iteration {chosen}, which validation chose, are lost" in message
        and message.count("\n") == 1
    )


@pytest.mark.slow
def test_where_the_start_is_best_it_is_said_and_nothing_is_measured_again(tmp_path, capsys):
    """At a learning rate that breaks the policy."""
    out = tmp_path / "run"
    arguments = [a if a != "0.0005" else "1.0" for a in VALIDATED]
    arguments[arguments.index("--iterations") + 1] = "2"
    assert main([*arguments, "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "the start; no later weights did better there, so nothing was gained and the difference is 0"
        in printed
    )
    assert "measuring the start" in printed and "measuring the result" not in printed
    summary, evaluation = record(out, "summary.json"), record(out, "evaluation.json")
    assert (summary["chosen_iteration"], summary["difference"], summary["ci_low"], summary["ci_high"]) == (
        0,
        0.0,
        0.0,
        0.0,
    )
    assert evaluation["before"] == evaluation["after"]
    html = " ".join((out / "report.html").read_text().split())
    assert (
        "The start was chosen by validation" in html and "nothing was gained and the difference is 0" in html
    )


REFUSED = [
    (
        ["--evaluation.split", "valid"],
        "which --evaluation.split valid measures: give --evaluation.split test",
    ),
    (["--split", "valid"], "which --split valid trains on: give --split train"),
    (["--evaluation.validate-every", "-1"], "--evaluation.validate-every must be 0 or more"),
    (["--evaluation.validation-tasks", "0"], "--evaluation.validation-tasks must be 1 or more"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_tasks_of_other_uses_are_refused_by_name(arguments, message, dry, tmp_path, capsys):
    assert main([*VALIDATED, *arguments, *dry, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_splits_are_distinguished_by_their_tasks(tmp_path):
    def tasks(env, **evaluation):
        config = Config(env=env, evaluation=EvaluationConfig(validate_every=1, **evaluation))
        return validation_tasks(make_env(config), config)

    for split in ("test", "valid_seen", "valid_unseen"):
        assert len(tasks("alfworld", split=split, validation_tasks=30)) == 30
    assert len(tasks("webshop")) == 67, "all there are where there are fewer"
    with pytest.raises(UnknownOption, match="give --evaluation.split test, or --evaluation.validate-every 0"):
        tasks("alfworld", split="valid")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "000.txt").write_text("; 0\n######\n#@$. #\n######\n")
    config = Config(
        env="sokoban-easy",
        env_options={"levels": str(tmp_path)},
        evaluation=EvaluationConfig(validate_every=1),
    )
    with pytest.raises(
        UnknownOption, match="'valid' of sokoban-easy has no tasks here; give --evaluation.validate-every 0"
    ):
        validation_tasks(make_env(config), config)


@given(st.dictionaries(st.integers(0, 9), st.sampled_from([0.0, 0.25, 0.5]), max_size=8), st.integers(0, 9))
def test_the_choice_up_to_an_iteration(found, until):
    validation = Validation(Config(env="hotpotqa"), None, [], None)
    validation.means = found
    seen = {n: mean for n, mean in found.items() if n <= until}
    assert validation.chosen(until) == (by_brute_force(seen) if seen else None)


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_takes_another_ones_place(exchanges, tmp_path, monkeypatch):
    """With the system's exchange, under which every look finds one, and without."""
    if not exchanges:
        monkeypatch.setattr(best, "exchange_folders", lambda one, other: False)
    for number in (3, 5):
        checkpoint = tmp_path / "checkpoints" / f"{number:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "policy.safetensors").write_text(str(number))
        best.keep_best_checkpoint(tmp_path, number)
        assert [p.read_text() for p in best.best_folder(tmp_path).iterdir()] == [str(number)]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["best", "checkpoints"]


def test_a_kill_between_two_renames_loses_nothing(copied, whole, monkeypatch, capsys):
    """Where folders cannot be exchanged, the name is missing for a moment."""
    (copied / "best").rename(copied / ".partial-old-best")
    assert main(["--resume", str(copied)]) == 0
    require_same(copied, whole[0])


def changed(config: Config, **parts: dict) -> Config:
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **part) for name, part in parts.items()}
    )


LEARNERS = {
    "half": lambda c: changed(c, optim={"dtype": "bfloat16"}),
    "adapters": lambda c: changed(c, lora={"rank": 4}),
    "critic": lambda c: changed(dataclasses.replace(c, algo="ppo", tstar=False), ppo={"critic": "separate"}),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "critic" else pytest.mark.slow) for kind in LEARNERS]
)
def test_a_trained_learner_is_brought_back_to_its_best_file_by_file(kind, tmp_path):
    """The end of a run loads earlier weights into a learner that has gone on, not into a new one."""
    config = LEARNERS[kind](
        changed(
            papers_preset("hotpotqa"),
            rollout={"tasks_per_iteration": 2, "group_size": 4},
            tree={"kl_samples": 2},
            optim={"learning_rate": 1e-3},
        )
    )
    trainer = build(config, SingleProcess())
    for iteration in (0, 1, 2):  # the start has no optimizer state yet
        kept = save_checkpoint(tmp_path, trainer, Progress(iteration), keep=9)
        result = iterate(trainer, iteration)
        trainer.whole = True
        later = save_checkpoint(tmp_path, trainer, Progress(10 + iteration), keep=9)
        if result.metrics["gradient_norm"]:
            assert (later / "model.safetensors").read_bytes() != (kept / "model.safetensors").read_bytes()
        load_state(trainer, kept)
        again = save_checkpoint(tmp_path, trainer, Progress(20 + iteration), keep=9)
        for file in kept.iterdir():
            if file.suffix in (".safetensors", ".pt"):
                assert (again / file.name).read_bytes() == file.read_bytes(), file.name
        load_state(trainer, later)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["torch", pytest.param("deepspeed", marks=installed)])
def test_two_processes_choose_and_measure_what_one_does(optimizer, whole, tmp_path):
    out, seed, _ = whole
    two, newest = tmp_path / "two", latest_checkpoint(out)
    plain = PLAIN[: PLAIN.index("--processes")]
    run(
        tmp_path,
        *plain,
        *VALIDATED[len(PLAIN) :],
        "--learner",
        optimizer,
        "--processes",
        2,
        "--seed",
        seed,
        "--out",
        two,
    )
    assert means(two) == means(out)
    assert without_clocks(two) == without_clocks(out)
    mine, theirs, last = (
        torch.cat([w.flatten() for _, w in sorted(weights(p).items())])
        for p in (two / "best", out / "best", newest)
    )
    # Sums over other parts differ in their last bits, which AdamW turns into steps where a gradient is next to none: after three
    # iterations by 2 % of what lies between one iteration and the next, with validation or without.
    assert (mine - theirs).norm() < 0.1 * (theirs - last).norm()
    run(
        tmp_path,
        *plain,
        "--learner",
        optimizer,
        "--processes",
        2,
        "--seed",
        seed,
        "--out",
        tmp_path / "plain",
    )
    for name in ("metrics.jsonl", "checkpoints/000004/policy.safetensors"):
        assert (two / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name
