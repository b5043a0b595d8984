"""An engine in a process of its own: the same samples as in this one, weights that follow, and how it ends."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from policies import random_policy

from tstar_envs import UnknownOption
from tstar_train.config import Config, RolloutConfig
from tstar_train.engines.base import EngineFailed
from tstar_train.engines.check import require_following
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.process import EngineProcess
from tstar_train.learner.base import tied
from tstar_train.policy.kv import ContextTooLong
from tstar_train.policy.lora import add_adapters, merged_weights
from tstar_train.progress import progress

CONFIG = Config(env="tstar/HotpotQA", rollout=RolloutConfig(context_tokens=300, max_sequences=7))
CONTEXTS = [[5, 6, 7], [9] * 40]


def weights(policy):
    return ((n, t.detach()) for n, t in policy.model.state_dict().items() if not tied(policy.model, n))


@pytest.fixture(scope="module")
def policy():
    return random_policy()


@pytest.fixture(scope="module")
def engine(policy):
    made = EngineProcess(CONFIG, policy)
    yield made
    made.close()
    assert made._process.poll() == 0


def test_it_samples_and_scores_as_the_engine_does_here(policy, engine):
    assert (engine.limit, engine.rows_at_once, engine.shares_weights) == (300, 7, False)
    require_following(policy, engine, lambda: weights(policy))
    here = LocalEngine(policy, limit=300)
    for copies, ends in ((1, ()), (3, (7, 8))):
        options = {"max_tokens": 9, "copies": copies, "ends": ends, "temperature": 0.7}
        seeds = [f"s{n}" for n in range(2 * copies)]
        assert engine.generate(CONTEXTS, seeds, **options) == here.generate(CONTEXTS, seeds, **options)
    tails = [[[3, 4], [5]], [[6]]]
    assert engine.logprobs(CONTEXTS, tails) == here.logprobs(CONTEXTS, tails)
    with pytest.raises(ContextTooLong, match="limit is 300"):
        engine.logprobs([[3] * 300], [[[4]]])
    assert engine.logprobs(CONTEXTS, tails) == here.logprobs(CONTEXTS, tails), "an error is no end"


def test_it_samples_with_the_weights_of_the_last_sync(policy, engine):
    """The trainer's weights change beside it, and reach it with the next sync only."""
    engine.sync(weights(policy))
    before = engine.logprobs(CONTEXTS, [[[3, 4]], [[6]]])
    kept = [p.detach().clone() for p in policy.model.parameters()]
    try:
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.1)
        engine.clear_cache()
        assert engine.logprobs(CONTEXTS, [[[3, 4]], [[6]]]) == before
        engine.sync(weights(policy))
        now = engine.logprobs(CONTEXTS, [[[3, 4]], [[6]]])
        assert now != before and now == LocalEngine(policy).logprobs(CONTEXTS, [[[3, 4]], [[6]]])
    finally:
        with torch.no_grad():
            for parameter, value in zip(policy.model.parameters(), kept, strict=True):
                parameter.copy_(value)


def test_the_trainer_hears_of_its_progress(policy, engine):
    """Else a process that samples one long batch would seem to hang to the other processes of the run."""
    before, deadline = progress.count, time.monotonic() + 60
    while progress.count == before and time.monotonic() < deadline:
        engine.generate(CONTEXTS, ["a", "b"], max_tokens=200)
    assert progress.count > before


def test_weights_without_room_are_refused_rather_than_a_bus_error(policy, engine, monkeypatch):
    """A full disk is found when the place is taken, before anything is written to mapped memory."""
    monkeypatch.setattr(engine, "_shared", {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(EngineFailed, match="set TMPDIR"):
            engine.sync(weights(policy))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_adapters_are_merged_into_the_copy():
    policy = random_policy(1)
    add_adapters(policy.model, 4, 8)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    engine = EngineProcess(CONFIG, policy)
    try:
        require_following(
            policy,
            engine,
            lambda: ((n, t) for n, t in merged_weights(policy.model) if not tied(policy.model, n)),
        )
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"), [(signal.SIGKILL, "killed by SIGKILL .*memory"), (signal.SIGABRT, "killed by SIGABRT")]
)
def test_a_process_that_dies_is_named(policy, how, said):
    engine = EngineProcess(CONFIG, policy)
    engine.sync(weights(policy))
    os.kill(engine._process.pid, how)
    with pytest.raises(EngineFailed, match=said):
        engine.generate(CONTEXTS, ["a", "b"], max_tokens=4)


@pytest.mark.slow
def test_it_outlives_the_signals_of_a_scheduler_and_ends_at_once_within_a_request(policy):
    """A scheduler signals all processes of a run, which saves its iteration first; a run that fails waits for no samples."""
    engine = EngineProcess(CONFIG, policy)
    engine.sync(weights(policy))
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(engine._process.pid, signum)
    before = engine.generate(CONTEXTS, ["a", "b"], max_tokens=4)
    assert before == LocalEngine(policy, limit=300).generate(CONTEXTS, ["a", "b"], max_tokens=4)
    os.kill(engine._process.pid, signal.SIGSTOP)  # as if within a long request

    def ask():
        with suppress(EngineFailed):
            engine.generate(CONTEXTS, ["a", "b"], max_tokens=4)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    while not engine._asked:
        time.sleep(0.01)
    begun = time.monotonic()
    engine.close()
    assert time.monotonic() - begun < 5
    asking.join(5)
    assert not asking.is_alive()


@pytest.mark.slow
def test_what_it_cannot_begin_with_is_said(policy):
    with pytest.raises(UnknownOption, match="no_such_module"):
        EngineProcess(replace(CONFIG, engine="no_such_module:Engine"), policy)
