"""Measurement before and after training, paired by task, and its results in words."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tstar_envs import BadData, Episode, cluster_bootstrap, find_entry
from tstar_envs.utils import counted
from tstar_train.checkpoint import Progress
from tstar_train.config import Config
from tstar_train.distributed import raise_on_any_rank
from tstar_train.engines.check import sync_engine
from tstar_train.loop import Trainer
from tstar_train.report import FEW_TASKS
from tstar_train.rollout.collect import EnvSpec, collect, sampling_of
from tstar_train.rollout.sample import cut, stop_if_most_failed
from tstar_train.rollout.stream import Slot
from tstar_train.types import failed, overlong


@dataclass
class Measurement:
    """One policy on the held-out tasks; all figures are fractions of 1.

    Attributes:
        per_task: mean reward at temperature 1 of each task, in order of task; None if infrastructure errors lost all its episodes.
        greedy_per_task: reward of each task's greedy episode; None if it was lost.
        kinds: kind of each task ("" if unknown).
        failed: number of episodes lost to infrastructure errors; they are in no figure.
        solved_per_task: as ``per_task``, for success; empty in records of older versions.
        greedy_solved_per_task: as ``greedy_per_task``, for success.
        overlong: number of episodes whose context left no room for a reply; they count with reward 0.
        envs: environment of each task, in a run on several: figures are then means over environments. Else empty.
    """

    per_task: list[float | None]
    greedy_per_task: list[float | None]
    kinds: list[str] = field(default_factory=list)
    failed: int = 0
    solved_per_task: list[float | None] = field(default_factory=list)
    greedy_solved_per_task: list[float | None] = field(default_factory=list)
    overlong: int = 0
    envs: list[str] = field(default_factory=list)

    @classmethod
    def joined(cls, parts: Mapping[str, Measurement]) -> Measurement:
        """Join the measurements of several environments; kinds get the environment's name."""
        whole = cls([], [])
        for env, part in parts.items():
            name = find_entry(env).name
            whole.kinds += [f"{name}: {kind}" if kind else "" for kind in part.kinds]
            for figures in ("per_task", "greedy_per_task", "solved_per_task", "greedy_solved_per_task"):
                getattr(whole, figures).extend(getattr(part, figures))
            whole.failed += part.failed
            whole.overlong += part.overlong
            whole.envs += [env] * len(part.per_task)
        return whole

    def by_env(self) -> dict[str, Measurement]:
        """Return the measurement of each environment; lost and overlong episodes are known of all together only."""

        def part(env: str) -> Measurement:
            def own(values: list[Any]) -> list[Any]:
                return [v for v, of in zip(values, self.envs, strict=True) if of == env] if values else []

            whole = Measurement([], [])
            for name in (name for name in _LISTS if name != "envs"):
                setattr(whole, name, own(getattr(self, name)))
            return whole

        return {env: part(env) for env in dict.fromkeys(self.envs)}

    @classmethod
    def from_report(
        cls, record: Any, where: object = "the measurement", tasks: int | None = None
    ) -> Measurement:
        """Read a record written by ``report``.

        Args:
            record: of a file.
            where: the file, for the message.
            tasks: expected number of tasks; None for any.

        Raises:
            BadData: it is no such record, or of another number of tasks.
        """
        if not isinstance(record, dict):
            raise BadData(f"{where}: a measurement is expected, found {record!r:.40}")
        lists = {name: record.get(name, []) for name in _LISTS}
        for name, values in lists.items():
            kinds = str if name in ("kinds", "envs") else (int, float, type(None))
            if not isinstance(values, list) or not all(
                isinstance(v, kinds) and not isinstance(v, bool) for v in values
            ):
                raise BadData(
                    f"{where}: {name!r} of a measurement is not a list of {'names' if name in ('kinds', 'envs') else 'numbers'}"
                )
        counts = {name: record.get(name, 0) for name in ("failed", "overlong")}
        if not all(type(count) is int for count in counts.values()):
            raise BadData(f"{where}: {counts} of a measurement are not whole numbers")
        if tasks is not None and not len(lists["per_task"]) == len(lists["kinds"]) == tasks:
            raise BadData(
                f"{where}: measured {len(lists['per_task'])} tasks, but the run has {tasks}; its files are not of one run"
            )
        return cls(**lists, **counts)

    @property
    def mean(self) -> float:
        """Mean over tasks at temperature 1; of several environments, the mean of their means (so are all figures)."""
        return self._over_tasks(self.per_task) or 0.0

    @property
    def greedy(self) -> float | None:
        """Mean over tasks of the greedy episodes, None if there are none."""
        return self._over_tasks(self.greedy_per_task)

    @property
    def success(self) -> float | None:
        """Mean success over tasks at temperature 1; None if it is not known."""
        return self._over_tasks(self.solved_per_task)

    @property
    def greedy_success(self) -> float | None:
        """Mean success of the greedy episodes; None if it is not known."""
        return self._over_tasks(self.greedy_solved_per_task)

    def _over_tasks(self, values: Sequence[float | None]) -> float | None:
        parts = _by_env(values, self.envs) if values else {}
        return _mean([_mean(part) for part in parts.values()])

    def report(self) -> dict[str, Any]:
        """Return the entry of ``evaluation.json``."""
        record = asdict(self)
        if not self.envs:
            del record["envs"]
        by_env = {env: part.figures() for env, part in self.by_env().items()}
        return {
            **self.figures(),
            "by_kind": self.by_kind(),
            **({"by_env": by_env} if by_env else {}),
            **record,
        }

    def figures(self) -> dict[str, float | None]:
        """Return the means, with the interval of the one at temperature 1."""
        _, low, high = _mean_with_interval(self.per_task, self.envs)
        return {
            "mean": self.mean,
            "ci_low": low,
            "ci_high": high,
            "greedy": self.greedy,
            "success": self.success,
            "greedy_success": self.greedy_success,
        }

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Tasks, mean and greedy mean of each kind."""
        rows: dict[str, list[int]] = defaultdict(list)
        for index, kind in enumerate(self.kinds):
            rows[kind].append(index)
        return {
            kind: {
                "tasks": len(indexes),
                "mean": _mean([self.per_task[i] for i in indexes]),
                "greedy": _mean([self.greedy_per_task[i] for i in indexes]) if self.greedy_per_task else None,
            }
            for kind, indexes in sorted(rows.items())
            if kind
        }


_LISTS = [f.name for f in fields(Measurement) if f.name not in ("failed", "overlong")]


def measure(trainer: Trainer, tasks: Sequence[str | Slot], split: str | None = None) -> Measurement:
    """Play held-out tasks at temperature 1 and greedily. All ranks call it; the first gets the measurement.

    Random numbers are the same for every policy and run, so that differences are paired.

    Args:
        trainer: its policy plays.
        tasks: ids; slots in a run on several environments, those of each together.
        split: of the tasks; None: the evaluation split.

    Raises:
        InfrastructureError: most episodes failed.
    """
    trainer.ahead.wait()  # its engine may be this one
    if not trainer.config.mix:
        return measure_on(trainer, [str(task) for task in tasks], split, trainer.config)
    slots = [task for task in tasks if isinstance(task, Slot)]
    return Measurement.joined(
        {
            env: measure_on(trainer, [s.task for s in slots if s.env == env], split, trainer.config.of(env))
            for env in trainer.config.environments
        }
    )


def measure_on(trainer: Trainer, tasks: Sequence[str], split: str | None, of: Config) -> Measurement:
    """Measure on one environment, with the options of a run on it alone; all ranks call it, as ``measure``.

    Args:
        trainer: its policy plays.
        tasks: ids.
        split: of the tasks; None: the evaluation split of ``of``.
        of: options with the environment, the trainer's own or another's.
    """
    config = of.evaluation
    split = split or config.split
    mine = math.ceil(len(tasks) / trainer.world.size)
    sampled = mine * config.samples
    all_of_them = sampled + mine * config.greedy

    def on_turn(before: int) -> Callable[[int, int], None]:
        """Progress in words; each of several ranks plays about as many."""
        several = trainer.world.size > 1
        whose = f" of the first of {trainer.world.size} processes" if several else ""
        return lambda ended, turn: trainer.on_progress(
            f"{before + ended} of {'about ' if several else ''}{all_of_them} episodes{whose} ended, turn {turn} of the others"
        )

    play = play_held_out if of is trainer.config else partial(play_held_out, config=of)
    episodes = play(trainer, tasks, split, config.samples, 1.0, "evaluation", on_turn(0))
    greedy = play(trainer, tasks, split, 1, 0.0, "evaluation", on_turn(sampled)) if config.greedy else []
    groups = [episodes[start : start + config.samples] for start in range(0, len(episodes), config.samples)]
    return Measurement(
        per_task=[_mean([e.reward for e in group if not failed(e)]) for group in groups],
        greedy_per_task=[None if failed(e) else e.reward for e in greedy],
        kinds=[group[0].kind for group in groups],
        failed=sum(map(failed, [*episodes, *greedy])),
        solved_per_task=[_mean([float(e.success) for e in group if not failed(e)]) for group in groups],
        greedy_solved_per_task=[None if failed(e) else float(e.success) for e in greedy],
        overlong=sum(map(overlong, [*episodes, *greedy])),
    )


def play_held_out(
    trainer: Trainer,
    tasks: Sequence[str],
    split: str,
    samples: int,
    temperature: float,
    seed: str,
    on_turn: Callable[[int, int], None] | None = None,
    config: Config | None = None,
) -> list[Episode]:
    """Play tasks without training; ranks take units of them as they get free. All ranks call it.

    Args:
        trainer: its policy plays.
        tasks: ids.
        split: of the tasks.
        samples: episodes per task.
        temperature: of sampling; 0 is greedy.
        seed: of the samples; equal before and after training, so that their noise is shared.
        on_turn: called before each turn with this rank's number of finished episodes and the turn, from 1.
        config: options with the environment to play; None: the run's own.

    Returns:
        On the first rank the episodes in order of task, then sample; on other ranks an empty list.

    Raises:
        InfrastructureError: most episodes of a batch failed.
        EngineMismatch: the engine did not load the policy's weights.
    """
    config, engine = config or trainer.config, trainer.engine
    spec = EnvSpec(config.env, dict(config.env_options))
    units = held_out_units(config, len(tasks), samples, trainer.world.size)
    ended, played = 0, {}
    with raise_on_any_rank(trainer.world):
        sync_engine(trainer.policy, engine, trainer.learner.weights())
    taken = trainer.world.hand_out(len(units))
    with raise_on_any_rank(trainer.world), closing(taken):
        for number in taken:
            trajectories = collect(
                spec,
                engine,
                trainer.policy.codec,
                [tasks[n] for n in units[number]],
                size=samples,
                split=split,
                seed=seed,
                sampling=sampling_of(config, temperature),
                on_turn=on_turn and partial(_on_turn_after, on_turn, ended),
            )
            engine.clear_cache()
            batch = [t.episode for t in trajectories]
            # Early: every unit waits for what is down.
            stop_if_most_failed([e for e in batch if failed(e)], len(batch))
            played[number] = batch
            ended += len(batch)
    parts = [unit for part in trainer.world.gather(played) for unit in part.items()]
    return [episode for _, batch in sorted(parts, key=itemgetter(0)) for episode in batch]


def held_out_units(config: Config, tasks: int, samples: int, processes: int) -> list[range]:
    """Cut held-out tasks into units of nearly equal size; a process plays those of a unit side by side.

    Args:
        config: the run's options.
        tasks: number of tasks.
        samples: episodes of each.
        processes: number of processes of the run.
    """
    rollout = config.rollout
    most = max(1, rollout.max_sequences // samples)
    at_once = min(most, rollout.tasks_at_once or most, max(1, math.ceil(tasks / processes)))
    return cut(tasks, math.ceil(tasks / at_once)) if tasks else []


def _on_turn_after(on_turn: Callable[[int, int], None], before: int, ended: int, turn: int) -> None:
    """Call `on_turn` with the episodes of earlier batches added."""
    on_turn(before + ended, turn)


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _by_env(values: Sequence[float | None], envs: Sequence[str]) -> dict[str, list[float | None]]:
    """Group the values of tasks by environment; without environments all are one group."""
    parts: dict[str, list[float | None]] = {}
    for value, env in zip(values, envs or [""] * len(values), strict=True):
        parts.setdefault(env, []).append(value)
    return parts


def _mean_with_interval(
    values: Sequence[float | None], envs: Sequence[str] = ()
) -> tuple[float, float, float]:
    """Compute the mean of what is known with its 95 % interval over tasks, by a bootstrap.

    The mean of several environments is that of their means, and its interval comes from theirs, which are independent (MOVER: Zou and
    Donner 2008, doi:10.1002/sim.3095).
    """
    parts = [[v for v in part if v is not None] for part in _by_env(values, envs).values()]
    parts = [part for part in parts if part]
    if not parts:
        return 0.0, 0.0, 0.0
    means = [float(np.mean(part)) for part in parts]
    intervals = [cluster_bootstrap([[value] for value in part]) for part in parts]
    if len(parts) == 1:
        return means[0], *intervals[0]
    mean = float(np.mean(means))
    below = math.sqrt(sum((m - low) ** 2 for m, (low, _) in zip(means, intervals, strict=True))) / len(parts)
    above = math.sqrt(sum((high - m) ** 2 for m, (_, high) in zip(means, intervals, strict=True))) / len(
        parts
    )
    return mean, mean - below, mean + above


def differences(before: Measurement, after: Measurement) -> np.ndarray:
    """Compute each task's gain; NaN if one of the two measurements is missing."""
    # None becomes NaN.
    difference: np.ndarray = np.asarray(after.per_task, dtype=float) - np.asarray(
        before.per_task, dtype=float
    )
    return difference


def paired_difference(before: Measurement, after: Measurement) -> tuple[float, float, float]:
    """Compute the paired difference of means with its 95 % interval, over tasks; of several environments as their means."""
    gains = [None if np.isnan(gain) else gain for gain in differences(before, after).tolist()]
    return _mean_with_interval(gains, before.envs)


def by_environment(config: Config, before: Measurement, after: Measurement) -> dict[str, dict[str, Any]]:
    """Compare two measurements for each environment of a run on several; empty for others."""
    found: dict[str, dict[str, Any]] = {}
    theirs = after.by_env()
    for env, first in before.by_env().items():
        second = theirs[env]
        difference, low, high = paired_difference(first, second)
        found[env] = {
            "weight": config.mix[env],
            "metric": find_entry(env).metric,
            "tasks": len(first.per_task),
            "before": first.mean,
            "after": second.mean,
            "difference": difference,
            "ci_low": low,
            "ci_high": high,
            "greedy_before": first.greedy,
            "greedy_after": second.greedy,
            "success_before": first.success,
            "success_after": second.success,
        }
    return found


def header(config: Config, held_out: Sequence[object]) -> dict[str, Any]:
    """Make the content of ``evaluation.json``."""
    metric = config.metric
    return {
        "metric": metric,
        "split": config.evaluation.split,
        "tasks": len(held_out),
        "samples": config.evaluation.samples,
    }


def summarized(
    config: Config,
    before: Measurement,
    after: Measurement,
    progress: Progress,
    seconds: float,
    chosen: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the content of ``summary.json``.

    Args:
        config: of the run.
        before: measurement of the start.
        after: measurement of the result.
        progress: of the run.
        seconds: since the run was first started.
        chosen: the measured weights, by ``Validation.report``; None: the last ones.
    """
    difference, low, high = paired_difference(before, after)
    metric = config.metric
    solved = {
        "success_before": before.success,
        "success_after": after.success,
        "greedy_success_before": before.greedy_success,
        "greedy_success_after": after.greedy_success,
    }
    by_env = by_environment(config, before, after)
    return {
        "env": find_entry(config.env).id,
        **({"by_env": by_env} if by_env else {}),
        "algo": config.algo,
        "tstar": config.tstar,
        "seed": config.seed,
        "metric": metric,
        "before": before.mean,
        "after": after.mean,
        "difference": difference,
        "ci_low": low,
        "ci_high": high,
        "greedy_before": before.greedy,
        "greedy_after": after.greedy,
        **(solved if metric == "score" else {}),
        **(
            {"chosen_iteration": chosen["iteration"], "validation_mean": chosen["mean"]}
            if chosen is not None
            else {}
        ),
        "episodes": progress.episodes,
        "iterations": progress.iteration,
        "seconds": seconds,
        "model": config.model,
        "split": config.evaluation.split,
        "tasks": len(before.per_task),
        "samples": config.evaluation.samples,
    }


def print_result(
    console: Console,
    before: Measurement,
    after: Measurement,
    summary: dict[str, Any],
    report: Path,
    chosen: dict[str, Any] | None = None,
) -> None:
    """Print the result by kind of task, with the difference and notes; arguments as in ``summarized``."""
    by_env = summary.get("by_env", {})
    named = ", ".join(by_env) or summary["env"]
    table = Table(title=f"{named}: {summary['metric']} on held-out tasks, temperature 1 (greedy)")
    for column in ("kind", "tasks", "before", "after"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    theirs = after.by_kind()
    for kind, row in before.by_kind().items():
        table.add_row(
            kind,
            str(row["tasks"]),
            _percent(row["mean"], row["greedy"]),
            _percent(theirs[kind]["mean"], theirs[kind]["greedy"]),
        )
    for env, row in by_env.items():
        table.add_row(
            f"all of {env}",
            str(row["tasks"]),
            _percent(row["before"], row["greedy_before"]),
            _percent(row["after"], row["greedy_after"]),
            style="bold",
        )
    table.add_row(
        "mean over environments" if by_env else "all",
        str(len(before.per_task)),
        _percent(before.mean, before.greedy),
        _percent(after.mean, after.greedy),
        style="bold",
    )
    console.print(table)
    if lost := before.failed + after.failed:
        console.print(
            f"{counted(lost, 'episode')} lost to infrastructure errors, excluded from all figures",
            style="yellow",
            highlight=False,
        )
    for env, row in by_env.items():
        console.print(
            f"{env}: {row['metric']} {row['before']:.1%} -> {row['after']:.1%}, difference {row['difference']:+.1%} "
            f"(95 % interval {row['ci_low']:+.1%} to {row['ci_high']:+.1%})",
            highlight=False,
        )
    together = "mean over environments: " if by_env else ""
    console.print(
        f"{together}{summary['metric']} {summary['before']:.1%} -> {summary['after']:.1%}, difference {summary['difference']:+.1%} "
        f"(95 % interval {summary['ci_low']:+.1%} to {summary['ci_high']:+.1%}, paired by task), "
        f"{counted(summary['iterations'], 'iteration')}, {summary['seconds'] / 60:.1f} min",
        highlight=False,
    )
    if chosen is not None:
        console.print(_chosen(chosen, summary["iterations"]), highlight=False)
    if long := before.overlong + after.overlong:
        console.print(
            f"{counted(long, 'episode')} outgrew the context and ended there, unsolved",
            style="yellow",
            highlight=False,
        )
    if len(before.per_task) < FEW_TASKS:
        console.print(
            f"of {counted(len(before.per_task), 'task')} the interval itself is rough: --evaluation.tasks takes more",
            highlight=False,
        )
    if summary["metric"] == "score":
        first, second = (
            _percent(before.success, before.greedy_success),
            _percent(after.success, after.greedy_success),
        )
        console.print(f"success (a score of 1) {first} -> {second}", highlight=False)
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


def _chosen(chosen: dict[str, Any], iterations: int) -> str:
    """Say which weights were measured, and why."""
    of = f"{counted(chosen['tasks'], 'task')} of the split {chosen['split']}"
    by = f"by validation ({chosen['mean']:.1%} on {of}, the best of {chosen['candidates']} validations)"
    if not chosen["iteration"]:
        return f"chosen {by}: the start; no later weights did better there, so nothing was gained and the difference is 0"
    return f"chosen {by}: the weights of iteration {chosen['iteration']} of {iterations}; only they were measured after training"


def _percent(mean: float | None, greedy: float | None) -> str:
    return ("-" if mean is None else f"{mean:.1%}") + (f" ({greedy:.1%})" if greedy is not None else "")
