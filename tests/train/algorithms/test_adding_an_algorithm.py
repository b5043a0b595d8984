"""docs/adding_an_algorithm.md, followed: its algorithm trains alone and under T-STAR, and what it credits is what the page says."""

import dataclasses
import importlib
import os
import random
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from episodes import episode_of
from policies import random_policy, trainer

from tstar_envs import UnknownOption, find_entry
from tstar_train.__main__ import main
from tstar_train.algorithms import algorithm_class, options_set_by
from tstar_train.algorithms.tstar import TStar
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.engines.check import EngineMismatch
from tstar_train.engines.local import LocalEngine
from tstar_train.learner.batch import Totals, forward, sequence_micro_batches
from tstar_train.loop import iterate
from tstar_train.presets import tiny, with_algorithm
from tstar_train.types import Group, KLWork, TokenSequence

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "adding_an_algorithm.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's modules in a folder of their own."""
    names = ("rloo", "reinforce_pp", "gspo")
    for name, text in zip(names, re.findall(r"```python\n(.*?)```", PAGE, re.S), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
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


class Rank(SingleProcess):
    """One of several ranks in threads of this process, which add up tensors."""

    def __init__(self, barrier, parts):
        self.barrier, self.parts = barrier, parts

    def all_reduce(self, values):
        self.parts.append(values.clone())
        self.barrier.wait(10)
        return values.copy_(sum(self.parts[-self.barrier.parties :]))


def test_a_batch_is_normalised_over_all_ranks_however_its_groups_are_dealt(folder):
    algorithm = algorithm_class("reinforce_pp:ReinforcePlusPlus")(Config(env="hotpotqa"))

    def groups():
        found = []
        for rewards in ((1.0, 0.0, 0.0), (1.0, 0.0), (0.25, 0.5, 1.0, 0.0)):
            members = [episode_of("abcd"[: n + 1], r, member=n) for n, r in enumerate(rewards)]
            found.append(Group(members, algorithm.episode_advantages(members)))
        return found

    whole = groups()
    algorithm.batch_advantages(whole, SingleProcess())
    turns = np.concatenate([a for g in whole for a in g.advantages])
    assert np.isclose(turns.mean(), 0) and np.isclose(turns.std(), 1)
    dealt, barrier, parts = groups(), threading.Barrier(3), []
    shares = [dealt[:1], [], dealt[1:]]  # one rank has no group
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda own: algorithm.batch_advantages(own, Rank(barrier, parts)), shares))
    assert np.allclose(turns, np.concatenate([a for g in dealt for a in g.advantages]))


def test_the_hook_over_the_batch_sees_what_the_tree_credits(folder):
    policy = random_policy()
    seen = iterated("reinforce_pp:ReinforcePlusPlus", policy)
    turns = np.concatenate([a for g in seen.data.groups for a in g.advantages])
    assert not turns.any() or np.isclose(turns.std(), 1)


def iterated(algo, policy, engine=None):
    """One small iteration with an algorithm and an engine."""
    config = with_algorithm(tiny(find_entry("hotpotqa")), algo)
    small = dataclasses.replace(
        config.rollout, tasks_per_iteration=2, group_size=4, horizon=2, max_tokens=6, invalid_penalty=0.5
    )
    one = trainer(dataclasses.replace(config, rollout=small, tstar=False), policy)
    one.engine = engine or one.engine
    return iterate(one, 0)


class HalfTemperature(LocalEngine):
    """A sampler that is colder than it was asked to be."""

    def generate(self, contexts, seeds, *, temperature=1.0, **options):
        return super().generate(contexts, seeds, temperature=temperature / 2, **options)


@pytest.mark.parametrize("algo", ["gspo:GSPO", "reinforce_pp:ReinforcePlusPlus", "grpo"])
def test_a_sampler_that_disagrees_is_refused_whatever_the_loss_is(folder, algo):
    policy = random_policy()
    metrics = iterated(algo, policy).metrics
    assert metrics["entropy"] > 0 and metrics["logprob_difference_max"] < 1e-4
    before = [p.clone() for p in policy.model.parameters()]
    with pytest.raises(EngineMismatch, match="nats"):
        iterated(algo, policy, HalfTemperature(policy))
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_gspo_clips_the_geometric_mean_of_each_sequence(folder):
    """Against the formula sequence by sequence, with sequences of many lengths in micro-batches of several sizes."""
    policy, chance = random_policy(), random.Random(3)
    rows = []
    for number in range(7):
        ids = [chance.randrange(3, 900) for _ in range(chance.randrange(6, 14))]
        mask = [0, 0, 0] + [chance.choice([0, 1]) for _ in ids[4:]] + [1]
        old = [chance.uniform(-8, -5) for _ in ids]
        rows.append(
            TokenSequence(ids, mask, old, [(-1.0) ** number * (number + 1)] * len(ids), weight=1 / sum(mask))
        )
    rows.append(
        dataclasses.replace(rows[0], advantages=[-3.0] * len(rows[0].ids))
    )  # the same tokens, other credit
    with torch.no_grad():
        expected = 0.0
        for row in rows:
            logprobs = torch.log_softmax(policy.model(torch.tensor([row.ids])).logits[0], dim=-1)
            places = [n for n, own in enumerate(row.response_mask) if own]
            gaps = [float(logprobs[n - 1, row.ids[n]]) - row.logprobs[n] for n in places]
            ratio = np.exp(np.mean(gaps))
            gain = min(ratio * row.advantages[0], np.clip(ratio, 0.9, 1.2) * row.advantages[0])
            expected -= gain / len(rows)
    term = importlib.import_module("gspo").SequenceTerm(0.1, 0.2)
    for most in (20, 60, 500):
        loss = 0.0
        for micro in sequence_micro_batches(rows, most, 1.0, policy.codec.pad, torch.device("cpu")):
            part, _ = term(forward(policy.model, micro), micro, Totals(float(len(rows)), 1.0, 0.0), None)
            loss += part.item()
        assert loss == pytest.approx(expected, rel=1e-4), f"micro-batches of {most} tokens"


def test_a_group_without_a_tree_has_the_trees_credit():
    """A group of equal rewards has no tree: under the tree it counts nothing, whatever the algorithm would give it."""
    config = dataclasses.replace(
        Config(env="hotpotqa"), tree=dataclasses.replace(Config(env="hotpotqa").tree, nodes="state")
    )
    tstar = TStar(config, None, None, None, None)  # by state nobody is asked
    alike = [episode_of("ab", 1.0), episode_of("ac", 1.0, member=1)]
    base = [np.full(2, 0.7)] * 2
    assert tstar.trees([alike], 0, KLWork()) == [None]
    assert not any(row.any() for row in tstar.value(Group(alike), base))
    off = dataclasses.replace(config, tree=dataclasses.replace(config.tree, enabled=False))
    assert TStar(off, None, None, None, None).value(Group(alike), base) == base


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "grpo, dapo, dapo-paper, gigpo, hgpo, graphgpo, ppo, or module:Class"),
        ("no_such_module:RLOO", "PYTHONPATH"),
        ("rloo:Other", "has no attribute 'Other'"),
        ("rloo:np", "no subclass"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_a_sentence(folder, name, message):
    with pytest.raises(UnknownOption, match=message):
        algorithm_class(name)
