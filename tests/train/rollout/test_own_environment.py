"""docs/adding_an_environment.md, followed: the trainer takes its environment, planned only or trained on."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from lamps_environment import Lamps, entry_of
from policies import random_policy
from train_process import run

from scripts.studies.small_models import save_small
from tstar_envs import register
from tstar_envs.registry import OWN_ENTRIES
from tstar_train.engines.local import LocalEngine
from tstar_train.progress import progress
from tstar_train.rollout.collect import EnvSpec, collect, play_on
from tstar_train.rollout.player import Sampling

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "adding_an_environment.md").read_text()
SMALL = (
    "--iterations 1 --rollout.tasks-per-iteration 1 --rollout.group-size 2 --rollout.max-tokens 16 --rollout.horizon 2 "
    "--evaluation.tasks 1 --evaluation.samples 1"
)


@pytest.mark.parametrize("only_planned", [True, False])
def test_the_trainer_takes_it(tmp_path, monkeypatch, only_planned):
    """In processes forked from one that has torch, which get this one's path."""
    (tmp_path / "lamps.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.S)[1])
    monkeypatch.syspath_prepend(tmp_path)
    save_small("qwen2", tmp_path / "model")
    [command] = re.findall(r"^python -m tstar_train (.*--dry-run)(?:  +#.*)?$", PAGE, re.M)
    arguments = command.replace("PATH", str(tmp_path / "model")).split()
    out = tmp_path / "run"
    if only_planned:
        done = run(tmp_path, *arguments, "--out", out)
        assert "peak of a process" in done.stdout and not out.exists()
    else:
        arguments.remove("--dry-run")
        run(tmp_path, *arguments, "--out", out, "--processes", 1, *SMALL.split())
        assert json.loads((out / "summary.json").read_text())["env"] == "lamps:mine/Lamps"


class Timed(Lamps):
    """Notes the count of finished work as each of its slow parts begins."""

    seen: dict[str, list[int]] = {}

    def reset(self, **options):
        self.seen.setdefault("reset", []).append(progress.count)
        return super().reset(**options)

    def _apply(self, task, state, action):
        self.seen.setdefault("step", []).append(progress.count)
        return super()._apply(task, state, action)

    def restore(self, snapshot):
        self.seen.setdefault("restore", []).append(progress.count)
        super().restore(snapshot)


def test_every_step_of_a_slow_environment_counts_as_progress():
    """A group's environments step one after another: all together they may take longer than other processes wait."""
    policy = random_policy()
    entry = replace(entry_of(Timed), entry_point=f"{__name__}:Timed")
    register(entry)
    try:
        spec, engine = EnvSpec(entry.id, {"horizon": 2}), LocalEngine(policy)
        options = {"split": "train", "seed": "", "sampling": Sampling(4, snapshots=True)}
        found = collect(spec, engine, policy.codec, ["lamps-1", "lamps-2"], size=2, **options)
        play_on([(t, 1) for t in found], spec, engine, policy.codec, **options)
    finally:
        OWN_ENTRIES.pop(entry.id)
    assert Timed.seen.keys() == {"reset", "step", "restore"}
    for counts in Timed.seen.values():
        assert len(set(counts)) == len(counts)
