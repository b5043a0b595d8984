"""Measurement before and after training, paired by task, and its results in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tstar_envs import BadData, Episode, cluster_bootstrap, find_entry
from tstar_envs.utils import counted
from tstar_train.checkpoint import Progress
from tstar_train.config import Config
from tstar_train.distributed import dealt, raise_on_any_rank
from tstar_train.engines.check import sync_engine
from tstar_train.loop import Trainer
from tstar_train.report import FEW_TASKS
from tstar_train.rollout.collect import EnvSpec, collect, sampling_of
from tstar_train.rollout.sample import stop_if_most_failed
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
    """

    per_task: list[float | None]
    greedy_per_task: list[float | None]
    kinds: list[str] = field(default_factory=list)
    failed: int = 0
    solved_per_task: list[float | None] = field(default_factory=list)
    greedy_solved_per_task: list[float | None] = field(default_factory=list)
    overlong: int = 0

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
        lists = {f.name: record.get(f.name, []) for f in fields(cls) if f.name not in ("failed", "overlong")}
        for name, values in lists.items():
            kinds = str if name == "kinds" else (int, float, type(None))
            if not isinstance(values, list) or not all(
                isinstance(v, kinds) and not isinstance(v, bool) for v in values
            ):
                raise BadData(
                    f"{where}: {name!r} of a measurement is not a list of {'names' if name == 'kinds' else 'numbers'}"
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
        """Mean over tasks at temperature 1."""
        return _mean(self.per_task) or 0.0

    @property
    def greedy(self) -> float | None:
        """Mean over tasks of the greedy episodes, None if there are none."""
        return _mean(self.greedy_per_task)

    @property
    def success(self) -> float | None:
        """Mean success over tasks at temperature 1; None if it is not known."""
        return _mean(self.solved_per_task)

    @property
    def greedy_success(self) -> float | None:
        """Mean success of the greedy episodes; None if it is not known."""
        return _mean(self.greedy_solved_per_task)

    def report(self) -> dict[str, Any]:
        """Return the entry of ``evaluation.json``."""
        low, high = cluster_bootstrap([[value] for value in self.per_task if value is not None])
        figures = {"mean": self.mean, "ci_low": low, "ci_high": high, "greedy": self.greedy}
        return {
            **figures,
            "success": self.success,
            "greedy_success": self.greedy_success,
            "by_kind": self.by_kind(),
            **asdict(self),
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


def measure(trainer: Trainer, tasks: Sequence[str], split: str | None = None) -> Measurement:
    """Play held-out tasks at temperature 1 and greedily. All ranks call it; the first gets the measurement.

    Random numbers are the same for every policy and run, so that differences are paired.

    Args:
        trainer: its policy plays.
        tasks: ids.
        split: of the tasks; None: the evaluation split.

    Raises:
        InfrastructureError: most episodes failed.
    """
    trainer.ahead.wait()  # its engine may be this one
    config = trainer.config.evaluation
    split = split or config.split
    mine = len(dealt(tasks, trainer.world))
    sampled = mine * config.samples
    all_of_them = sampled + mine * config.greedy

    def on_turn(before: int) -> Callable[[int, int], None]:
        """Progress in words, of the first rank's part; the other ranks take about as long."""
        whose = f" of the first of {trainer.world.size} processes" if trainer.world.size > 1 else ""
        return lambda ended, turn: trainer.on_progress(
            f"{before + ended} of {all_of_them} episodes{whose} ended, turn {turn} of the others"
        )

    episodes = play_held_out(trainer, tasks, split, config.samples, 1.0, "evaluation", on_turn(0))
    greedy = (
        play_held_out(trainer, tasks, split, 1, 0.0, "evaluation", on_turn(sampled)) if config.greedy else []
    )
    groups = [episodes[start : start + config.samples] for start in range(0, len(episodes), config.samples)]
    return Measurement(
        per_task=[_mean([e.reward for e in group if not failed(e)]) for group in groups],
        greedy_per_task=[None if failed(e) else e.reward for e in greedy],
        kinds=[_kind(group[0]) for group in groups],
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
) -> list[Episode]:
    """Play tasks without training, each rank its share; all ranks call it.

    Args:
        trainer: its policy plays.
        tasks: ids.
        split: of the tasks.
        samples: episodes per task.
        temperature: of sampling; 0 is greedy.
        seed: of the samples; equal before and after training, so that their noise is shared.
        on_turn: called before each turn with this rank's number of finished episodes and the turn, from 1.

    Returns:
        On the first rank the episodes in order of task, then sample; on other ranks an empty list.

    Raises:
        InfrastructureError: most episodes of a batch failed.
        EngineMismatch: the engine did not load the policy's weights.
    """
    config, engine = trainer.config, trainer.engine
    spec = EnvSpec(config.env, dict(config.env_options))
    mine = dealt(tasks, trainer.world)
    rows = max(1, config.rollout.max_sequences // samples)
    episodes: list[Episode] = []
    with raise_on_any_rank(trainer.world):
        sync_engine(trainer.policy, engine, trainer.learner.weights())
        for start in range(0, len(mine), rows):
            trajectories = collect(
                spec,
                engine,
                trainer.policy.codec,
                mine[start : start + rows],
                size=samples,
                split=split,
                seed=seed,
                sampling=sampling_of(config, temperature),
                on_turn=on_turn and partial(_on_turn_after, on_turn, len(episodes)),
            )
            engine.clear_cache()
            batch = [t.episode for t in trajectories]
            # Early: every batch waits for what is down.
            stop_if_most_failed([e for e in batch if failed(e)], len(batch))
            episodes += batch
    return [episode for part in trainer.world.gather(episodes) for episode in part]


def _on_turn_after(on_turn: Callable[[int, int], None], before: int, ended: int, turn: int) -> None:
    """Call `on_turn` with the episodes of earlier batches added."""
    on_turn(before + ended, turn)


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _kind(episode: Episode) -> str:
    return str(episode.extra.get("kind", ""))


def differences(before: Measurement, after: Measurement) -> np.ndarray:
    """Compute each task's gain; NaN if one of the two measurements is missing."""
    # None becomes NaN.
    difference: np.ndarray = np.asarray(after.per_task, dtype=float) - np.asarray(
        before.per_task, dtype=float
    )
    return difference


def paired_difference(before: Measurement, after: Measurement) -> tuple[float, float, float]:
    """Compute the paired difference of means with its 95 % interval, over tasks."""
    difference = differences(before, after)
    difference = difference[~np.isnan(difference)]
    low, high = cluster_bootstrap([[gain] for gain in difference.tolist()])
    return float(difference.mean()) if len(difference) else 0.0, low, high


def header(config: Config, held_out: Sequence[str]) -> dict[str, Any]:
    """Make the content of ``evaluation.json``."""
    metric = find_entry(config.env).metric
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
    metric = find_entry(config.env).metric
    solved = {
        "success_before": before.success,
        "success_after": after.success,
        "greedy_success_before": before.greedy_success,
        "greedy_success_after": after.greedy_success,
    }
    return {
        "env": find_entry(config.env).id,
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
    table = Table(title=f"{summary['env']}: {summary['metric']} on held-out tasks, temperature 1 (greedy)")
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
    table.add_row(
        "all",
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
    console.print(
        f"{summary['metric']} {summary['before']:.1%} -> {summary['after']:.1%}, difference {summary['difference']:+.1%} "
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
