"""DeepSpeed's ZeRO-2 on real processes (gloo, CPU): the same steps as plain torch in one process, whatever the number of ranks."""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import learner_ranks
import pytest
import torch
from hosts import RUN, TORCHRUN, Started, logged, require_same_run

from tstar_envs import MissingExtra
from tstar_train.config import Config
from tstar_train.config_check import check

installed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed (extra deepspeed)"
)
ROOT = Path(__file__).parents[3]
NAMES = ["whole", "adapters"]
KINDS = ["whole", pytest.param("adapters", marks=pytest.mark.slow)]


def program(*arguments, timeout=120, **environment):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        timeout=timeout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def measure(ranks, out, scenarios, environment):
    """``python -m learner_ranks`` in a fork of this process, which has imported torch already."""
    os.environ.update(environment)
    warnings.resetwarnings()
    learner_ranks.main(ranks, out, *scenarios)


def steps(folder, ranks, *scenarios, **environment):
    """What ``learner_ranks`` measured in each scenario."""
    folder.mkdir(exist_ok=True)
    out = folder / f"{ranks}.pt"
    process = multiprocessing.get_context("fork").Process(
        target=measure, args=(ranks, out, scenarios, environment)
    )
    process.start()
    # Only so that ranks that wait for each other end at all: a busy machine may take its time.
    process.join(600)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0, scenarios
    return torch.load(out, weights_only=False)


def require_same(mine, theirs, last=None, weights=True, tolerance=1e-5):
    """The same figures of (the last) steps and the same weights, references and critics.

    Sums over tokens and norms are relative to their size, as 1e-5 of a sum of hundreds is below the precision of float32.
    """
    expected = theirs["metrics"] if last is None else theirs["metrics"][-last:]
    assert len(mine["metrics"]) == len(expected) > 0
    for step, (got, wanted) in enumerate(zip(mine["metrics"], expected, strict=True)):
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            if value is None:
                assert got[name] is None, (step, name)
            else:
                assert got[name] == pytest.approx(value, abs=tolerance, rel=tolerance), (step, name)
    assert mine["weights"].keys() == theirs["weights"].keys()
    for name in theirs["weights"] if weights else ():
        torch.testing.assert_close(
            mine["weights"][name], theirs["weights"][name], atol=tolerance, rtol=tolerance, msg=name
        )


def with_stale_lock(folder):
    """As a build of DeepSpeed's shared-memory operation leaves it that was killed: whoever would build it waits for ever."""
    operation = folder / "deepspeed_shm_comm"
    operation.mkdir(parents=True)
    (operation / "lock").touch()
    return {"TORCH_EXTENSIONS_DIR": str(folder)}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two ranks, where a stale lock waits for who would compile; and one process of plain torch over the whole batch."""
    folder = tmp_path_factory.mktemp("two")
    return folder, Measured(folder)


class Measured(dict):
    """Measurements of ``learner_ranks`` by scenario; all of what is trained at the first look at one, once also where that fails."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.environment = folder, with_stale_lock(folder / "extensions")
        self.tried = set()

    def __missing__(self, scenario):
        kind = "adapters" if "adapters" in scenario else "whole"
        if kind in self.tried:
            pytest.fail(f"no {scenario}: the ranks failed or took too long, see the first failure")
        self.tried.add(kind)
        ways = ("", "/save", "/load", "/large")
        scenarios = [f"{what} {kind}{how}" for what in ("deepspeed", "zero1") for how in ways]
        scenarios += [f"torch {kind}", f"alone torch {kind}"]
        if kind == "whole":
            scenarios += [f"torch half{how}" for how in ("", "/save", "/load")]
            scenarios += ["alone torch half", "torch whole/large", "alone torch whole/large"]
            faults = ("nan", "nan gradient", "empty")
            scenarios += [f"{what} whole/{how}" for what in ("deepspeed", "zero1") for how in faults]
            scenarios.append("alone torch whole/empty")
            scenarios += [
                f"{what} whole/{how}"
                for what in ("deepspeed", "zero1", "torch", "alone torch")
                for how in ("epochs", "decay")
            ]
        (self.folder / "store2").unlink(missing_ok=True)  # where the ranks met before
        self.update(steps(self.folder, 2, *scenarios, **self.environment))
        return dict(self)[scenario]


@installed
@pytest.mark.parametrize("optimizer", ["torch", "deepspeed", "zero1"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_take_the_steps_of_one_process(two, optimizer, kind):
    """Seven rows and one to three pairs in small micro-batches: the ranks have different numbers of them, and sometimes none."""
    require_same(two[1][f"{optimizer} {kind}"], two[1][f"alone torch {kind}"])
    assert two[1][f"{optimizer} {kind}"]["steps"] == 6


@installed
@pytest.mark.parametrize("optimizer", ["torch", "deepspeed", "zero1"])
def test_two_ranks_take_two_epochs_as_one_process(two, optimizer):
    twice = two[1][f"{optimizer} whole/epochs"]
    require_same(twice, two[1]["alone torch whole/epochs"])
    assert twice["steps"] == 2 * len(twice["metrics"]) == 6


@installed
def test_two_ranks_share_the_moving_average_of_a_half_precision_model(two):
    ours, again, alone = (two[1][name] for name in ("torch half", "torch half/load", "alone torch half"))
    assert ours["steps"] == alone["steps"] == 6
    for measured in (ours, alone):
        assert len(measured["followed"]) > 10
        for name, wanted in measured["followed"].items():
            assert torch.equal(measured["weights"][f"reference {name}"], wanted), name
            assert torch.equal(measured["used"][name], wanted.bfloat16()), name
    for name in ours["followed"]:
        name = f"reference {name}"
        assert torch.equal(again["weights"][name], ours["weights"][name])


@installed
def test_the_gradient_of_a_large_model_is_summed_in_buckets(two):
    ours, alone = two[1]["torch whole/large"], two[1]["alone torch whole"]
    for got, wanted in zip(ours["metrics"], alone["metrics"], strict=True):
        assert got["gradient_norm"] == pytest.approx(wanted["gradient_norm"], rel=1e-5)
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(ours["weights"][name], weight, atol=1e-5, rtol=1e-5, msg=name)


@installed
@pytest.mark.parametrize("optimizer", ["torch", "deepspeed", "zero1"])
def test_two_ranks_decay_weights_as_one_process(two, optimizer):
    decayed, plain = two[1][f"{optimizer} whole/decay"], two[1][f"{optimizer} whole"]
    require_same(decayed, two[1]["alone torch whole/decay"])
    assert any(not torch.allclose(decayed["weights"][n], w, atol=1e-4) for n, w in plain["weights"].items())


@installed
@pytest.mark.parametrize("optimizer", ["deepspeed", "zero1"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_a_large_model_is_the_same_without_copies(two, optimizer, kind):
    """Its parts are summed until the step, and their norms are not known."""
    large, alone = two[1][f"{optimizer} {kind}/large"], two[1][f"alone torch {kind}"]
    for got, wanted in zip(large["metrics"], alone["metrics"], strict=True):
        for name in ("base_gradient_norm", "surgical_gradient_norm"):
            assert math.isnan(got[name]) or got[name] == wanted[name] == 0.0  # there were no pairs
            got[name] = wanted[name]
    require_same(large, alone)


TAKEN = """
import resource
from pathlib import Path
import deepspeed, torch
from transformers import AutoModelForCausalLM, Qwen2Config
from tstar_train.learner.batch import MicroBatch
from tstar_train.learner.deepspeed import DeepSpeedLearner
from tstar_train.learner.reference import CopiedReference
from tstar_train.distributed import SingleProcess

torch.set_num_threads(2)
described = Qwen2Config(vocab_size=8000, hidden_size=768, intermediate_size=2560, num_hidden_layers=7, num_attention_heads=12,
                        num_key_value_heads=4, tie_word_embeddings=True)
model = AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16).eval()
learner = DeepSpeedLearner(model, CopiedReference(model), SingleProcess(), learning_rate=1e-5)
ids = torch.randint(0, 8000, (1, 16))
micro = MicroBatch(ids, torch.ones_like(ids, dtype=torch.bool) & (torch.arange(16) > 0))
gradient = 4 * sum(p.numel() for p in model.parameters())
for step in range(2):  # AdamW has its moments after the first
    Path("/proc/self/clear_refs").write_text("5")
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    for part in ("base", "surgical"):
        learner.backward(-learner.forward(micro).logprobs.mean())
        learner.end_part(part), learner.add_part(part)
    learner.apply(1.0)
(highest,) = [int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(gradient, (highest - before) / gradient)
"""


@installed
@pytest.mark.slow
def test_a_step_of_a_large_model_takes_few_gradients():
    """Three: the gradient with DeepSpeed's bucket and its copy, which so small a model fits into, and then with what AdamW computes."""
    gradient, taken = map(float, program("-W", "ignore", "-c", TAKEN).stdout.split()[-2:])
    assert gradient > 4 * 50_000_000 and 2 < taken < 3.6, taken


@installed
@pytest.mark.parametrize("optimizer", ["deepspeed", "zero1"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_two_ranks_goes_on_at_two(two, optimizer, kind):
    whole, again = two[1][f"{optimizer} {kind}"], two[1][f"{optimizer} {kind}/load"]
    require_same(again, two[1][f"alone torch {kind}"], last=3)
    mine, gone_on = whole["weights"], again["weights"]
    assert all(torch.equal(mine[name], gone_on[name]) for name in mine), "bit for bit, with the same number"


@installed
@pytest.mark.parametrize("optimizer", ["deepspeed", "zero1"])
@pytest.mark.parametrize("how", ["nan", "nan gradient"])
def test_what_is_no_number_stops_all_ranks_before_the_step(two, optimizer, how):
    """It arises on the last rank, in its second step; the first one, which has the files, gets it with its rows."""
    result = two[1][f"{optimizer} whole/{how}"]
    message, rows = result["error"]
    assert "NaN" in message and rows >= 3
    assert result["steps"] == 1 and all(
        bool(torch.isfinite(tensor).all()) for tensor in result["weights"].values()
    )


@installed
@pytest.mark.parametrize("optimizer", ["deepspeed", "zero1"])
def test_a_step_without_a_gradient_moves_nothing(two, optimizer):
    empty = two[1][f"{optimizer} whole/empty"]
    assert empty["steps"] == 2
    assert empty["metrics"][1]["gradient_norm"] == 0.0
    require_same(empty, two[1]["alone torch whole/empty"])


@installed
@pytest.mark.slow
def test_one_rank_takes_the_steps_of_plain_torch_and_goes_on_from_two(two, tmp_path):
    for name in NAMES:
        assert two[1][f"deepspeed {name}/save"]["steps"] == 3
        shutil.copytree(two[0] / f"deepspeed-{name}", tmp_path / f"deepspeed-{name}")
        shutil.copytree(two[0] / f"deepspeed-{name}", tmp_path / f"torch-{name}")
    kinds = [*NAMES, "critic", "separate critic", "recomputed"]
    loads = [f"{optimizer} {kind}/load" for optimizer in ("deepspeed", "torch") for kind in NAMES]
    one = steps(
        tmp_path,
        1,
        *(f"{optimizer} {kind}" for optimizer in ("deepspeed", "torch") for kind in [*kinds, "half"]),
        *loads,
    )
    for kind in kinds:
        require_same(one[f"deepspeed {kind}"], one[f"torch {kind}"])
    for load in loads:  # whichever learner goes on
        require_same(one[load], one[f"torch {load.split()[1].split('/')[0]}"], last=3)
    # Weights of half precision are rounded from others, which differ by less than a thousandth of that rounding.
    require_same(one["deepspeed half"], one["torch half"], weights=False)


@installed
@pytest.mark.slow
def test_two_ranks_with_a_critic_recomputed_layers_or_half_precision(tmp_path):
    kinds = ["critic", "separate critic", "recomputed"]
    half = ["half", "half/save", "half/load", "half adapters", "half adapters/save", "half adapters/load"]
    two = steps(
        tmp_path,
        2,
        *(f"deepspeed {kind}" for kind in [*kinds, *half]),
        *(f"alone torch {kind}" for kind in kinds),
    )
    for kind in kinds:
        require_same(two[f"deepspeed {kind}"], two[f"alone torch {kind}"])
    for kind in ("half", "half adapters"):
        mine, gone_on = two[f"deepspeed {kind}"]["weights"], two[f"deepspeed {kind}/load"]["weights"]
        assert all(torch.equal(mine[name], gone_on[name]) for name in mine), "bit for bit, masters and all"


UNMENDED = """
import faulthandler, sys
import deepspeed
from tstar_train.learner import deepspeed as zero
from learner_ranks import main
zero.import_deepspeed = lambda device: deepspeed
faulthandler.dump_traceback_later(30, exit=True)
main(2, sys.argv[1], "deepspeed whole")
"""


@installed
@pytest.mark.slow
def test_the_stale_lock_would_stop_a_run_that_compiles_the_operation(tmp_path):
    """So that the fixture ``two``, which meets the same lock, shows something."""
    command = [sys.executable, "-c", UNMENDED, tmp_path / "2.pt"]
    with Started(
        tmp_path, [command], **with_stale_lock(tmp_path / "extensions")
    ) as started:  # its other rank waits on: it is killed
        assert started.codes(120) != [0] and not (tmp_path / "2.pt").exists()
        assert "file_baton.py" in started.printed[0] and "in wait" in started.printed[0], started.printed


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra,
        match=r"--learner deepspeed needs the package 'deepspeed'.*pip install .*\[deepspeed\]",
    ):
        check(Config(env="hotpotqa", learner="deepspeed"))


@installed
@pytest.mark.slow
def test_whole_runs_by_own_processes_torchrun_and_the_deepspeed_launcher(tmp_path):
    """The same run by four ways to start it; one is stopped on the way and goes on with another number of processes."""
    deepspeed = ["--learner", "deepspeed"]
    plain, own, torchrun, launcher = (tmp_path / name for name in ("plain", "own", "torchrun", "launcher"))
    program(*RUN, "--processes", 2, "--out", plain, timeout=300)
    program(*RUN, *deepspeed, "--processes", 2, "--out", own, timeout=300)
    require_same_run(own, plain)
    program(*TORCHRUN, 2, *RUN, *deepspeed, "--out", torchrun, timeout=300)
    require_same_run(torchrun, own)
    command = "-m deepspeed.launcher.runner --no_local_rank --num_accelerators 2 --master_port 29655".split()
    program(*command, "--module", *RUN[1:], *deepspeed, "--out", launcher, timeout=300, DS_ACCELERATOR="cpu")
    require_same_run(launcher, own)
    for ranks in (1, 2):
        again = tmp_path / f"again{ranks}"
        shutil.copytree(torchrun, again)
        program(*TORCHRUN, ranks, "-m", "tstar_train", "--resume", again, "--iterations", 5, timeout=300)
        assert len(logged(again)) == 5 and (again / "summary.json").is_file()
        require_same_run_until(again, torchrun, 3)


def require_same_run_until(mine, theirs, count):
    assert logged(mine)[:count] == logged(theirs)[:count]
