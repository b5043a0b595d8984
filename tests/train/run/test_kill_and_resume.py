"""scripts/kill_and_resume.py: where it kills, what it calls a difference, and (slow) that runs with a state of their own come out equal."""

from __future__ import annotations

import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from tstar_train import run
from tstar_train.cli import train_command
from tstar_train.config_check import check

VALIDATED = "--evaluation.validate-every 1 --evaluation.validation-tasks 6 --optim.learning-rate 0.001"
SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "kill_and_resume.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def test_kills_come_in_order_at_starts_at_saves_and_over_the_whole_run(script):
    stand = script["Stand"]
    steps = [
        stand(False, 0, 0, False, False),
        stand(True, 0, 0, False, False),
        stand(True, 1, 0, False, False),
    ]
    steps += [stand(True, 1, 1, False, False), stand(True, 1, 2, False, False), stand(True, 1, 2, True, True)]
    timeline = list(zip([5.0, 6.0, 7.0, 7.5, 7.6, 9.0], steps, strict=True))
    begun = {step: when for when, step in timeline}
    for seed in range(50):
        drawn = script["moments"](timeline, 10, random.Random(seed))
        starts, others = [[m for m in drawn if (m.stand is None) == early] for early in (True, False)]
        assert len(starts) == 2 and all(0 <= m.seconds <= 5 for m in starts)
        moments = [begun[m.stand] + m.seconds for m in others]
        assert moments == sorted(moments) and moments[0] >= 5 and moments[-1] <= 9
        assert sum(7.5 <= when <= 7.6 for when in moments) >= 2
        shares = [sum(5 + 4 * n / 6 <= when < 5 + 4 * (n + 1) / 6 for when in moments) for n in range(6)]
        assert min(shares) >= 1 and sum(shares) == 8
    places = [step.place(1, 2) for step in steps]
    assert places == [
        "first measurement",
        "iteration 1",
        "logging 1",
        "saving 1",
        "last measurement",
        "report",
    ]


def test_the_steps_of_a_run_that_validates_are_ordered_and_named(script):
    stand = script["Stand"]
    steps = [
        stand(True, 0, 0, False, False),
        stand(True, 0, 0, False, False, 1, 0),
        stand(True, 1, 0, False, False, 1, 0),
    ]
    steps += [
        stand(True, 2, 0, False, False, 1, 0),
        stand(True, 2, 4, False, False, 1, 0),
        stand(True, 2, 4, False, False, 2, 2),
    ]
    steps += [stand(True, 3, 6, False, False, 2, 2), stand(True, 3, 6, False, False, 3, 2)]
    assert steps == sorted(steps)
    places = [
        "validating 0",
        "iteration 1",
        "iteration 2",
        "logging 2",
        "validating 2",
        "iteration 3",
        "validating 3",
        "last measurement",
    ]
    assert [step.place(3, 20, 2) for step in steps] == places


@pytest.fixture
def runs(tmp_path):
    """Two run folders that differ in nothing but clock times."""
    out = tmp_path / "one"
    (out / "checkpoints" / "000001").mkdir(parents=True)
    (out / "metrics.jsonl").write_text('{"iteration": 1, "reward": 0.5}\n')
    (out / "episodes.jsonl").write_text('{"reward": 1.0}\n')
    (out / "summary.json").write_text('{"after": 0.25, "seconds": 3.0}')
    (out / "checkpoints" / "000001" / "policy.safetensors").write_bytes(b"weights")
    (out / "checkpoints" / "000001" / "state.json").write_text(
        '{"cursor": 4, "wall_seconds": 3.0, "sha256": {}}'
    )
    with SummaryWriter(str(out / "tensorboard")) as events:
        events.add_scalar("reward", 0.5, 1)
    other = shutil.copytree(out, tmp_path / "two")
    (other / "summary.json").write_text('{"after": 0.25, "seconds": 4.0}')
    return out, other


def test_clock_times_are_no_difference(script, runs):
    assert script["first_difference"](*runs) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "metrics.jsonl",
            '{"iteration": 1, "reward": 0.5000001}\n',
            "metrics.jsonl 0 reward: 0.5 and 0.5000001",
        ),
        ("metrics.jsonl", '{"reward": 0.5, "iteration": 1}\n', "metrics.jsonl: other bytes"),
        ("episodes.jsonl", '{"reward": 1.0}\n{"reward": 1.0}\n', "episodes.jsonl"),
        ("summary.json", '{"after": 0.5, "seconds": 3.0}', "summary.json after: 0.25 and 0.5"),
        ("checkpoints/000001/policy.safetensors", "weighty", "policy.safetensors: other bytes"),
        ("checkpoints/000001/state.json", '{"cursor": 6}', "state.json cursor: 4 and 6"),
        (".metrics.jsonl.partial", "", "only one has .metrics.jsonl.partial"),
    ],
)
def test_the_first_difference_is_named(name, content, message, script, runs):
    (runs[1] / name).write_text(content)
    assert message in script["first_difference"](*runs)


def test_a_point_that_is_shown_twice_is_a_difference(script, runs):
    with SummaryWriter(str(runs[1] / "tensorboard"), filename_suffix=".later") as events:
        events.add_scalar("reward", 0.5, 1)
    assert "tensorboard reward" in script["first_difference"](*runs)


def test_which_combinations_are_run(script):
    chosen = script["combinations"]
    everything = chosen(None, None, None)
    assert len(everything) == 13 + len(script["FURTHER"])
    assert len({(algo, what) for algo, what, _ in everything}) == len(everything)
    assert ("ppo", "no", ["--no-tstar"]) in everything and not [
        c for c in everything if c[:2] == ("ppo", "yes")
    ]
    assert chosen(["dapo"], True, None) == [("dapo", "yes", ["--tstar", "--tree.nodes", "depth"])]
    [(algo, what, options)] = chosen(None, None, ["grafts-kept"])
    assert (algo, what) == ("grpo", "grafts-kept") and "--graft.keep all" in " ".join(options)
    assert len(chosen(["grpo"], None, ["grafts-kept"])) == 3


def test_the_options_of_the_further_combinations_make_a_run(script, monkeypatch):
    """Read and checked as by the command line, so that no slow run ends at its first line."""
    made = []
    monkeypatch.setattr(run, "train", lambda config, *_, **__: made.append(config))
    combinations = script["combinations"](None, None, list(script["FURTHER"]))
    for algo, _, own in combinations:
        environment = [] if "--env" in own else ["--env", "hotpotqa"]
        assert train_command([*environment, "--algo", algo, *script["SMALL"], *own]) == 0
    for (algo, name, _), config in zip(combinations, made, strict=True):
        check(config)
        assert config.algo == algo and config.tstar
        assert config.forks == (name.startswith("forks") or name == "all")
        assert config.keeps_grafts or not (name == "all" or name.endswith("-kept"))
    [kept] = [c for (_, name, _), c in zip(combinations, made, strict=True) if name == "forks-kept"]
    assert (kept.graft.keep, kept.graft.batch) == ("all", 4) and kept.graft.source == "divergence"


# PPO has a critic, DAPO tasks that no other algorithm would have played.
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--algo ppo",
        "--algo dapo --tstar --processes 2",
        f"--algo grpo --tstar {VALIDATED}",
        "--further grafts-kept",
        "--further grafts-kept --processes 2",
        "--further forks-kept",
        "--further forks-ways",
        "--further forks-graph",
        "--further ahead-ways-kept",
        "--further all --processes 2",
        "--further mix",
        "--further units",
        "--further units --processes 2",
        "--further units --processes 3",
    ],
)
def test_killed_runs_come_out_as_whole_ones(options):
    command = [sys.executable, str(SCRIPT), *options.split(), "--kills", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert (
        row[options.startswith("--further")] == options.split()[1]
        and row[2] == "3"
        and row[5] == "equal"
        and len(row[3].split(",")) == 3
    )
