"""A whole run: the only place that builds everything."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tstar_envs import BadData, InfrastructureError, MissingExtra, UnknownOption, find_entry
from tstar_train.build import build, device_of, held_out_tasks, make_env, training_tasks
from tstar_train.checkpoint import Progress, latest_checkpoint, read_state, save_checkpoint
from tstar_train.claim import claimed
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.engines.check import EngineMismatch
from tstar_train.engines.factory import require_engine
from tstar_train.evaluate import Measurement, metric_name, paired_difference
from tstar_train.finite import NotFinite
from tstar_train.loop import IterationResult, Trainer
from tstar_train.ranks import all_ranks, order
from tstar_train.report import write_report
from tstar_train.report.headline import FEW_TASKS
from tstar_train.resume import finished, resumed
from tstar_train.stopping import Stop, stop_signals
from tstar_train.tracking import Display, RunFolder
from tstar_train.world import RankFailed, World


def train(
    config: Config,
    out: Path,
    console: Console,
    resume: bool = False,
    before: Measurement | None = None,
    iterations: int | None = None,
    torchrun: World | None = None,
) -> dict[str, Any]:
    """Measure, train, measure, report.

    Args:
        config: all options.
        out: run folder; must be empty or absent unless ``resume``.
        console: for progress and results.
        resume: continue from the newest checkpoint of ``out``. A run that is complete stays as it is.
        before: the start policy's measurement, if it is known already (runs that share a start share it).
        iterations: with ``resume``, train up to so many instead; more than before.
        torchrun: this process is the first rank of the group that ``torchrun`` started; None: the run starts its own processes.

    Returns:
        The summary, as in ``summary.json``.

    Raises:
        UnknownOption: the folder holds another run, a value is out of its range, or an option does not fit the environment.
        InUse: another process trains in this folder.
        MissingExtra: TensorBoard is not installed.
        InfrastructureError: most episodes failed (a search service is down); what was done before is saved.
        NotFinite, RankFailed: the iteration could not be finished; what was done before is saved.
    """
    check(config)
    require_engine(config, device_of(config))
    if importlib.util.find_spec("tensorboard") is None:  # only looked for: importing it costs a second
        raise MissingExtra("training", "tensorboard", "train")
    with claimed(out, resume=resume), stop_signals() as stop:
        checkpoint, config = resumed(out, config, iterations, console) if resume else (None, config)
        if resume and (summary := finished(out, config, checkpoint)) is not None:
            done = summary["iterations"]
            told = f"already complete: {done} iterations; to go on: --resume {out} --iterations N"
            console.print(told, highlight=False, soft_wrap=True)  # a command that is broken into lines cannot be pasted
            if _lacks_report(out):
                console.print(f"report: {write_report(out)}", highlight=False, soft_wrap=True)
            return summary
        return _run(config, out, console, checkpoint, before, stop, torchrun)


def _run(
    config: Config, out: Path, console: Console, checkpoint: Path | None, before: Measurement | None, stop: Stop, torchrun: World | None
) -> dict[str, Any]:  # fmt: skip
    """The run itself, in a folder that is ours."""
    started = time.time()
    env = make_env(config)
    training_tasks(env, config)  # refused here rather than by a process of its own
    held_out = held_out_tasks(env, config)
    progress = Progress()
    folder: RunFolder | None = None
    try:
        with all_ranks(config, torchrun) as world:
            trainer = build(config, world, console)  # before the folder is filled: a start that fails must not leave one behind
            folder = RunFolder(out, config)
            folder.write("config.json", config.to_json())
            world.in_case(out.absolute(), lambda: f"{_saved(out)}; when that is mended, go on with: python -m tstar_train --resume {out}")
            if checkpoint is not None:
                progress = Progress.of(read_state(checkpoint))
                order(trainer, "load", checkpoint)
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
                    before = _measure(trainer, held_out, console, "start")
                recorded = {**_header(config, held_out), "before": before.report()}
                folder.write("evaluation.json", recorded)
            before = Measurement.from_report(recorded["before"], out / "evaluation.json", len(held_out))
            stop.patient = True
            stopped = _train(trainer, folder, progress, console, started, stop)
            if stopped:
                told = f"stopped and saved; continue with: python -m tstar_train --resume {out}"
                console.print(told, highlight=False, soft_wrap=True)
                return {}
            stop.patient = False
            after = _measure(trainer, held_out, console, "result")
    except NotFinite as error:
        if folder is not None and error.batch:
            folder.write("broken_batch.json", {"iteration": progress.iteration + 1, **error.batch})
            told = f"The rows that it came from are in {out / 'broken_batch.json'}. {_saved(out)}"
            raise NotFinite(f"{error}. {told}", error.batch) from error
        raise
    except (InfrastructureError, RankFailed, EngineMismatch) as error:
        if folder is None:  # nothing has begun that could be gone on with
            raise
        again = f"python -m tstar_train --resume {out}"
        kind = next(kind for kind in (InfrastructureError, EngineMismatch, RankFailed) if isinstance(error, kind))
        raise kind(f"{error}. {_saved(out)}; when that is mended, go on with: {again}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted. {_saved(out)}; go on with: python -m tstar_train --resume {out}") from None
    finally:
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


def _lacks_report(out: Path) -> bool:
    """Whether a run with a summary was killed before its report: there is none, or that of before it was made longer."""
    report = out / "report.html"
    return not report.exists() or report.stat().st_mtime_ns < (out / "summary.json").stat().st_mtime_ns


def _saved(out: Path) -> str:
    """What of a run is safe on the disk, in a sentence without its full stop."""
    newest = latest_checkpoint(out)
    if newest is None:
        return "No iteration was saved yet; what was measured is kept"
    return f"What was done up to iteration {int(newest.name)} is saved in {newest}"


def _measure(trainer: Trainer, held_out: Sequence[str], console: Console, what: str) -> Measurement:
    """Measure the policy on the held-out tasks; a terminal shows that something moves."""
    config = trainer.config
    console.print(f"measuring the {what} on {len(held_out)} held-out tasks ...", highlight=False)
    samples, greedy = config.evaluation.samples, ", and one greedy" * config.evaluation.greedy
    with console.status(f"{samples} episode{'s' * (samples != 1)} of each at temperature 1{greedy}"):
        measured: Measurement = order(trainer, "measure", held_out)
        return measured


def _train(trainer: Trainer, folder: RunFolder, progress: Progress, console: Console, started: float, stop: Stop) -> bool:
    """Iterations until the end; True if the user stopped them. However it ends, the last whole state is saved, if one rank holds it."""
    config = trainer.config
    display = Display(console, config)
    begun, before = time.perf_counter(), progress.seconds
    saved = progress.iteration

    def save(failed: bool = False) -> None:
        nonlocal saved
        if saved != progress.iteration and trainer.whole:
            if not trainer.learner.saves_alone:
                if failed:  # the other ranks hold a part of it, and may be gone: the last checkpoint stands
                    return
                order(trainer, "gather")
            save_checkpoint(folder.path, trainer, progress, config.keep_checkpoints)
            saved = progress.iteration

    try:
        while progress.iteration < config.iterations and not stop.asked:
            if config.minutes is not None and progress.seconds > 60 * config.minutes:
                break
            number = progress.iteration + 1
            result: IterationResult = order(trainer, "iterate", progress.iteration)
            seconds = before + time.perf_counter() - begun
            folder.log(number, result, seconds)
            # From here on state and files say the same, and may be saved.
            progress.iteration, progress.seconds, progress.wall_seconds = number, seconds, time.time() - started
            progress.episodes += sum(len(group.trajectories) for group in result.played.groups)
            trainer.whole = True
            display.update(number, result.metrics, seconds / number)
            _remark(console, config, number, result)
            if number % config.checkpoint_every == 0:
                save()
    except BaseException:
        with suppress(OSError):  # the display's: what it is shown on may be what failed
            display.stop()
        save(failed=True)
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
    if len(result.played.groups) < config.rollout.tasks - len(lost) and config.algo.startswith("dapo"):
        console.print(
            f"iteration {number}: {len(result.played.groups)} of {config.rollout.tasks} groups to learn from after {config.dapo.rounds} "
            f"rounds of sampling (--dapo.rounds); it trains on those", style="yellow", highlight=False,
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


def resume_run(out: Path, console: Console, iterations: int | None = None, torchrun: World | None = None) -> dict[str, Any]:
    """Continue a run by the options it was started with, up to more iterations if so many are named."""
    path = out / "config.json"
    if not path.is_file():
        raise UnknownOption(f"{out} holds no config.json, so there is no run to resume there: start one with --env ENV --out {out}")
    return train(Config.from_json(path), out, console, resume=True, iterations=iterations, torchrun=torchrun)
