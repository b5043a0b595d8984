"""Ranks that take tasks as they get free: whoever plays what, the run is the same."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pickle
import random
import time
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from policies import trainer

from tstar_envs import UnknownTask, find_entry
from tstar_train import evaluate, loop
from tstar_train.build import held_out_tasks, make_env
from tstar_train.config import Config, EvaluationConfig, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.distributed import SingleProcess, launched, raise_on_any_rank
from tstar_train.learner.rows import PackedEpisode, cut_evenly
from tstar_train.loop import iterate
from tstar_train.policy.model import load_policy
from tstar_train.presets import make_config, with_algorithm
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.sample import units_of
from tstar_train.types import Trajectory, Turn, join_rows, rows_of

SMALL = Config(
    env="tstar/HotpotQA",
    iterations=2,
    env_options={"topk": 1, "horizon": 3},
    rollout=RolloutConfig(tasks_per_iteration=6, group_size=4, max_tokens=24, tasks_at_once=1),
    tree=TreeConfig(kl_samples=3, statistics_everywhere=True),
    graft=GraftConfig(batch=5),
    optim=OptimConfig(learning_rate=1e-3, num_minibatches=2),
)
SOKOBAN = make_config(
    "sokoban-easy",
    iterations=2,
    rollout={"tasks_per_iteration": 6, "group_size": 4, "tasks_at_once": 1, "horizon": 12},
    tree={"nodes": "state", "values": "bellman"},
    explore={"share": 0.5, "where": "policy", "credit": "graph"},
    graft={"source": "both", "keep": 5, "batch": 4},
    optim={"num_minibatches": 2},
)


class Forced:
    """A communicator that hands units out by lot: ``seed`` decides who plays what, and in which order."""

    def __init__(self, world, seed):
        self._world, self._random = world, random.Random(seed)

    def __getattr__(self, name):
        return getattr(self._world, name)

    def hand_out(self, count, fixed=False):
        if fixed:
            yield from self._world.hand_out(count, fixed)
            return
        of = [self._random.randrange(self._world.size) for _ in range(count)]
        order = self._random.sample(range(count), count)
        yield from (n for n in order if of[n] == self._world.rank)


def outcome(config, world, recipe="search_qa"):
    """Metrics of all iterations, a digest of the weights after them, and the groups that files show with their credit."""
    torch.set_num_threads(1)
    one, found = trainer(config, load_policy("tiny", recipe), world=world), []
    for number in range(config.iterations):
        result = iterate(one, number)
        groups = [] if world.rank else result.data.groups
        credit = [[row.tolist() for row in group.advantages] for group in groups]
        found.append((result.metrics, [[t.episode for t in group.members] for group in groups], credit))
    digest = hashlib.sha256()
    for tensor in one.policy.model.parameters():
        digest.update(tensor.detach().numpy().tobytes())
    return found, digest.hexdigest()


def outcomes(world, cases, seeds):
    """For each case what comes of it with units handed out by each of the seeds."""
    return [[outcome(config, Forced(world, f"{seed}"), recipe) for seed in seeds] for config, recipe in cases]


CASES = {
    "grpo": (SMALL, "search_qa"),
    "dapo": (with_algorithm(SMALL, "dapo"), "search_qa"),
    "ppo": (with_algorithm(dataclasses.replace(SMALL, tstar=False), "ppo"), "search_qa"),
    "forks": (SOKOBAN, policy_name(find_entry(SOKOBAN.env))),
}


def all_alike(size, name, seeds, **changes):
    config, recipe = CASES[name]
    cases = [(dataclasses.replace(config, **changes), recipe)]
    with launched(size, partial(outcomes, cases=cases, seeds=seeds), 5.0) as world:
        first, *others = outcomes(world, cases, seeds)[0]
    assert others and first[0][-1][0]["gradient_norm"] > 0, "it learns something"
    for other in others:
        for mine, theirs in zip(first[0], other[0], strict=True):
            assert mine == theirs
        assert other == first


@pytest.mark.usefixtures("start_method")
def test_whoever_plays_what_the_run_is_the_same():
    rollout = dataclasses.replace(SMALL.rollout, tasks_per_iteration=4, max_tokens=16)
    all_alike(2, "grpo", [1, 2], iterations=1, rollout=rollout)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [2, 3])
def test_whoever_of_many_plays_what_the_run_is_the_same(size, name):
    all_alike(size, name, range(4))


def played_by(world, config, slow):
    """Iterate once, then measure six tasks; the ``slow`` rank's replies take their time.

    Returns:
        Who played how many tasks of either, the metrics, the groups and the measurement.
    """
    torch.set_num_threads(1)
    one, played, real = trainer(config, load_policy("tiny", "search_qa"), world=world), [], loop.gathered
    generate = one.engine.generate

    def late(*arguments, **options):
        time.sleep(0.5 * (world.rank == slow))
        return generate(*arguments, **options)

    def gathered(config, data, world):
        played.extend(world.gather(data.tasks))
        return real(config, data, world)

    def measured(spec, engine, codec, tasks, **options):
        held_out.extend(tasks)
        return collect(spec, engine, codec, tasks, **options)

    held_out, collect = [], evaluate.collect
    one.engine.generate, loop.gathered, evaluate.collect = late, gathered, measured
    try:
        result = iterate(one, 0)
        tasks = held_out_tasks(make_env(config), config)
        measurement = evaluate.measure(one, tasks)
        return played, world.gather(len(held_out)), result.metrics, result.data.groups, measurement
    finally:
        loop.gathered, evaluate.collect = real, collect


@pytest.mark.usefixtures("start_method")
def test_a_rank_that_is_slow_plays_less_and_the_run_is_as_ever():
    rollout = dataclasses.replace(
        SMALL.rollout, tasks_per_iteration=6, group_size=2, max_tokens=4, horizon_growth=3
    )
    config = dataclasses.replace(
        SMALL, tstar=False, rollout=rollout, evaluation=EvaluationConfig(tasks=6, samples=2, greedy=False)
    )
    found = []
    for slow in (0, 1):
        with launched(2, partial(played_by, config=config, slow=slow), 5.0) as world:
            played, held_out, metrics, groups, measurement = played_by(world, config, slow)
        for of_ranks in (played, held_out):
            assert sum(of_ranks) == 6 and of_ranks[1 - slow] > of_ranks[slow] >= 1
        assert len(measurement.per_task) == 6
        assert metrics["curriculum_progress"] == 0.0, "that of the iteration, whoever sums the ranks"
        assert len(groups) == 2 and not any(
            turn.context for g in groups for t in g.members for turn in t.turns
        )
        found.append((metrics, [[t.episode for t in g.members] for g in groups], measurement))
    assert found[0] == found[1]


def failing_second(world):
    """The second rank fails at its first task, long before the first rank has played what is left."""
    torch.set_num_threads(1)
    taken = []
    with raise_on_any_rank(world), closing(world.hand_out(100)) as numbers:
        for number in numbers:
            if world.rank:
                raise UnknownTask("no task 'nowhere'")
            taken.append(number)
            time.sleep(0.05)
    return taken


def second_of_a_failure(world):
    with suppress(UnknownTask):
        failing_second(world)


@pytest.mark.usefixtures("start_method")
def test_nothing_is_handed_out_once_a_rank_has_failed():
    with launched(2, second_of_a_failure, 5.0) as world:
        begun = time.monotonic()
        with pytest.raises(UnknownTask, match="nowhere"):
            failing_second(world)
        assert time.monotonic() - begun < 3, "100 tasks would take five seconds"


def handed(world):
    """Numbers that this rank took, three times: at its own pace, as another thread does beside it, and always the same."""
    found = []
    for each in (world, world.second()):
        found.append([n for n in each.hand_out(9) if not time.sleep(0.01 * world.rank)])
    found.append(list(world.hand_out(5, fixed=True)))
    sent = world.exchange([f"{world.rank} to {rank}" for rank in range(world.size)])
    return world.gather((found, sent))


@pytest.mark.usefixtures("start_method")
def test_each_number_is_handed_out_once_and_parts_come_to_whom_they_are_sent():
    with launched(3, handed, 5.0) as world:
        ranks = handed(world)
    for number, (found, sent) in enumerate(ranks):
        assert [of[0] for of in found] == [number] * 3, "each begins with its own"
        assert sent == [f"{rank} to {number}" for rank in range(3)]
    for place, count in enumerate((9, 9, 5)):
        assert sorted(n for found, _ in ranks for n in found[place]) == list(range(count))
    assert [found[2] for found, _ in ranks] == [[0, 3], [1, 4], [2]]
    alone = SingleProcess()
    assert list(alone.hand_out(3)) == [0, 1, 2] and alone.exchange(["mine"]) == ["mine"]


@pytest.mark.parametrize(
    ("tasks", "group", "at_once", "processes", "sizes"),
    [
        (4, 8, None, 2, [2, 2]),
        (16, 8, None, 2, [8, 8]),
        (64, 8, None, 2, [32, 32]),
        (96, 16, None, 2, [16] * 6),
        (256, 16, None, 2, [32] * 8),
        (64, 8, None, 1, [64]),
        (64, 8, 10, 1, [9, 9, 9, 9, 9, 9, 10]),
        (6, 2, 4, 3, [3, 3]),
    ],
)
def test_an_equal_share_is_cut_where_the_parts_are_large_enough(tasks, group, at_once, processes, sizes):
    rollout = RolloutConfig(tasks_per_iteration=tasks, group_size=group, tasks_at_once=at_once)
    units = units_of(Config(env="hotpotqa", rollout=rollout), tasks, processes)
    assert sorted(map(len, units)) == sizes
    assert [n for unit in units for n in unit] == list(range(tasks))


@pytest.mark.parametrize(
    ("tasks", "samples", "at_once", "processes", "sizes"),
    [
        (500, 2, None, 1, [125] * 4),
        (500, 2, None, 2, [125] * 4),
        (134, 2, None, 2, [67, 67]),
        (134, 1, None, 3, [44, 45, 45]),
        (7, 4, 2, 2, [1, 2, 2, 2]),
        (3, 500, None, 2, [1, 1, 1]),
        (2, 1, None, 4, [1, 1]),
    ],
)
def test_held_out_tasks_are_cut_so_that_ranks_may_share_them(tasks, samples, at_once, processes, sizes):
    config = Config(env="hotpotqa", rollout=RolloutConfig(tasks_at_once=at_once, max_sequences=256))
    units = evaluate.held_out_units(config, tasks, samples, processes)
    assert sorted(map(len, units)) == sizes and [n for unit in units for n in unit] == list(range(tasks))


def test_lists_are_cut_so_that_the_largest_part_is_as_small_as_can_be():
    chance = random.Random(0)
    for _ in range(100):
        parts = chance.randrange(1, 5)
        costs = [chance.choice([0, 1, 5, 40]) for _ in range(chance.randrange(9))]
        ranges = cut_evenly(costs, parts)
        assert len(ranges) == parts and [n for one in ranges for n in one] == list(range(len(costs)))
        every = itertools.combinations_with_replacement(range(len(costs) + 1), parts - 1)
        least = min(
            max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)])) for cuts in every
        )
        assert not any(costs) or max(sum(costs[n] for n in one) for one in ranges) == least
    assert cut_evenly([0] * 4, 2) == [range(2), range(2, 4)]


def played_by_hand(kept):
    """An episode of three turns, the second context of which goes on where the first reply ended, if it is kept."""
    first = Turn([5, 6, 7], [8, 9], [-0.1, -0.3], 1)
    second = Turn([*([5, 6, 7, 8, 9] if kept else [4]), 3], [8], [-0.7], 0, progress=0.5)
    again = Turn(list(second.context), [8], [-0.25], 0)
    trajectory = Trajectory(
        3, 1, SimpleNamespace(task="t"), [first, second, again], "start", snapshots=[1], start_actions=["a"]
    )
    rows = join_rows(rows_of(trajectory, [0.5, -0.0, 0.0]))
    rows[0].weight, rows[0].returns = 0.25, [float("nan"), 1.0]
    return trajectory, rows


@pytest.mark.parametrize("kept", [True, False])
def test_an_episode_is_sent_to_the_last_bit(kept):
    trajectory, rows = played_by_hand(kept)
    packed = pickle.loads(pickle.dumps(PackedEpisode.of(trajectory, rows)))
    found, again = packed.unpacked()
    assert found == dataclasses.replace(trajectory, snapshots=[], start_actions=None)
    assert repr(again) == repr(rows), "with the sign of zero, and without a value where there is none"
    assert len(rows) == 3 - kept
