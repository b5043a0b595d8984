"""docs/adding_an_algorithm.md, followed: its algorithm trains alone and under T-STAR, and what it credits is what the page says."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from episodes import episode_of

from tstar_envs import UnknownOption
from tstar_train.__main__ import main
from tstar_train.algorithms import algorithm_class, options_set_by
from tstar_train.config import Config

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "adding_an_algorithm.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's module in a folder of its own."""
    (tmp_path / "rloo.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.S)[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rloo", raising=False)
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize("typed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_commands_of_the_page_run(typed, folder, monkeypatch):
    """Here, as an import of torch takes longer than all else; and the second one as typed, with a helper."""
    first, second = re.findall(r"^python -m tstar_train (.*?)(?:  #.*)?$", PAGE, re.M)
    small = "--rollout.tasks-per-iteration 2 --rollout.group-size 4 --iterations 1 --evaluation.tasks 2 --evaluation.samples 1"
    monkeypatch.chdir(folder)
    assert main(f"{first} --out run0 --processes 1 {small}".split()) == 0
    if not typed:
        assert main(f"{second} --out run1 --processes 1 {small}".split()) == 0
        return
    done = subprocess.run(
        [sys.executable, "-m", "tstar_train", *f"{second} --out run1 --processes 2 {small}".split()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all((folder / run / "summary.json").is_file() for run in ("run0", "run1"))


def test_each_member_is_compared_with_the_others(folder):
    algorithm = algorithm_class("rloo:RLOO")(Config(env="hotpotqa"))
    group = [episode_of("ab", 1.0), episode_of("a", 0.0, member=1), episode_of("abc", 0.0, member=2)]
    credit = algorithm.episode_advantages(group)
    assert [c.tolist() for c in credit] == [[1.0, 1.0], [-0.5], [-0.5] * 3]
    assert np.isclose(sum(c[0] for c in credit), 0.0)
    assert options_set_by("rloo:RLOO") == {"optim.aggregation": "token-mean"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "grpo, dapo, dapo-paper, gigpo, ppo, or module:Class"),
        ("no_such_module:RLOO", "PYTHONPATH"),
        ("rloo:Other", "has no attribute 'Other'"),
        ("rloo:np", "no subclass"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_a_sentence(folder, name, message):
    with pytest.raises(UnknownOption, match=message):
        algorithm_class(name)
