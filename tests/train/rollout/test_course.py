"""Which task comes next: several environments by weight, pools by success, and pools that grow by the optimum."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs import UnknownOption, find_entry
from tstar_train.build import stream_of
from tstar_train.loop import course_progress
from tstar_train.presets import make_config
from tstar_train.rollout.collect import training_spec
from tstar_train.rollout.stream import (
    HIGH,
    LOW,
    Course,
    Estimates,
    Interleaving,
    pool_size,
)
from tstar_train.types import Outcome

TASKS = {"a": [f"a{n}" for n in range(40)], "b": [f"b{n}" for n in range(7)]}
NOTHING = Estimates({})


def course(curriculum="none", tasks=TASKS, weights=None, size=4, seed=0):
    return Course(tasks, Interleaving(weights or dict.fromkeys(tasks, 1.0)), curriculum, size, seed)


@given(st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4), st.integers(1, 60))
def test_every_prefix_is_close_to_the_weights(weights, length):
    named = {f"e{n}": weight for n, weight in enumerate(weights)}
    order = Interleaving(named)
    envs = order.take(0, length)
    share = {env: weight / sum(weights) for env, weight in named.items()}
    for end in range(length + 1):
        counts = Counter(envs[:end])
        assert all(abs(counts[env] - end * part) < len(named) for env, part in share.items())
        assert Interleaving(named).counts(end) == {env: counts[env] for env in named}
    assert Interleaving(named).take(7, length) == order.take(0, 7 + length)[7:], "a position alone tells"


@pytest.mark.parametrize("curriculum", ["none", "success", "optimum"])
@pytest.mark.parametrize("envs", [["sokoban-easy"], ["blocksworld-stack", "blocksworld-unstack"]])
def test_a_few_tasks_are_the_same_ones_for_every_seed(curriculum, envs):
    """All of them come, and no others."""
    played = []
    for seed in (0, 1):
        config = make_config(
            envs, curriculum=curriculum, train_tasks=5, seed=seed, rollout={"tasks_per_iteration": 2}
        )
        stream = stream_of(config)
        taken = (stream.at(0, 1.0, NOTHING) if isinstance(stream, Course) else stream).take(0, 40)
        played.append(taken if isinstance(taken[0], str) else [slot.task for slot in taken])
    assert set(played[0]) == set(played[1]) and len(set(played[0])) == 5 * len(envs)
    assert played[0] != played[1]


@pytest.mark.parametrize("number", [1, 3, 100_000])
def test_fewer_tasks_than_an_iteration_and_more_than_there_are_are_refused(number):
    config = make_config("sokoban-easy", train_tasks=number, rollout={"tasks_per_iteration": 4})
    with pytest.raises(
        UnknownOption, match=rf"--train-tasks {number} must be from 4 \(--rollout.tasks-per.*to \d+"
    ):
        stream_of(config)


def test_two_environments_take_turns_by_weight():
    envs = Interleaving({"hotpotqa": 1.0, "nq": 0.5}).take(0, 6)
    assert envs == ["hotpotqa", "nq", "hotpotqa"] * 2
    assert Interleaving({"a": 1.0, "b": 1.0}).take(0, 4) == ["a", "b", "a", "b"]


@pytest.mark.parametrize("curriculum", ["none", "success", "optimum"])
def test_slots_are_the_same_in_however_many_parts_they_are_taken(curriculum):
    known = Estimates({"a": {"a1": 0.5, "a2": 0.0}, "b": {"b1": 1.0}})
    one, other = (course(curriculum).at(12, 0.3, known) for _ in range(2))
    assert one.take(12, 9) == other.take(12, 2) + other.take(14, 7)
    assert one.take(12, 9) != course(curriculum, seed=1).at(12, 0.3, known).take(12, 9)


def test_each_environment_has_passes_of_its_own():
    slots = course().at(0, 1.0, NOTHING).take(0, 80)
    for env, tasks in TASKS.items():
        own = [slot.task for slot in slots if slot.env == env]
        assert len(own) == 40
        for begun in range(0, len(own) - len(tasks) + 1, len(tasks)):
            assert sorted(own[begun : begun + len(tasks)]) == sorted(tasks)


def test_estimates_average_the_visits_and_are_never_changed():
    first = NOTHING.updated([Outcome(1, "a", "x", 0.5), Outcome(0, "a", "y", 1.0)])
    then = first.updated([Outcome(0, "a", "x", 1.0), Outcome(1, "b", "x", 0.0)])
    assert NOTHING.by_env == {} and first.by_env == {"a": {"x": 0.5, "y": 1.0}}
    assert then.record() == {"a": {"x": 0.75, "y": 1.0}, "b": {"x": 0.0}}
    # A task that was drawn twice in an iteration: in order of its places, whatever rank says it first.
    twice = [Outcome(3, "a", "x", 0.0), Outcome(2, "a", "x", 1.0)]
    assert (
        first.updated(twice) == first.updated(twice[::-1]) and first.updated(twice).by_env["a"]["x"] == 0.375
    )
    assert then.metrics() == {"tasks_seen": 3, "tasks_too_hard": 1, "tasks_too_easy": 1}


def drawn(known, tasks, draws=400, count=8):
    """Count the draws of each task in iterations that all know the same."""
    one = course("success", {"a": tasks}, size=count)
    return Counter(
        slot.task
        for n in range(draws)
        for slot in one.at(n * count, 0.0, Estimates({"a": known})).take(n * count, count)
    )


def test_success_draws_around_one_half_and_revisits_what_it_left_out():
    tasks = [f"t{n:02d}" for n in range(60)]
    estimates = {task: n / 40 for n, task in enumerate(tasks[:41])}  # 0 to 1; 19 were never played
    counts = drawn(estimates, tasks)
    total = sum(counts.values())
    fresh = sum(counts[t] for t in tasks[41:]) / total
    out = sum(counts[t] for t, p in estimates.items() if p <= LOW or p >= HIGH) / total
    assert fresh == pytest.approx(8 / 16, abs=0.03) and out == pytest.approx(1 / 16, abs=0.02)
    near, far = (
        sum(counts[t] for t in tasks if t in estimates and low <= estimates[t] <= high)
        for low, high in ((0.4, 0.6), (0.06, 0.26))
    )
    assert near > 1.3 * far, "nine tasks around one half, nine hard ones"
    whole = course("success", {"a": tasks}, size=60).at(0, 0.0, Estimates({"a": estimates}))
    assert sorted(slot.task for slot in whole.take(0, 60)) == tasks, "none twice, and in the end all"


def test_success_without_a_pool_takes_what_there_is():
    tasks = ["x", "y", "z"]
    assert set(drawn({}, tasks, 5, 2)) == set(tasks), "nothing is known"
    assert set(drawn(dict.fromkeys(tasks, 0.0), tasks, 20, 2)) == set(tasks), "all are too hard"
    only = drawn({"x": 0.5, "y": 0.0, "z": 1.0}, tasks, 200, 1)
    assert only["x"] / 200 == pytest.approx(7 / 8, abs=0.08), "of the seen ones the pool takes seven of eight"


def test_the_optimum_grows_from_the_shortest_tenth_to_all():
    tasks = [f"t{n:03d}" for n in range(100)]
    one = course("optimum", {"a": tasks})
    for grown, size in ((0.0, 10), (0.5, 55), (1.0, 100)):
        assert pool_size(100, grown, 4) == size
        slots = [slot.task for n in range(0, 800, 4) for slot in one.at(n, grown, NOTHING).take(n, 4)]
        assert max(slots) == tasks[size - 1] and len(set(slots)) == size
        assert all(len(set(slots[n : n + 4])) == 4 for n in range(0, 800, 4)), "none twice in an iteration"
    assert pool_size(100, 0.0, 16) == 16 and pool_size(8, 0.0, 8) == 8


def test_the_shortest_tasks_are_those_of_the_environment():
    config = make_config("sokoban-easy", curriculum="optimum")
    slots = stream_of(config).at(0, 0.0, NOTHING).take(0, 30)
    env = find_entry("sokoban-easy").make().unwrapped
    lengths = {task: env.reset(options={"task": task})[1]["optimal_length"] for task in env.task_ids("train")}
    tenth = sorted(lengths.values())[math.ceil(len(lengths) / 10) - 1]
    assert all(lengths[slot.task] <= tenth for slot in slots) and tenth < max(lengths.values())
    with pytest.raises(UnknownOption, match=r"--curriculum optimum .* tstar/NQ does not give"):
        stream_of(make_config("nq", curriculum="optimum"))


def test_the_horizon_grows_with_the_run_and_no_clock():
    config = make_config("sokoban-easy", iterations=10, curriculum_until=0.5, rollout={"horizon_growth": 4})
    assert [course_progress(config, number, 0, 0) for number in (0, 1, 5, 9)] == [0, 0.2, 1, 1]
    assert [training_spec(config, grown).options["horizon"] for grown in (0, 0.2, 0.5, 1)] == [4, 7, 12, 20]
    counted = make_config(
        "sokoban-easy", iterations=10, curriculum_until=0.5, turns=100, episodes=None, minutes=1
    )
    assert course_progress(counted, 1, 0, 25) == 0.5
    plain = make_config("sokoban-easy", iterations=10, rollout={"horizon": None})
    assert training_spec(plain, 0.0) == training_spec(plain), "without the option nothing grows"


def test_the_horizon_of_each_environment_is_its_own():
    config = make_config(["sokoban-easy", "sokoban-medium"], rollout={"horizon": 30, "horizon_growth": 10})
    specs = {env: training_spec(config.of(env), 0.5) for env in config.environments}
    assert {env: spec.options["horizon"] for env, spec in specs.items()} == {
        "tstar/Sokoban-easy": 15,
        "tstar/Sokoban-medium": 20,
    }
