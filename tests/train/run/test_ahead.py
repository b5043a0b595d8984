"""Sampling ahead: what belongs to which weights, the queue in the checkpoint, and runs that are stopped, killed or fail."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import pickle
import shutil
import signal

import pytest
import torch
from policies import random_policy, trainer
from rich.console import Console
from train_process import TrainProcess

from tstar_envs import BadData, InfrastructureError, UnknownOption
from tstar_train import build, loop
from tstar_train.ahead import Ahead, read_queue
from tstar_train.config import Config, EvaluationConfig, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.config_check import check
from tstar_train.distributed import SingleProcess
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.process import EngineProcess
from tstar_train.loop import iterate
from tstar_train.presets import make_config
from tstar_train.run import resume_run, train
from tstar_train.types import IterationData

TASKS = [f"hotpotqa-mini-train-{n:04d}" for n in range(2)]
SMALL = Config(
    env="tstar/HotpotQA",
    iterations=3,
    env_options={"topk": 1, "horizon": 2},
    rollout=RolloutConfig(tasks_per_iteration=2, group_size=2, max_tokens=8),
    tree=TreeConfig(enabled=False),
    graft=GraftConfig(batch=5),
    optim=OptimConfig(learning_rate=1e-2),
    evaluation=EvaluationConfig(tasks=2, samples=1, greedy=False),
    processes=1,
)


class Copied(LocalEngine):
    """The local engine with a copy of the weights, as a process of its own has them, without the seconds of its start."""

    def __init__(self, policy):
        self.copy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
        super().__init__(self.copy, keep_rows=True)

    shares_weights = False

    def sync(self, weights):
        own = self.copy.model.state_dict()
        for name, tensor in weights:
            own[name].copy_(tensor)
        super().sync(())


def small(config=SMALL, ahead=True):
    one = trainer(config, random_policy(spread=0.02), TASKS)
    # The episodes are short and lose alike: so they have something to learn.
    one.algorithm.episode_advantages = lambda group: [
        torch.linspace(-1, 1, len(t.turns)).double().numpy() for t in group
    ]
    if ahead:
        one.config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, ahead=1))
        one.sampler = dataclasses.replace(one, engine=Copied(one.policy))
    return one


def weights(one):
    return torch.cat([p.detach().flatten() for p in one.policy.model.parameters()]).clone()


def sampled(data):
    turns = [(turn.reply, turn.logprobs) for g in data.groups for t in g.trajectories for turn in t.turns]
    return data.number, data.lag, data.tasks, turns, [a.tolist() for g in data.groups for a in g.advantages]


def test_each_iteration_is_sampled_with_the_weights_before_the_last_update():
    """The same run without sampling ahead, whose engine is given the weights of one update ago."""
    one, held = small(), []
    plain = small(ahead=False)
    plain.engine = Copied(plain.policy)
    plain.engine.__class__ = type(
        "Exact", (Copied,), {"shares_weights": True}
    )  # no old log-probabilities anew
    for number in range(3):
        held.append({name: tensor.clone() for name, tensor in plain.learner.weights()})
        lagging = held[max(0, number - 1)]
        plain.engine.sync = lambda _, lagging=lagging: Copied.sync(plain.engine, lagging.items())
        plain.config = dataclasses.replace(
            SMALL, optim=dataclasses.replace(SMALL.optim, max_logprob_difference=math.inf)
        )
        first, second = iterate(one, number), iterate(plain, number)
        assert first.metrics["sampling_lag"] == (number > 0)
        assert sampled(first.data)[3:] == sampled(second.data)[3:] and torch.equal(
            weights(one), weights(plain)
        )
        one.whole = plain.whole = True
    assert (one.cursor, one.turns) == (plain.cursor, plain.turns)
    assert not one.ahead.waiting, "nothing is sampled that no iteration trains on"
    assert not torch.equal(weights(one), weights(small()))


def test_nothing_is_sampled_beyond_the_turns_of_a_run():
    counted = iterate(small(), 0).metrics["turns_sampled"]
    one = small(dataclasses.replace(SMALL, iterations=50, turns=counted + 1))
    for number in range(2):
        iterate(one, number)
        assert one.ahead.waiting == (number == 0)


def test_an_error_of_the_sampling_comes_up_where_its_episodes_are_needed():
    one = small()
    one.sampler.engine.generate = lambda *_, **__: 1 / 0
    with pytest.raises(ZeroDivisionError):
        iterate(one, 0)
    assert not one.ahead.waiting and one.whole
    one = small()
    generate = one.sampler.engine.generate

    def failing(contexts, seeds, **options):
        if "/rollout/1/" in seeds[0]:
            raise ZeroDivisionError
        return generate(contexts, seeds, **options)

    one.sampler.engine.generate = failing
    iterate(one, 0)
    with pytest.raises(ZeroDivisionError):
        iterate(one, 1)


def test_the_queue_comes_back_from_its_file(tmp_path):
    one = small()
    iterate(one, 0)
    one.ahead.gather(one.world)
    (tmp_path / "queue").write_bytes(one.ahead.packed())
    other = Ahead()
    other.load(tmp_path / "queue", one.world)
    assert sampled(other.take()) == sampled(one.ahead.take())
    other.load(tmp_path / "none", one.world)
    assert not other.waiting
    with pytest.raises(ValueError, match="nothing was sampled"):
        other.take()


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (pickle.dumps([Evil()]), "builtins.print"),
        (pickle.dumps({"a": 1}), "no sampled episodes"),
        (pickle.dumps([]), "no sampled episodes"),
        # What a module imports, by a dotted name or as its own; a class that starts a process.
        (b"ctstar_train.types\nnp.load\n.", "np.load"),
        (b"\x80\x04\x8c\x11tstar_train.types\x8c\x07np.load\x93.", "np.load"),
        (b"\x80\x04\x8c\x11tstar_train.types\x8c\x07Counter\x93.", "types.Counter"),
        (pickle.dumps(EngineProcess), "EngineProcess"),
    ],
)
def test_a_queue_of_something_else_is_refused(tmp_path, content, said):
    (tmp_path / "queue").write_bytes(content)
    with pytest.raises(BadData, match=said):
        Ahead().load(tmp_path / "queue", SingleProcess())


class Rank(SingleProcess):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_two_processes_sampled_goes_on_with_another_number(tmp_path, ranks):
    one = small()
    iterate(one, 0)
    data = one.ahead.take()
    parts = [dataclasses.replace(data, groups=[group], tasks=1) for group in data.groups]
    assert len(parts) == 2
    (tmp_path / "queue").write_bytes(pickle.dumps(parts))
    found = []
    for rank in range(ranks):
        queue = Ahead()
        queue.load(tmp_path / "queue", Rank(rank, ranks))
        found.append(queue.take())
    assert all((part.number, part.lag) == (1, 1) for part in found)
    assert len(found[0].groups) == (2 if ranks == 1 else 0), "shares of two groups in order of rank"
    whole = IterationData.merge(found)
    assert sampled(whole) == sampled(data) and (whole.tasks, whole.turns) == (2, 2 * data.turns)


def test_what_cannot_go_on_side_by_side_is_refused():
    ahead = {"rollout.ahead": 1, "tree.nodes": "state"}
    check(make_config("blocksworld-stack", **ahead))
    with pytest.raises(UnknownOption, match="vllm-server"):
        check(make_config("blocksworld-stack", engine="vllm", **ahead))
    with pytest.raises(UnknownOption, match="leave one out"):
        forks = {"explore.share": 0.5, "explore.credit": "graph", "explore.where": "policy"}
        check(make_config("blocksworld-stack", **ahead, **forks))
    with pytest.raises(UnknownOption, match="0 to 1, got 2"):
        check(make_config("blocksworld-stack", **{"rollout.ahead": 2}))


ENDED = dataclasses.replace(
    SMALL, model="tiny", iterations=4, rollout=dataclasses.replace(SMALL.rollout, ahead=1)
)


def test_iterations_are_saved_although_the_sampling_fails_that_the_end_waits_for(tmp_path, monkeypatch):
    """A run that is asked to stop waits for what is sampled, long after its last checkpoint."""
    sample = loop.sample

    def failing(sampler, data, timer):
        if data.number == 1:
            raise InfrastructureError("the service is down")
        sample(sampler, data, timer)

    monkeypatch.setattr(loop, "sample", failing)
    monkeypatch.setattr(build, "EngineProcess", lambda config, policy: Copied(policy))
    with pytest.raises(InfrastructureError, match="up to iteration 1 is saved"):
        train(
            ENDED,
            tmp_path / "run",
            Console(quiet=True),
            callback=lambda *_: os.kill(os.getpid(), signal.SIGINT),
        )
    assert (tmp_path / "run" / "checkpoints" / "000001" / "state.json").exists()


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_what_was_sampled(tmp_path):
    """Its checkpoint has the episodes of weights that are gone; the rest of the run is as if nothing had happened."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(ENDED, whole, Console(quiet=True))

    def stop(number, metrics):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(ENDED, checkpoint_every=1), stopped, Console(quiet=True), callback=stop)
    # As if it had been killed: what is saved after a failure has no queue, and its episodes are sampled anew.
    assert not (stopped / "checkpoints" / "000003" / "ahead.pickle").exists()
    shutil.rmtree(stopped / "checkpoints" / "000003")
    assert len(read_queue(stopped / "checkpoints" / "000002" / "ahead.pickle")) == 1
    resume_run(stopped, Console(quiet=True))
    assert lines(stopped) == lines(whole)
    assert [line["sampling_lag"] for line in lines(whole)] == [0, 1, 1, 1]
    last = [out / "checkpoints" / "000004" / "policy.safetensors" for out in (whole, stopped)]
    assert last[0].read_bytes() == last[1].read_bytes()


@pytest.mark.slow
def test_two_ranks_sample_ahead(tmp_path):
    small = ["--env", "hotpotqa", "--iterations", 3, "--rollout.ahead", 1, "--processes", 2, "--out"]
    less = ["--rollout.tasks-per-iteration", 2, "--rollout.group-size", 2, "--evaluation.tasks", 2]
    with TrainProcess(tmp_path, *small, tmp_path / "run", *less) as run:
        done = run.done()
    assert done.returncode == 0, done.stderr
    assert len(lines(tmp_path / "run")) == 3
