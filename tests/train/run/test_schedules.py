"""What changes in the course of a run: tasks in order, learning rate and temperature."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs import UnknownOption
from tstar_train import ranks
from tstar_train.__main__ import main
from tstar_train.config import Config, RolloutConfig
from tstar_train.loop import rate, share_of_episodes, share_of_minutes, share_of_turns
from tstar_train.rollout.stream import TaskStream
from tstar_train.run import resume_run

SMALL = Config(env="tstar/HotpotQA", rollout=RolloutConfig(tasks_per_iteration=2, group_size=4))


@given(st.integers(0, 5), st.integers(4, 40), st.integers(1, 4))
def test_each_pass_shows_every_task_at_most_once(seed, count, size):
    stream = TaskStream([f"t{i}" for i in range(count)], size, seed)
    usable = count // size * size
    for turn in (0, 1):
        one = stream.take(turn * usable, usable)
        assert len(one) == len(set(one)) == usable
    # However many are taken at once, the stream is the same: resampling and resuming are one thing.
    assert stream.take(0, 2 * usable) == stream.take(0, size) + stream.take(size, 2 * usable - size)


def test_learning_rate_falls_at_the_end():
    config = dataclasses.replace(SMALL, iterations=100, optim=dataclasses.replace(SMALL.optim, decay=0.5))
    assert (
        rate(config, 0) == rate(config, 50) == 1.0 and rate(config, 75) == 0.5 and 0 < rate(config, 99) < 0.03
    )
    assert rate(SMALL, 1) == 1.0


def test_rate_and_temperature_follow_the_episodes_where_they_are_counted():
    config = dataclasses.replace(
        SMALL, iterations=100, episodes=800, optim=dataclasses.replace(SMALL.optim, decay=0.5)
    )
    assert share_of_episodes(config, 100) == 0.5 and share_of_episodes(SMALL, 100) == 0.0  # groups of 4
    assert rate(config, 10, 0.5) == 1.0 and rate(config, 10, 0.75) == 0.5 and rate(config, 75, 0.1) == 0.5


def test_rate_follows_the_minutes_where_they_are_limited():
    config = dataclasses.replace(
        SMALL, iterations=100, minutes=10, optim=dataclasses.replace(SMALL.optim, decay=0.5)
    )
    done = [share_of_minutes(config, seconds) for seconds in (0, 300, 450, 600)]
    assert done == [0, 0.5, 0.75, 1]
    assert [rate(config, 1, share) for share in done] == [1, 1, 0.5, 0]
    assert rate(config, 75, 0.1) == 0.5  # the iterations end first
    assert share_of_minutes(SMALL, 1e9) == 0


def test_rate_follows_the_turns_where_they_are_counted():
    config = dataclasses.replace(
        SMALL, iterations=100, turns=1000, optim=dataclasses.replace(SMALL.optim, decay=0.5)
    )
    assert share_of_turns(config, 750) == 0.75 and share_of_turns(SMALL, 10**6) == 0.0
    assert rate(config, 10, 0.75) == 0.5


def test_a_run_ends_with_the_iteration_that_samples_the_last_turns(tmp_path):
    """And cannot be made longer by iterations; forks and replies that were not played count."""
    words = "--env hotpotqa --iterations 50 --turns 60 --explore.share 0.5 --explore.first untried --checkpoint-every 1"
    tiny = "--rollout.tasks-per-iteration 2 --rollout.group-size 4 --processes 1 --evaluation.tasks 1 --evaluation.samples 1"
    out = tmp_path / "run"
    assert main([*words.split(), *tiny.split(), "--out", str(out)]) == 0
    turns = [json.loads(line)["turns_sampled"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum(turns[:-1]) < 60 <= sum(turns) and 1 < len(turns) < 10
    states = sorted(out.glob("checkpoints/*/state.json"))
    assert json.loads(states[-1].read_text())["turns"] == sum(turns)
    with pytest.raises(UnknownOption, match="ended by --turns 60"):
        resume_run(out, iterations=80)


def test_a_run_tells_its_iterations_how_much_of_its_minutes_has_passed(tmp_path, monkeypatch):
    """The share is made of the seconds that are saved, so that a resumed run goes on with it."""
    passed = []
    real = ranks.ORDERS["iterate"]

    def iterate(trainer, number, share):
        passed.append(share)
        return real(trainer, number, share)

    monkeypatch.setitem(ranks.ORDERS, "iterate", iterate)
    tiny = "--iterations 3 --minutes 9 --rollout.tasks-per-iteration 1 --rollout.group-size 2 --rollout.horizon 1 --rollout.max-tokens 4"
    rest = "--processes 1 --evaluation.tasks 1 --evaluation.samples 1 --evaluation.validate-every 0"
    out = tmp_path / "run"
    assert main(["--env", "hotpotqa", "--out", str(out), *tiny.split(), *rest.split()]) == 0
    seconds = [json.loads(line)["seconds"] for line in (out / "timings.jsonl").read_text().splitlines()]
    assert passed == [0.0, *(second / 540 for second in seconds[:2])]
