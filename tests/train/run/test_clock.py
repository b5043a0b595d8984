"""What the phases of an iteration took, also on a GPU where there is one."""

from __future__ import annotations

import json
from itertools import count

import pytest
import torch

from tstar_train.config import Config
from tstar_train.loop import IterationResult, PhaseTimer
from tstar_train.tracking import RunFolder
from tstar_train.types import IterationData


def test_phases_follow_one_another():
    ticks = count()
    timer = PhaseTimer(lambda: float(next(ticks)), torch.device("cpu"))
    timer.phase("rollout")
    timer.phase("update")
    assert timer.seconds == {"rollout": 1.0, "update": 1.0} and timer.memory == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_most_memory_of_each_phase_on_a_gpu():
    kept = torch.zeros(1 << 28, device="cuda")  # a GiB
    timer = PhaseTimer(lambda: 0.0, kept.device)
    more = torch.zeros(1 << 29, device="cuda")
    del more
    timer.phase("rollout")
    timer.phase("update")
    assert timer.memory["rollout"] == pytest.approx(3, abs=0.1)
    assert timer.memory["update"] == pytest.approx(1, abs=0.1)


def test_of_all_ranks_the_slowest_and_the_one_with_most_memory():
    one = IterationData(seconds={"rollout": 1.0, "update": 4.0}, memory={"update": 2.0})
    other = IterationData(seconds={"rollout": 3.0, "update": 2.0}, memory={"update": 5.0})
    whole = IterationData.merge([one, other])
    assert whole.seconds == {"rollout": 3.0, "update": 4.0} and whole.memory == {"update": 5.0}


@pytest.mark.parametrize("memory", [{}, {"update": 5.0}])
def test_it_is_logged_beside_the_seconds(memory, tmp_path):
    folder = RunFolder(tmp_path, Config(env="tstar/Sokoban-easy"))
    folder.log(1, IterationResult({"reward": 1.0}, {"update": 2.0}, memory, IterationData()), 2.5)
    folder.close()
    (line,) = map(json.loads, (tmp_path / "timings.jsonl").read_text().splitlines())
    more = {"gpu_memory_peak_gib": memory} if memory else {}
    assert line == {"iteration": 1, "update": 2.0, "seconds": 2.5, **more}
