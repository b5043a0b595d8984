"""The same run under ``torchrun`` and with processes of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = (
    "-m tstar_train --env hotpotqa --iterations 2 --rollout.tasks-per-iteration 2 --rollout.group-size 2 "
    "--tree.nodes depth --tree.kl-samples 2 --evaluation.tasks 3 "
    "--evaluation.samples 1"
).split()


@pytest.mark.slow
def test_torchrun_gives_what_own_processes_give(tmp_path):
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    subprocess.run([sys.executable, *RUN, "--processes", "2", "--out", own], check=True, timeout=300)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, *RUN, "--out", theirs], check=True, timeout=300)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (own / name).read_bytes() == (theirs / name).read_bytes(), name
