"""The parts of scripts/check_gpu.py, which need a GPU: that each can be asked for, and what can be tried without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def modules(monkeypatch):
    """The script and its programs, by name."""
    for folder in (SCRIPTS, SCRIPTS / "bench"):
        monkeypatch.syspath_prepend(folder)
    import check_gpu
    import gpu_parts
    import gpu_plan
    import gpu_sampling
    import gpu_vllm

    return {m.__name__: m for m in (check_gpu, gpu_parts, gpu_plan, gpu_sampling, gpu_vllm)}


def test_each_part_is_known_to_its_program_and_described(modules):
    script = modules["check_gpu"]
    for part, (program, limit) in script.PARTS.items():
        source = (SCRIPTS / "bench" / program).read_text()
        assert f'"{part}"' in source and f"\n- {part}: " in script.__doc__
        # A machine is lent for minutes; the first parts are from before that.
        assert limit <= 240 or part in ("plan", "vllm")
    assert modules["gpu_sampling"].PARTS.keys() <= script.PARTS.keys()
    assert modules["gpu_vllm"].CASES.keys() <= script.PARTS.keys()
    assert sum(limit for _, limit in script.PARTS.values()) <= 50 * 60, "the default of --minutes is for all"


def test_each_case_has_options_that_a_run_takes(modules, tmp_path):
    plan, vllm = modules["gpu_plan"], modules["gpu_vllm"]
    learners = {way: plan.config_of(tmp_path, way, "cpu", True).learner for way in plan.WAYS}
    assert learners == {"adapters": "torch", "whole": "torch", "whole, ZeRO-2": "deepspeed"}
    for cases in vllm.CASES.values():
        assert set(cases) <= {*vllm.RUNS, *vllm.ENGINES, "by command line", "tests"}
    found = {vllm.run_config(tmp_path, name, "cpu", True).optim.correction for name in vllm.CORRECTIONS}
    assert found == {"none", "sequence-mask", "token-truncate", "token-mask"}


@pytest.mark.slow
def test_parts_run_at_tiny_sizes_without_a_gpu(tmp_path):
    command = [sys.executable, SCRIPTS / "check_gpu.py", "--device", "cpu", "--parts", "decode,paged,loss"]
    subprocess.run([*command, "--out", tmp_path / "check.md"], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in (tmp_path / "check.jsonl").read_text().splitlines()]
    ended = {line["row"]["part"]: line["row"]["result"] for line in lines if line["table"] == "how it ended"}
    assert ended == dict.fromkeys(("decode", "paged", "loss"), "ok")
    rows = [line["row"] for line in lines if line["part"] == "paged" and "difference_max" in line["row"]]
    assert len(rows) == 6 and all(row["difference_max"] < 1e-5 for row in rows)
    chunked, whole = (line["row"]["gradient"] for line in lines if line["table"] == "loss")
    assert chunked == pytest.approx(whole, rel=1e-2)
