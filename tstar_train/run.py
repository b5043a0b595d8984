"""A whole run: the only place that builds everything."""

from __future__ import annotations

import copy
import importlib.util
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tstar_envs import BadData, InfrastructureError, MissingExtra, StableRandom, TextEnv, UnknownOption, find_entry
from tstar_train.checkpoint import Progress, latest_checkpoint, load_checkpoint, save_checkpoint
from tstar_train.claim import claimed
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.engines.check import check_agreement
from tstar_train.engines.local import LocalEngine
from tstar_train.evaluate import Measurement, measure, metric_name, paired_difference
from tstar_train.finite import NotFinite
from tstar_train.loop import IterationResult, Learner, iterate, needs_reference
from tstar_train.policy.limit import context_limit
from tstar_train.policy.model import ONE_THREAD_BELOW, is_tiny, load_policy
from tstar_train.presets import require_train_split
from tstar_train.recipes.built_in import policy_name
from tstar_train.report import write_report
from tstar_train.report.headline import FEW_TASKS
from tstar_train.resume import finished, resumed
from tstar_train.rollout.collect import EnvSpec
from tstar_train.rollout.team import HelperFailed, Team
from tstar_train.stopping import Stop, stop_signals
from tstar_train.tracking import Display, RunFolder


def train(
    config: Config,
    out: Path,
    console: Console,
    resume: bool = False,
    before: Measurement | None = None,
    iterations: int | None = None,
) -> dict[str, Any]:
    """Measure, train, measure, report.

    Args:
        config: all options.
        out: run folder; must be empty or absent unless ``resume``.
        console: for progress and results.
        resume: continue from the newest checkpoint of ``out``. A run that is complete stays as it is.
        before: the start policy's measurement, if it is known already (runs that share a start share it).
        iterations: with ``resume``, train up to so many instead; more than before.

    Returns:
        The summary, as in ``summary.json``.

    Raises:
        UnknownOption: the folder holds another run, a value is out of its range, or an option does not fit the environment.
        InUse: another process trains in this folder.
        MissingExtra: TensorBoard is not installed.
        InfrastructureError: most episodes failed (a search service is down); what was done before is saved.
        NotFinite, HelperFailed: the iteration could not be finished; what was done before is saved.
    """
    check(config)
    if importlib.util.find_spec("tensorboard") is None:  # only looked for: importing it costs a second
        raise MissingExtra("training", "tensorboard", "train")
    with claimed(out, resume=resume), stop_signals() as stop:
        checkpoint, config = resumed(out, config, iterations, console) if resume else (None, config)
        if resume and (summary := finished(out, config, checkpoint)) is not None:
            done = summary["iterations"]
            told = f"already complete: {done} iterations; to go on: --resume {out} --iterations N"
            console.print(told, highlight=False, soft_wrap=True)  # a command that is broken into lines cannot be pasted
            return summary
        return _run(config, out, console, checkpoint, before, stop)


def _run(
    config: Config, out: Path, console: Console, checkpoint: Path | None, before: Measurement | None, stop: Stop
) -> dict[str, Any]:
    """The run itself, in a folder that is ours."""
    started = time.time()
    env = make_env(config)
    tasks, held_out = training_tasks(env, config), held_out_tasks(env, config)
    learner = build(config, console)  # before the folder is filled: a start that fails must not leave one that blocks the next
    progress = Progress()
    folder: RunFolder | None = None
    try:
        folder = RunFolder(out, config)
        folder.write("config.json", config.to_json())
        if checkpoint is not None:
            progress = load_checkpoint(checkpoint, learner)
        folder.cut(progress.iteration)
        if checkpoint is not None:
            console.print(f"resuming after iteration {progress.iteration}", highlight=False)
        started -= progress.wall_seconds
        recorded = folder.read("evaluation.json")
        if "before" not in recorded:
            if progress.iteration:
                raise BadData(
                    f"{out / 'evaluation.json'} lacks the measurement of the start, which cannot be made again after "
                    f"{progress.iteration} iterations: put the file back"
                )
            if before is None:
                before = _measure(learner, held_out, config, console, "start")
            recorded = {**_header(config, held_out), "before": before.report()}
            folder.write("evaluation.json", recorded)
        before = Measurement.from_report(recorded["before"], out / "evaluation.json", len(held_out))
        stop.patient = True
        stopped = _train(config, folder, learner, tasks, progress, console, started, stop)
        if stopped:
            console.print(f"stopped and saved; continue with: python -m tstar_train --resume {out}", highlight=False, soft_wrap=True)
            return {}
        stop.patient = False
        after = _measure(learner, held_out, config, console, "result")
    except NotFinite as error:
        if folder is not None and error.batch:
            folder.write("broken_batch.json", {"iteration": progress.iteration + 1, **error.batch})
            told = f"The rows that it came from are in {out / 'broken_batch.json'}. {_saved(out)}"
            raise NotFinite(f"{error}. {told}", error.batch) from error
        raise
    except (InfrastructureError, HelperFailed) as error:
        again = f"python -m tstar_train --resume {out}"
        kind = InfrastructureError if isinstance(error, InfrastructureError) else HelperFailed
        raise kind(f"{error}. {_saved(out)}; when that is mended, go on with: {again}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted. {_saved(out)}; go on with: python -m tstar_train --resume {out}") from None
    finally:
        learner.team.close()
        if folder is not None:
            folder.close()
    summary = _summary(config, before, after, progress, time.time() - started)
    low, high = summary["ci_low"], summary["ci_high"]
    folder.write(
        "evaluation.json",
        {**recorded, "after": after.report(), "difference": summary["difference"], "ci_low": low, "ci_high": high},
    )
    folder.write("summary.json", summary)
    report = write_report(out)
    _print_result(console, before, after, summary, report)
    return summary


def _saved(out: Path) -> str:
    """What of a run is safe on the disk, in a sentence without its full stop."""
    newest = latest_checkpoint(out)
    if newest is None:
        return "No iteration was saved yet; what was measured is kept"
    return f"What was done up to iteration {int(newest.name)} is saved in {newest}"


def _measure(learner: Learner, held_out: Sequence[str], config: Config, console: Console, what: str) -> Measurement:
    """Measure the policy on the held-out tasks; a terminal shows that something moves."""
    console.print(f"measuring the {what} on {len(held_out)} held-out tasks ...", highlight=False)
    samples, greedy = config.evaluation.samples, ", and one greedy" * config.evaluation.greedy
    with console.status(f"{samples} episode{'s' * (samples != 1)} of each at temperature 1{greedy}"):
        return measure(learner.team, held_out, config.evaluation)


def build(config: Config, console: Console | None = None) -> Learner:
    """Policy, reference, optimizer and team, as the options say.

    Raises:
        UnknownOption: replies may be so long that no context fits before them.
    """
    entry = find_entry(config.env)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    policy = load_policy(config.model, policy_name(entry), device)
    limit = context_limit(policy.model.config, config.rollout.context_tokens)
    if config.rollout.max_tokens >= limit:
        raise UnknownOption(
            f"--rollout.max-tokens {config.rollout.max_tokens} leaves no room for a context: with {config.model} both together have at "
            f"most {limit} tokens; try --rollout.max-tokens {max(1, limit // 4)}"
        )
    if console is not None and not is_tiny(config.model):
        console.print(f"context and reply have at most {limit} tokens together", highlight=False)
    check_agreement(policy, LocalEngine(policy))
    small = policy.parameters < ONE_THREAD_BELOW
    if config.threads is not None or small:
        torch.set_num_threads(config.threads or 1)
    reference = copy.deepcopy(policy.model).requires_grad_(False) if needs_reference(config) else None
    processes = config.processes or (min(os.cpu_count() or 1, config.rollout.tasks, 8) if small and device == "cpu" else 1)
    team = Team(policy, reference, config, EnvSpec(config.env, dict(config.env_options)), processes)
    optimizer = torch.optim.AdamW(
        [p for p in policy.model.parameters() if p.requires_grad], lr=config.optim.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
    )
    return Learner(policy, reference, optimizer, team)


def make_env(config: Config) -> TextEnv[Any, Any]:
    """One environment of the run, which checks the options before anything is played.

    Raises:
        UnknownOption: an option that the environment does not have, one that the run decides, or nothing to train on.
    """
    entry = find_entry(config.env)
    for options in (config.env_options, config.training_options):
        if "split" in options:  # it would be in force in play, but not in the choice of tasks
            raise UnknownOption(f"split is no option of its own here: use --split {options['split']}")
    require_train_split(entry)
    cls = entry.load_class()
    if config.training_options:  # refused here rather than by a helper process after the first measurement
        cls(**{**entry.kwargs, **config.env_options, **config.training_options, "split": config.split})
    return cls(**{**entry.kwargs, **config.env_options, "split": config.split})


def training_tasks(env: TextEnv[Any, Any], config: Config) -> list[str]:
    """Ids of the training split."""
    tasks = list(env.task_ids(config.split))
    if len(tasks) < config.rollout.tasks:
        raise UnknownOption(
            f"split {config.split!r} of {config.env} has {len(tasks)} tasks, fewer than --rollout.tasks {config.rollout.tasks}"
        )
    return tasks


def held_out_tasks(env: TextEnv[Any, Any], config: Config) -> list[str]:
    """Ids that the run is measured on."""
    return list(env.task_ids(config.evaluation.split))[: config.evaluation.tasks]


def tasks_of_iteration(tasks: Sequence[str], config: Config, number: int) -> list[str]:
    """The tasks of iteration ``number``: each pass over the split is a shuffle of its own, so nothing needs saving."""
    size = config.rollout.tasks
    per_pass = len(tasks) // size
    turn, position = divmod(number, per_pass)
    order = StableRandom(f"{config.seed}/tasks/{turn}").shuffled(tasks)
    return order[position * size : (position + 1) * size]


def _train(
    config: Config, folder: RunFolder, learner: Learner, tasks: Sequence[str], progress: Progress, console: Console, started: float,
    stop: Stop,
) -> bool:  # fmt: skip
    """Iterations until the end; True if the user stopped them. However it ends, the last whole state is saved."""
    display = Display(console, config)
    begun, before = time.perf_counter(), progress.seconds
    saved = progress.iteration

    def save() -> None:
        nonlocal saved
        if saved != progress.iteration and learner.whole:
            save_checkpoint(folder.path, learner, progress, config.keep_checkpoints, config)
            saved = progress.iteration

    try:
        while progress.iteration < config.iterations and not stop.asked:
            if config.minutes is not None and progress.seconds > 60 * config.minutes:
                break
            number = progress.iteration + 1
            result = iterate(learner, config, tasks_of_iteration(tasks, config, progress.iteration), progress.iteration)
            seconds = before + time.perf_counter() - begun
            folder.log(number, result, seconds)
            # From here on state and files say the same, and may be saved.
            progress.iteration, progress.seconds, progress.wall_seconds = number, seconds, time.time() - started
            progress.episodes += sum(len(group.trajectories) for group in result.played.groups)
            learner.whole = True
            display.update(number, result.metrics, seconds / number)
            _remark(console, config, number, result)
            if number % config.checkpoint_every == 0:
                save()
    except BaseException:
        with suppress(OSError):  # the display's: what it is shown on may be what failed
            display.stop()
        save()
        raise
    display.stop()
    save()
    return stop.asked


def _remark(console: Console, config: Config, number: int, result: IterationResult) -> None:
    """Say of an iteration what should not pass unnoticed."""
    metrics = result.metrics
    if lost := result.played.failed:
        played = config.rollout.tasks * config.rollout.group
        console.print(
            f"iteration {number}: {len(lost)} of {played} episodes failed and are left out, the last: {lost[-1].error}",
            style="yellow", markup=False, highlight=False,
        )  # fmt: skip
    if metrics["gradient_norm"] == 0.0:
        why = "all groups equal" if metrics["zero_variance_groups"] == 1.0 else "no gradient"
        console.print(
            f"iteration {number}: nothing to learn from: {why} (mean reward {metrics['reward'] or 0.0:.3g}, "
            f"{metrics['invalid_rate'] or 0.0:.0%} invalid actions)", style="yellow", highlight=False,
        )  # fmt: skip


def _header(config: Config, held_out: Sequence[str]) -> dict[str, Any]:
    metric = metric_name(find_entry(config.env))
    return {"metric": metric, "split": config.evaluation.split, "tasks": len(held_out), "samples": config.evaluation.samples}


def _summary(config: Config, before: Measurement, after: Measurement, progress: Progress, seconds: float) -> dict[str, Any]:
    difference, low, high = paired_difference(before, after)
    metric = metric_name(find_entry(config.env))
    solved = {
        "success_before": before.success, "success_after": after.success,
        "greedy_success_before": before.greedy_success, "greedy_success_after": after.greedy_success,
    }  # fmt: skip
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
        "episodes": progress.episodes,
        "iterations": progress.iteration,
        "seconds": seconds,
        "model": config.model,
        "split": config.evaluation.split,
        "tasks": len(before.per_task),
        "samples": config.evaluation.samples,
    }


def _print_result(console: Console, before: Measurement, after: Measurement, summary: dict[str, Any], report: Path) -> None:
    table = Table(title=f"{summary['env']}: {summary['metric']} on held-out tasks, temperature 1 (greedy)")
    for column in ("kind", "tasks", "before", "after"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    theirs = after.by_kind()
    for kind, row in before.by_kind().items():
        table.add_row(kind, str(row["tasks"]), _percent(row["mean"], row["greedy"]), _percent(theirs[kind]["mean"], theirs[kind]["greedy"]))
    table.add_row("all", str(len(before.per_task)), _percent(before.mean, before.greedy), _percent(after.mean, after.greedy), style="bold")
    console.print(table)
    if lost := before.failed + after.failed:
        console.print(f"{lost} episodes failed for want of infrastructure and are in no figure", style="yellow", highlight=False)
    console.print(
        f"{summary['metric']} {summary['before']:.1%} -> {summary['after']:.1%}, difference {summary['difference']:+.1%} "
        f"(95 % interval {summary['ci_low']:+.1%} to {summary['ci_high']:+.1%}, paired by task), "
        f"{summary['iterations']} iterations, {summary['seconds'] / 60:.1f} min",
        highlight=False,
    )
    if long := before.overlong + after.overlong:
        console.print(f"{long} episodes outgrew the context and ended there, unsolved", style="yellow", highlight=False)
    if len(before.per_task) < FEW_TASKS:
        console.print(f"of {len(before.per_task)} tasks the interval itself is rough: --evaluation.tasks takes more", highlight=False)
    if summary["metric"] == "score":
        first, second = _percent(before.success, before.greedy_success), _percent(after.success, after.greedy_success)
        console.print(f"success (a score of 1) {first} -> {second}", highlight=False)
    console.print(f"report: {report}", highlight=False, soft_wrap=True)


def _percent(mean: float | None, greedy: float | None) -> str:
    return ("-" if mean is None else f"{mean:.1%}") + (f" ({greedy:.1%})" if greedy is not None else "")


def resume_run(out: Path, console: Console, iterations: int | None = None) -> dict[str, Any]:
    """Continue a run by the options it was started with, up to more iterations if so many are named."""
    path = out / "config.json"
    if not path.is_file():
        raise UnknownOption(f"{out} holds no config.json, so there is no run to resume there: start one with --env ENV --out {out}")
    return train(Config.from_json(path), out, console, resume=True, iterations=iterations)
