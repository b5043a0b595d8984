"""Measure how near each credit is to the true advantage of a step (docs/results/credit.md).

    python scripts/studies/measure_credit.py --env sokoban-easy --truth exact --tasks 100        # by dynamic programming
    python scripts/studies/measure_credit.py --env blocksworld-stack --tasks 10 --plays 64       # by playing on from restored states
    python scripts/studies/measure_credit.py --credit my_module:my_credit                        # yours beside the others

The true advantage of a step is A(s, a) = Q(s, a) - V(s): the mean reward at the end (undiscounted, within what is left of the horizon) if
the policy goes on from where the step led, minus that if it goes on from where the step was taken. ``plays`` estimates both by new
episodes from restored states. ``exact`` solves small Sokoban levels for the policy without thoughts: it takes one of the four moves with
the policy's probability of that move right after the action cue, and the groups are sampled from just that policy.

A credit of your own is a function of a group: it gets the trajectories (``tstar_train.types.Trajectory``) and returns one array per
trajectory, with one number per turn.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from tstar_envs import (
    InfrastructureError,
    StableRandom,
    TStarError,
    UnknownOption,
    find_entry,
    prompt_of,
    task_ids_of,
)
from tstar_envs.envs.sokoban.level import DIRECTIONS, State
from tstar_train import types
from tstar_train.algorithms import algorithm_class
from tstar_train.algorithms.tstar import TStar
from tstar_train.build import device_of, limit_of
from tstar_train.config import Config, import_named
from tstar_train.engines.base import Engine
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.codec import Codec
from tstar_train.policy.model import ONE_THREAD_BELOW, load_policy
from tstar_train.presets import make_config, with_nodes
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.collect import EnvSpec, collect, play_on, sampling_of, training_spec
from tstar_train.rollout.player import Sampling, transcript_of
from tstar_train.types import KLWork, Trajectory, failed, without_failed

try:
    from scripts.studies.credit_figures import figures, steps_of, tables
    from scripts.studies.solved_levels import ActionPolicy, level_view, solve_level
except ModuleNotFoundError:  # run as a script of this folder
    from credit_figures import figures, steps_of, tables
    from solved_levels import ActionPolicy, level_view, solve_level

Floats = NDArray[np.float64]
Group = list[Trajectory]
Credit = Callable[[Group], Sequence[Any]]
SIDE_BY_SIDE = 256  # episodes that are played on at once


@dataclass(frozen=True)
class Options:
    """Compare credits with the true advantages of steps."""

    env: str = "sokoban-easy"
    """Environment id or short name."""
    model: str = "tiny"
    """tiny (the built-in policy), or a folder or checkpoint of a policy."""
    truth: Literal["plays", "exact"] = "plays"
    """True advantages by new episodes from restored states, or exactly by dynamic programming (Sokoban, without thoughts)."""
    split: str = "valid"
    """Split that the tasks come from."""
    tasks: int = 10
    """Number of tasks: the first ones of the split."""
    group_size: int | None = None
    """Episodes per group; by default as in training."""
    groups: int = 2
    """Groups sampled for each task: 2 or more for the figures of noise."""
    plays: int = 64
    """New episodes from each state, with --truth plays."""
    steps: int | None = None
    """Steps per task that are measured, drawn at random; all without it. Steps with equal state, action and steps left go together."""
    temperature: float = 1.0
    """Temperature of the policy: of its replies, or with --truth exact of its moves."""
    where: Literal["all", "differ"] = "all"
    """Groups whose steps are measured: all, or those whose rewards differ, which are the ones that training learns from."""
    credit: tuple[str, ...] = ()
    """Credits of your own, as module:function, beside the built-in ones."""
    seed: int = 0
    """Seed of the episodes and the new episodes."""
    draws: int = 2_000
    """Bootstrap draws over tasks."""
    processes: int = 1
    """Processes that measure tasks side by side."""
    out: Path | None = None
    """JSON file for options, figures and tasks. Steps are kept beside it in NAME.steps.jsonl, a line a task: tasks that are
    there are not measured again."""


@dataclass
class Measure:
    """All that a task is measured with.

    Attributes:
        options: of the study.
        config: options of a training run of this environment.
        codec: of the policy.
        engine: samples episodes; an ``ActionPolicy`` with exact truth.
        spec: the environment as training plays it.
        sampling: as in training, with snapshots.
        credits: by name.
    """

    options: Options
    config: Config
    codec: Codec
    engine: Engine
    spec: EnvSpec
    sampling: Sampling
    credits: dict[str, Credit] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Episodes per group."""
        return self.options.group_size or self.config.rollout.group_size

    @property
    def horizon(self) -> int:
        """Steps of an episode, where all tasks have the same."""
        return int(self.spec.options.get("horizon") or find_entry(self.spec.name).horizon)


def make_measure(options: Options) -> Measure:
    """Load the policy and make the credits.

    Raises:
        UnknownOption: an option does not fit.
    """
    config = make_config(options.env, model=options.model)
    policy = load_policy(config.model, policy_name(find_entry(options.env)), device_of(config))
    if policy.parameters < ONE_THREAD_BELOW:
        torch.set_num_threads(1)
    engine: Engine = LocalEngine(policy, limit=limit_of(config, policy.model.config))
    if options.truth == "exact":
        if config.rollout.context != "step" or config.rollout.history:
            raise UnknownOption(
                f"--truth exact needs a policy that sees the present state alone, and {options.model} sees "
                f"{config.rollout.context} contexts with {config.rollout.history} earlier turns: use --truth plays"
            )
        engine = ActionPolicy(engine, policy.codec, DIRECTIONS, options.temperature)
    spec = training_spec(config)
    sampling = replace(sampling_of(config, options.temperature), snapshots=True)
    made = Measure(options, config, policy.codec, engine, spec, sampling)
    made.credits = {
        **built_in_credits(made),
        **{name: import_named("--credit", name) for name in options.credit},
    }
    return made


def built_in_credits(measure: Measure) -> dict[str, Credit]:
    """Make the credits of this repository, as its training computes them; the first one is what others are compared with."""
    config = measure.config
    gigpo = replace(config, gigpo=replace(config.gigpo, mode="mean_std_norm"))
    states = with_nodes(config, "state")
    depth = with_nodes(config, "depth")
    exact = replace(depth, tree=replace(depth.tree, kl_estimator="exact"))

    def of_states(values: Literal["mean", "bellman"], gamma: float) -> Credit:
        return partial(
            _tree_credit, measure, replace(states, tree=replace(states.tree, values=values, gamma=gamma))
        )

    def of_depths(group: Group) -> Sequence[Floats]:
        # The exact KL needs listed actions; search environments list none.
        return _tree_credit(measure, depth if group[0].start_actions is None else exact, group)

    gamma = states.tree.gamma
    return {
        "GRPO": partial(_algorithm_credit, "grpo", config),
        "GiGPO": partial(_algorithm_credit, "gigpo", config),
        "GiGPO with std": partial(_algorithm_credit, "gigpo", gigpo),
        "HGPO": partial(_algorithm_credit, "hgpo", config),
        "GraphGPO": partial(_algorithm_credit, "graphgpo", config),
        "paper's tree": of_depths,
        "state mean": of_states("mean", gamma),
        "Bellman": of_states("bellman", gamma),
        "state mean, no discount": of_states("mean", 1.0),
        "Bellman, no discount": of_states("bellman", 1.0),
    }


def _algorithm_credit(name: str, config: Config, group: Group) -> Sequence[Floats]:
    algorithm = algorithm_class(name)(config)
    whole, steps = algorithm.episode_advantages(group), algorithm.step_advantages(group)
    return whole if steps is None else [a + b for a, b in zip(whole, steps, strict=True)]


def _tree_credit(measure: Measure, config: Config, group: Group) -> Sequence[Floats]:
    star = TStar(config, measure.engine, measure.codec, measure.spec, measure.sampling)
    [tree] = star.trees([group], 0, KLWork())
    return star.value(types.Group(list(group), tree=tree), [np.zeros(len(t.turns)) for t in group])


def credit_of(name: str, credit: Credit, group: Group) -> list[Floats]:
    """Compute a credit and check its form: shape (turns,) per trajectory, finite.

    Raises:
        UnknownOption: it has another form.
    """
    found = credit(group)
    wanted = [(len(t.turns),) for t in group]
    try:
        rows = [np.asarray(row, dtype=np.float64) for row in found]
    except (TypeError, ValueError) as error:
        raise UnknownOption(f"{_wrong_form(name, wanted)}, got {found!r:.60} ({error})") from error
    shapes = [row.shape for row in rows]
    if shapes != wanted:
        raise UnknownOption(f"{_wrong_form(name, wanted)}, got {_short(shapes)}")
    if not all(np.isfinite(row).all() for row in rows):
        raise UnknownOption(f"--credit {name}: it must be finite, got {np.concatenate(rows)[:8].tolist()}")
    return rows


def _wrong_form(name: str, wanted: Sequence[Any]) -> str:
    return f"--credit {name}: it must return an array per trajectory with a number per turn, here of shapes {_short(wanted)}"


def _short(shapes: Sequence[Any]) -> str:
    return ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")


Place = tuple[int, str, tuple[int, ...]]
Point = tuple[Trajectory, int]
Worth = tuple[float, float]  # mean reward of going on from there, and its squared standard error


def place(trajectory: Trajectory, turn: int) -> Place:
    """Name where a trajectory is before one of its turns: steps done, state, and what the policy sees."""
    return turn, trajectory.states_before[turn], tuple(trajectory.turns[turn].context)


def worth_by_playing(measure: Measure, points: Sequence[Point], seed: str) -> list[Worth]:
    """Estimate what the policy earns on average from each point on, by new episodes."""
    plays = measure.options.plays
    wanted = [point for point in points for _ in range(plays)]
    rewards: list[float] = []
    for first in range(0, len(wanted), SIDE_BY_SIDE):
        ends = play_on(
            wanted[first : first + SIDE_BY_SIDE],
            measure.spec,
            measure.engine,
            measure.codec,
            split=measure.options.split,
            seed=f"{seed}/{first}",
            sampling=replace(measure.sampling, snapshots=False),
        )
        rewards += [math.nan if failed(t.episode) else t.episode.reward for t in ends]
    if np.isnan(rewards).any():
        errors = [t.episode.error for t in ends if failed(t.episode)]
        raise InfrastructureError(
            f"{int(np.isnan(rewards).sum())} of {len(rewards)} new episodes failed, the last error: {(errors or [''])[-1]}"
        )
    table = np.array(rewards).reshape(len(points), plays)
    return list(zip(table.mean(axis=1), table.var(axis=1, ddof=1) / plays, strict=True))


def worth_by_solving(measure: Measure, points: Sequence[Point]) -> list[Worth]:
    """Compute what the policy earns on average from each point of one task on."""
    policy = measure.engine
    if not isinstance(policy, ActionPolicy):
        raise TypeError(f"the exact truth is that of an ActionPolicy, got {type(policy).__name__}")
    episode = points[0][0].episode
    view = level_view(measure.spec.name, measure.spec.options, episode.task)
    prompt = prompt_of(measure.spec.group([episode.task], 1, measure.options.split).envs[0])

    def chances(states: list[State]) -> Floats:
        shown = [replace(episode, first_observation=view.observation(state)) for state in states]
        return policy.probabilities(
            [transcript_of(e, measure.codec, prompt, measure.sampling).context() for e in shown]
        )

    solved = solve_level(view, chances, measure.horizon)
    return [
        (float(solved.values[measure.horizon - turn, solved.rows[t.states_before[turn]]]), 0.0)
        for t, turn in points
    ]


Member = tuple[int, int, int]  # group, trajectory in it, turn


def true_advantages(
    groups: Sequence[Group], members: Sequence[Member], worth: Callable[[list[Point]], list[Worth]]
) -> tuple[Floats, Floats]:
    """Compute A(s, a) = Q(s, a) - V(s) of steps of one task, and its standard error.

    Args:
        groups: groups of one task.
        members: the steps.
        worth: what going on from distinct points is worth; equal places are asked for once.

    Returns:
        Two arrays of shape (members,). A step that ended its episode is worth what it earned.
    """
    points: dict[Place, Point] = {}
    for g, i, turn in members:
        t = groups[g][i]
        for at in range(turn, min(turn + 2, len(t.turns))):
            points.setdefault(place(t, at), (t, at))
    known = dict(zip(points, worth(list(points.values())), strict=True)) if points else {}
    found = np.zeros((len(members), 2))
    for n, (g, i, turn) in enumerate(members):
        t = groups[g][i]
        ended = turn + 1 == len(t.turns)
        after, before = (t.episode.reward, 0.0) if ended else known[place(t, turn + 1)], known[place(t, turn)]
        found[n] = after[0] - before[0], math.sqrt(after[1] + before[1])
    return found[:, 0], found[:, 1]


def chosen_members(options: Options, groups: Sequence[Group], task: str) -> list[Member]:
    """Choose the steps to measure (see ``Options.steps`` and ``Options.where``), in order."""
    members = [
        (g, i, turn)
        for g, group in enumerate(groups)
        if options.where == "all" or len({t.reward for t in group}) > 1
        for i, t in enumerate(group)
        for turn in range(len(t.turns))
    ]
    if options.steps is None:
        return members
    kept: set[Hashable] = set()
    order = StableRandom(f"credit/{options.seed}/steps/{task}").shuffled(members)
    for number, (g, i, turn) in enumerate(order):
        if number < options.steps:
            kept.add(key_of(groups[g][i], turn))
    return [m for m in members if key_of(groups[m[0]][m[1]], m[2]) in kept]


def key_of(trajectory: Trajectory, turn: int) -> Hashable:
    """Name a step: equal for steps with the same true advantage."""
    return place(trajectory, turn), trajectory.steps[turn].action


def measure_task(measure: Measure, task: str) -> dict[str, Any]:
    """Sample the groups of a task and measure their steps.

    Returns:
        Columns with one entry per measured step: ``group``, ``key``, ``truth``, ``error``, ``depth``, ``visits`` (see
        ``credit_figures.Steps``) and ``credit`` by name; with ``task``, ``rewards`` per group, ``places`` (states that were valued) and
        ``cpu_seconds``.
    """
    options, began = measure.options, time.process_time()
    collected = collect(
        measure.spec,
        measure.engine,
        measure.codec,
        [task] * options.groups,
        size=measure.size,
        split=options.split,
        seed=f"credit/{options.seed}",
        sampling=measure.sampling,
        repeats=range(options.groups),
    )
    sampled = [collected[n * measure.size : (n + 1) * measure.size] for n in range(options.groups)]
    groups = [kept for group in sampled if (kept := without_failed(group))]
    members = chosen_members(options, groups, task)
    valued = 0

    def worth(points: list[Point]) -> list[Worth]:
        nonlocal valued
        valued = len(points)
        if options.truth == "exact":
            return worth_by_solving(measure, points)
        return worth_by_playing(measure, points, f"credit/{options.seed}/on")

    truth, error = true_advantages(groups, members, worth)
    credits = {
        name: [credit_of(name, function, group) for group in groups]
        for name, function in measure.credits.items()
    }
    measure.engine.clear_cache()
    met = [Counter(state for t in group for state in t.states_before) for group in groups]
    keys: dict[Hashable, int] = {}
    seen = [met[g][groups[g][i].states_before[turn]] for g, i, turn in members]
    return {
        "task": task,
        "rewards": [[t.reward for t in group] for group in groups],
        "group": [g for g, _, _ in members],
        "key": [keys.setdefault(key_of(groups[g][i], turn), len(keys)) for g, i, turn in members],
        "truth": truth.tolist(),
        "error": error.tolist(),
        "depth": [3 * turn // len(groups[g][i].turns) for g, i, turn in members],
        "visits": [(count > 1) + (count > 3) for count in seen],
        "credit": {
            name: [float(rows[g][i][turn]) for g, i, turn in members] for name, rows in credits.items()
        },
        "places": valued,
        "cpu_seconds": time.process_time() - began,
    }


_measure: Measure | None = None  # of a helper process


def _begin(options: Options) -> None:
    global _measure
    _measure = make_measure(options)


def _one(task: str) -> dict[str, Any]:
    if _measure is None:
        raise RuntimeError("the process was started without its initializer")
    return measure_task(_measure, task)


def measured_lines(options: Options, tasks: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Measure tasks one after another, or in several processes."""
    if options.processes == 1:
        made = make_measure(options)
        yield from (measure_task(made, task) for task in tasks)
        return
    with ProcessPoolExecutor(options.processes, get_context("spawn"), _begin, (options,)) as pool:
        yield from pool.map(_one, tasks)


def run(options: Options) -> dict[str, Any]:
    """Measure all tasks, but those already measured, and compute the figures.

    Raises:
        UnknownOption: an option does not fit, or the file of steps was made with other options.
    """
    least = {"tasks": 1, "groups": 1, "group_size": 1, "plays": 2, "steps": 1, "processes": 1, "draws": 1}
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            raise UnknownOption(f"--{name.replace('_', '-')} must be {smallest} or more, got {value}")
    if not 0 < options.temperature < math.inf:
        raise UnknownOption(f"--temperature must be above 0 and finite, got {options.temperature}")
    entry = find_entry(options.env)
    tasks = list(task_ids_of(entry.make(split=options.split), options.split))[: options.tasks]
    same = {
        name: value
        for name, value in asdict(options).items()
        if name not in ("tasks", "out", "processes", "draws")
    }
    same["credit"] = list(options.credit)
    steps = None if options.out is None else options.out.with_suffix(".steps.jsonl")
    lines = {} if steps is None else read_steps(steps, same)
    missing = [task for task in tasks if task not in lines]
    for line in measured_lines(options, missing) if missing else ():
        lines[line["task"]] = line
        done = sum(task in lines for task in tasks)
        print(
            f"{done} of {len(tasks)} tasks: {line['task']}, {len(line['truth'])} steps, {line['places']} places, "
            f"{line['cpu_seconds']:.1f} CPU seconds",
            file=sys.stderr,
            flush=True,
        )
        if steps is not None:
            with steps.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps({"options": same, **line}) + "\n")
    chosen = [lines[task] for task in tasks]
    found = {
        "options": {**same, "tasks": len(tasks)},
        "figures": figures(steps_of(chosen), options.draws),
        "tasks": {
            line["task"]: {
                "mean_reward": float(np.mean(np.concatenate(line["rewards"]))),
                "places": line["places"],
            }
            for line in chosen
        },
        "cpu_seconds": sum(line["cpu_seconds"] for line in chosen),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def read_steps(path: Path, same: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Read the tasks already measured.

    Raises:
        UnknownOption: they were measured with other options.
    """
    lines: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return lines
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["options"] != same:
            other = sorted(n for n in same if line["options"].get(n) != same[n])
            raise UnknownOption(
                f"{path} was measured with another --{other[0]}: give another --out, or delete it"
            )
        lines[line["task"]] = line
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, description=__doc__, args=arguments)
    try:
        found = run(options)
    except TStarError as error:
        sys.exit(f"error: {error}")
    rewards = [task["mean_reward"] for task in found["tasks"].values()]
    print(
        f"{options.env}, truth by {options.truth}: {len(rewards)} tasks of {options.split}, {options.groups} groups each, "
        f"mean reward {np.mean(rewards):.3f}, {found['cpu_seconds'] / 60:.1f} CPU minutes\n"
    )
    print(tables(found["figures"]))


if __name__ == "__main__":
    main()
