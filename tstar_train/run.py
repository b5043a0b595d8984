"""Runs: measure, train, validate, measure, report."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from tstar_envs import (
    BadData,
    EnvironmentFailed,
    InfrastructureError,
    MissingExtra,
    UnknownOption,
    find_entry,
)
from tstar_envs.utils import counted
from tstar_train.build import VALIDATION, build, device_of, measured_tasks
from tstar_train.checkpoint import (
    CheckpointWriter,
    Progress,
    best_folder,
    finished,
    keep_best_checkpoint,
    latest_checkpoint,
    read_state,
    restore_best_checkpoint,
    resumed,
    verified_best_checkpoint,
    with_secrets,
)
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.distributed import Communicator, RankFailed
from tstar_train.engines import close_engine, require_engine
from tstar_train.engines.base import EngineFailed
from tstar_train.engines.check import EngineMismatch
from tstar_train.evaluate import Measurement, by_environment, header, print_result, summarized
from tstar_train.finite import NotFinite
from tstar_train.loop import Trainer, share_of_episodes, share_of_minutes, share_of_turns
from tstar_train.metrics import IterationResult
from tstar_train.output import Output
from tstar_train.ranks import all_ranks, run_on_all_ranks
from tstar_train.report import write_report
from tstar_train.result import RunResult
from tstar_train.rollout.stream import Slot
from tstar_train.run_lock import lock_run_dir, new_folder, remove_unused
from tstar_train.stopping import Stop, resume_command, stop_signals
from tstar_train.tracking import VALIDATIONS, Display, LoggerFailed, RunFolder, waiting

# A mean of shares differs in its last bits with the order of its terms; a difference of one episode is far larger.
_DIGITS = 9


class Validation:
    """Validations of a run so far, and the best weights.

    Args:
        config: of the run.
        folder: of the run, truncated to the iteration it resumes from.
        tasks: ids of the validation tasks; empty for no validation.
        console: for the results.

    Attributes:
        means: mean outcome at each validated iteration.
        means_of: the same by environment, in a run on several.

    Raises:
        BadData: a recorded validation cannot be read.
        BadCheckpoint: the best weights so far are missing.
    """

    def __init__(
        self, config: Config, folder: RunFolder, tasks: Sequence[str | Slot], console: Console
    ) -> None:
        self._config = config
        self._folder = folder
        self._tasks = tasks
        self._console = console
        self.means: dict[int, float] = {}
        self.means_of: dict[str, dict[int, float]] = {env: {} for env in config.mix}
        if not tasks:
            return
        records = folder.validations()
        for record in records:
            if not isinstance(record.get("mean"), int | float):
                raise BadData(
                    f"{folder.path / VALIDATIONS}: no 'mean' of iteration {record['iteration']}: restore the file"
                )
            self.means[record["iteration"]] = record["mean"]
            parts = record.get("by_env")
            for env, means in self.means_of.items():
                part = parts.get(env) if isinstance(parts, dict) else None
                if not isinstance(part, dict) or not isinstance(part.get("mean"), int | float):
                    raise BadData(
                        f"{folder.path / VALIDATIONS}: no 'mean' of {env} at iteration {record['iteration']}: restore the file"
                    )
                means[record["iteration"]] = part["mean"]
        if records:
            restore_best_checkpoint(folder.path, self.best)
            for env, means in self.means_of.items():
                restore_best_checkpoint(folder.path, _best_of(means), env)
            folder.draw_validation(records[-1])  # a kill after its line may have come before its points

    def due(self, iteration: int, last: bool) -> bool:
        """Check whether an iteration's weights should be validated and were not yet.

        Args:
            iteration: number of finished iterations.
            last: True if no iteration follows.
        """
        every = self._config.evaluation.validate_every
        return bool(self._tasks) and iteration not in self.means and (last or iteration % every == 0)

    @property
    def on(self) -> bool:
        """True if the run validates."""
        return bool(self._tasks)

    @property
    def best(self) -> int:
        """Iteration of the best weights so far.

        Raises:
            ValueError: nothing was validated.
        """
        return _best_of(self.means)

    def chosen(self, until: int) -> int | None:
        """Return the best validated iteration up to one, the earliest of equals; None if there is none."""
        seen = {iteration: mean for iteration, mean in self.means.items() if iteration <= until}
        return _best_of(seen) if seen else None

    def kept(self, until: int) -> set[int]:
        """Return all iterations up to one whose weights are kept: the best of all, and of each environment."""
        parts = [
            {i: m for i, m in means.items() if i <= until} for means in (self.means, *self.means_of.values())
        ]
        return {_best_of(part) for part in parts if part}

    def validate(
        self, trainer: Trainer, iteration: int, display: Display, saved: Callable[[], None] = lambda: None
    ) -> None:
        """Measure the weights of a saved checkpoint and keep them if they are the best.

        Args:
            trainer: with these weights.
            iteration: of the checkpoint.
            display: for progress.
            saved: waits until the checkpoint is written.

        Raises:
            UnknownOption: the processes do not share the run folder.
            InfrastructureError: most episodes failed.
        """
        # In this order: the checkpoint is saved, measured, recorded, and becomes ``best``. So a run that is killed anywhere in between
        # goes on from these very weights: it measures them if they are not recorded, and makes ``best`` what the records say in any
        # case. Where they are cut to an earlier checkpoint, its choice is still there (``write_checkpoint``).
        config, path = self._config, self._folder.path
        with display.busy(
            f"validating {_named(iteration)} on {counted(len(self._tasks), 'task')}"
        ) as trainer.on_progress:
            measured: Measurement = run_on_all_ranks(trainer, "measure", self._tasks, VALIDATION)
        saved()
        self.means[iteration] = round(measured.mean, _DIGITS)
        best = self.best
        report = measured.report()
        record: dict[str, Any] = {
            "iteration": iteration,
            "mean": self.means[iteration],
            "ci_low": report["ci_low"],
            "ci_high": report["ci_high"],
            "greedy": measured.greedy,
            "tasks": len(self._tasks),
            "failed": measured.failed,
            "best": best,
            "best_mean": self.means[best],
        }
        if self.means_of:
            record["by_env"] = {}
        for env, part in measured.by_env().items():
            means = self.means_of[env]
            figures = part.figures()
            means[iteration] = figures["mean"] = round(part.mean, _DIGITS)
            best_of = _best_of(means)
            record["by_env"][env] = {**figures, "best": best_of, "best_mean": means[best_of]}
        self._folder.log_validation(record)
        if best == iteration:
            keep_best_checkpoint(path, iteration)
        for env, means in self.means_of.items():
            if _best_of(means) == iteration:
                keep_best_checkpoint(path, iteration, env)
        # Said now rather than when all is trained.
        if not iteration and not run_on_all_ranks(trainer, "finds", best_folder(path)):
            raise UnknownOption(
                f"--evaluation.validate-every: every process reads {best_folder(path)} in the end, and one does not find it: give an --out "
                f"that all hosts share, or --evaluation.validate-every 0"
            )
        greedy = "" if measured.greedy is None else f", greedy {measured.greedy:.1%}"
        each = "".join(
            f"; {find_entry(env).name} {part['mean']:.1%}, best {_named(part['best'])}"
            for env, part in record.get("by_env", {}).items()
        )
        self._console.print(
            f"validation of {_named(iteration)}: {config.metric} {measured.mean:.1%} (95 % interval "
            f"{record['ci_low']:.1%} to {record['ci_high']:.1%}){greedy}; best so far: {_named(best)}{each}",
            highlight=False,
        )

    def load_best_checkpoint(self, trainer: Trainer) -> None:
        """Load the best weights on all ranks.

        Raises:
            BadCheckpoint: the weights are damaged.
        """
        run_on_all_ranks(trainer, "load", verified_best_checkpoint(self._folder.path, self.best))

    def report(self) -> dict[str, Any]:
        """Make the entry of ``evaluation.json``: which weights were chosen, and why."""
        return {
            "iteration": self.best,
            "by": "validation",
            "mean": self.means[self.best],
            "candidates": len(self.means),
            "split": VALIDATION,
            "tasks": len(self._tasks),
            "samples": self._config.evaluation.samples,
        }


def _best_of(means: Mapping[int, float]) -> int:
    """Return the iteration with the highest mean, the earliest of equals.

    Raises:
        ValueError: nothing was validated.
    """
    return min(means, key=lambda iteration: (-means[iteration], iteration))


def _named(iteration: int) -> str:
    return f"iteration {iteration}" if iteration else "the start"


def train_on(
    trainer: Trainer,
    folder: RunFolder,
    progress: Progress,
    console: Console,
    started: float,
    stop: Stop,
    validation: Validation,
    callback: Callback | None = None,
) -> bool:
    """Train until the end. However it ends, the last whole state is saved, if one rank holds it.

    Args:
        trainer: changed in place.
        folder: of the run.
        progress: of the run, changed in place.
        console: for progress.
        started: start of the run by ``time.time``, without the pauses of interruptions.
        stop: set when the user asks to stop.
        validation: selects the best weights.
        callback: called after each iteration with its number and metrics.

    Returns:
        True if the user stopped the run.
    """
    config = trainer.config
    display = Display(console, config)
    begun, before = time.perf_counter(), progress.seconds
    saved = progress.iteration if latest_checkpoint(folder.path) is not None or not validation.on else None
    writer = CheckpointWriter(folder.path, config.keep_checkpoints, validation.kept, config.checkpoint_beside)

    def save(failed: bool = False) -> None:
        nonlocal saved
        if saved != progress.iteration and trainer.whole:
            if not trainer.learner.saves_alone:
                if failed:  # the other ranks hold a part of it, and may be gone: the last checkpoint stands
                    return
                run_on_all_ranks(trainer, "gather")
            if trainer.sampler is not None and not failed:  # else resuming samples anew
                run_on_all_ranks(trainer, "queue")
            writer.save(trainer, progress)
            saved = progress.iteration

    try:
        while not stop.asked:
            late = share_of_minutes(config, progress.seconds) > 1
            last = (
                late
                or progress.iteration >= config.iterations
                or share_of_episodes(config, trainer.cursor) >= 1
                or share_of_turns(config, trainer.turns) >= 1
            )
            if validation.due(progress.iteration, last):
                save()
                paused = time.perf_counter()
                validation.validate(trainer, progress.iteration, display, writer.wait)
                begun += time.perf_counter() - paused  # it is no time of training
            if last or stop.asked:
                break
            number = progress.iteration + 1
            result: IterationResult = run_on_all_ranks(
                trainer, "iterate", progress.iteration, share_of_minutes(config, progress.seconds)
            )
            seconds = before + time.perf_counter() - begun
            folder.log(number, result, seconds)
            # From here on state and files say the same, and may be saved.
            progress.iteration, progress.seconds, progress.wall_seconds = (
                number,
                seconds,
                time.time() - started,
            )
            progress.episodes += sum(found.counts["episodes"] for found in result.data.figures)
            trainer.whole = True
            folder.show(number, result)
            display.update(number, result.metrics, seconds / number)
            _remark(console, config, number, result)
            if callback is not None:
                callback(number, result.metrics)
            if number % config.checkpoint_every == 0:
                save()
            elif writer.failed:
                writer.wait()
        display.stop()
        save()  # with sampling ahead it waits, and what is sampled may fail
        writer.wait()
    except BaseException:
        with suppress(OSError):  # the display's: what it is shown on may be what failed
            display.stop()
        save(failed=True)
        writer.wait()
        raise
    return stop.asked


def _remark(console: Console, config: Config, number: int, result: IterationResult) -> None:
    """Say of an iteration what should not pass unnoticed."""
    metrics = result.metrics
    if lost := result.data.failed:
        played = config.rollout.tasks_per_iteration * config.rollout.group_size
        console.print(
            f"iteration {number}: {len(lost)} of {played} episodes failed and are left out, the last: {lost[-1].error}",
            style="yellow",
            markup=False,
            highlight=False,
        )
    if left_out := result.data.forks_failed:
        console.print(
            f"iteration {number}: {left_out} of its forks failed and are left out, the last: {result.data.fork_error}",
            style="yellow",
            markup=False,
            highlight=False,
        )
    if len(result.data.figures) < config.rollout.tasks_per_iteration - len(lost) and config.algo.startswith(
        "dapo"
    ):
        console.print(
            f"iteration {number}: {len(result.data.figures)} of {config.rollout.tasks_per_iteration} groups to learn from "
            f"after {config.dapo.rounds} rounds of sampling (--dapo.rounds); it trains on those",
            style="yellow",
            highlight=False,
        )
    if metrics["gradient_norm"] == 0.0:
        why = "all groups equal" if metrics["zero_variance_groups"] == 1.0 else "no gradient"
        console.print(
            f"iteration {number}: nothing to learn from: {why} (mean reward {metrics['reward'] or 0.0:.3g}, "
            f"{metrics['invalid_rate'] or 0.0:.0%} invalid actions)",
            style="yellow",
            highlight=False,
        )


Callback = Callable[[int, dict[str, Any]], None]


def train(
    config: Config,
    out: str | os.PathLike[str] | None = None,
    console: Console | None = None,
    *,
    resume: bool = False,
    before: Measurement | None = None,
    iterations: int | None = None,
    torchrun: Communicator | None = None,
    callback: Callback | None = None,
) -> RunResult:
    """Run a training: measure, train, measure, report. With validation, the best weights are measured at the end.

    ``python -m tstar_train`` calls this. A stop (Ctrl-C, SIGTERM) saves the run after its iteration and returns.

    Example:
        >>> import tstar_train
        >>> config = tstar_train.make_config("blocksworld-stack", iterations=20)
        >>> result = tstar_train.train(config, "runs/stack")   # doctest: +SKIP
        >>> result.summary["difference"], result.agent         # doctest: +SKIP

    Args:
        config: all options; ``make_config`` makes one from a preset.
        out: run folder; must be empty or absent unless ``resume``. None for a new folder in ``runs``.
        console: for progress and results; None for standard output.
        resume: continue from the newest checkpoint of ``out``; a complete run stays as it is.
        before: measurement of the start policy, if known (runs with the same start share it).
        iterations: with ``resume``, a larger total number of iterations.
        torchrun: communicator of ``torchrun``'s first rank; None: the run starts its own processes.
        callback: called after each iteration with its number, from 1, and its metrics.

    Returns:
        The run, with its summary, metrics and weights; not ``complete`` if it was stopped.

    Raises:
        UnknownOption: the folder holds another run, a value is out of its range, or an option does not fit the environment.
        InUse: another process trains in this folder.
        MissingExtra: TensorBoard is not installed.
        InfrastructureError: most episodes failed (a search service is down); earlier iterations are saved.
        NotFinite, RankFailed, EngineFailed: the iteration could not be finished; earlier iterations are saved.
    """
    if out is None and resume:
        raise UnknownOption("resume needs the run's folder: give out=FOLDER")
    path = Path(out) if out is not None else new_folder(_default_folder(config))
    made = path.absolute()  # an environment may change the process's folder
    try:
        _train(config, path, console or Output(), resume, before, iterations, torchrun, callback)
    finally:
        if out is None:
            remove_unused(made)
    return RunResult(made)


def _default_folder(config: Config) -> Path:
    """Name a new run by environment, method, seed and time."""
    algo = config.algo.rpartition(":")[2].lower()
    method = f"tstar-{algo}" if config.tstar else algo
    name = "+".join(find_entry(env).name for env in config.environments)
    return Path("runs") / f"{name}-{method}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def _train(
    config: Config,
    out: Path,
    console: Console,
    resume: bool,
    before: Measurement | None,
    iterations: int | None,
    torchrun: Communicator | None,
    callback: Callback | None,
) -> None:
    """Run in a folder that is locked first."""
    config.keep_secrets()
    check(config)
    require_engine(config, device_of(config))
    if importlib.util.find_spec("tensorboard") is None:  # only looked for: importing it costs a second
        raise MissingExtra("training", "tensorboard", "train")
    with lock_run_dir(out, resume=resume), stop_signals() as stop:
        checkpoint, config = resumed(out, config, iterations, console) if resume else (None, config)
        if resume and (summary := finished(out, config, checkpoint)) is not None:
            done = summary["iterations"]
            message = (
                f"already complete: {counted(done, 'iteration')}; to go on: --resume {out} --iterations N"
            )
            # A command that is broken into lines cannot be pasted.
            console.print(message, highlight=False, soft_wrap=True)
            if _lacks_report(out):
                console.print(f"report: {write_report(out)}", highlight=False, soft_wrap=True)
            return
        _run(config, out, console, checkpoint, before, stop, torchrun, callback)


def _run(
    config: Config,
    out: Path,
    console: Console,
    checkpoint: Path | None,
    before: Measurement | None,
    stop: Stop,
    torchrun: Communicator | None,
    callback: Callback | None,
) -> None:
    """Run in a locked folder."""
    started = time.time()
    # An environment may change the process's folder; commands are for the user's, which stays.
    named, out = out, out.absolute()
    checkpoint = checkpoint and checkpoint.absolute()
    held_out, validated = measured_tasks(config)
    progress = Progress()
    folder: RunFolder | None = None
    begun = False
    try:
        with all_ranks(config, torchrun) as world, ExitStack() as ending:
            # Before the folder is filled: a start that fails must not leave one behind.
            trainer = build(config, world, console, out)
            ending.callback(close_engine, trainer.engine)
            if trainer.sampler is not None and trainer.sampler.engine is not trainer.engine:
                ending.callback(close_engine, trainer.sampler.engine)
            folder = RunFolder(out, config)
            folder.write("config.json", config.to_json())
            world.set_failure_message(
                out,
                lambda: f"{_saved(out)}; when that is mended, go on with: {resume_command(named)}",
            )
            if checkpoint is not None:
                progress = Progress.of(read_state(checkpoint))
                run_on_all_ranks(trainer, "load", checkpoint)
            # Without one not even the start's validation stands.
            folder.cut(progress.iteration if checkpoint is not None else -1)
            validation = Validation(config, folder, validated, console)
            if checkpoint is not None:
                console.print(f"resuming after iteration {progress.iteration}", highlight=False)
            started -= progress.wall_seconds
            recorded = folder.read("evaluation.json")
            if "before" not in recorded:
                if progress.iteration:
                    raise BadData(
                        f"{out / 'evaluation.json'} lacks the measurement of the start, which cannot be made again after "
                        f"{counted(progress.iteration, 'iteration')}: restore the file"
                    )
                if before is None:
                    before = _measure(trainer, held_out, console, "start")
                recorded = {**header(config, held_out), "before": before.report()}
                folder.write("evaluation.json", recorded)
            before = Measurement.from_report(recorded["before"], out / "evaluation.json", len(held_out))
            stop.patient = begun = True
            if train_on(trainer, folder, progress, console, started, stop, validation, callback):
                message = f"stopped and saved; continue with: {resume_command(named)}"
                console.print(message, highlight=False, soft_wrap=True)
                return
            stop.patient = False
            chosen = validation.report() if validation.on else None
            if chosen is not None and not chosen["iteration"]:
                after = before  # the start is what was measured then
            else:
                if chosen is not None:
                    validation.load_best_checkpoint(trainer)
                after = _measure(trainer, held_out, console, "result")
    except NotFinite as error:
        if folder is not None and error.batch:
            folder.write("broken_batch.json", {"iteration": progress.iteration + 1, **error.batch})
            message = f"The rows that it came from are in {out / 'broken_batch.json'}. {_saved(out)}"
            raise NotFinite(f"{error}. {message}", error.batch) from error
        raise
    except _OUTSIDE as error:
        if folder is None:  # nothing has begun that could be gone on with
            raise
        kind = next(kind for kind in _OUTSIDE if isinstance(error, kind))
        raise kind(
            f"{error}. {_saved(out)}; when that is mended, go on with: {resume_command(named)}"
        ) from error
    except UnknownOption as error:
        if folder is not None and checkpoint is None and "before" not in folder.read("evaluation.json"):
            (out / "config.json").unlink(missing_ok=True)  # refused before anything was measured
        elif begun:  # the environment's: a task that was there is gone
            error.add_note(f"{_saved(out)}; when that is mended, go on with: {resume_command(named)}")
        raise
    except KeyboardInterrupt:
        if folder is None:  # there is nothing to go on with; main says so
            raise KeyboardInterrupt from None
        raise KeyboardInterrupt(f"interrupted. {_saved(out)}; go on with: {resume_command(named)}") from None
    except Exception as error:
        if folder is not None:
            error.add_note(f"{_saved(out)}; when that is mended, go on with: {resume_command(named)}")
        raise
    finally:
        if folder is not None:
            folder.close()
    by_env = by_environment(config, before, after)
    summary = summarized(config, before, after, progress, time.time() - started, chosen)
    gained = {name: summary[name] for name in ("difference", "ci_low", "ci_high")}
    folder.write(
        "evaluation.json",
        {
            **recorded,
            "after": after.report(),
            **gained,
            **({"by_env": by_env} if by_env else {}),
            **({"chosen": chosen} if chosen is not None else {}),
        },
    )
    folder.write("summary.json", summary)
    report = write_report(out)
    print_result(console, before, after, summary, named / report.name, chosen)


# What fails outside of the trainer, each a sentence of its own.
_OUTSIDE = (InfrastructureError, EngineFailed, EngineMismatch, RankFailed, EnvironmentFailed, LoggerFailed)


def _lacks_report(out: Path) -> bool:
    """Check whether a complete run was killed before its report: it is missing, or older than the summary."""
    report = out / "report.html"
    return not report.exists() or report.stat().st_mtime_ns < (out / "summary.json").stat().st_mtime_ns


def _saved(out: Path) -> str:
    """Say what is saved on disk, as a clause without a full stop."""
    newest = latest_checkpoint(out)
    if newest is None or not int(newest.name):
        return "No iteration was saved yet; what was measured is kept"
    return f"What was done up to iteration {int(newest.name)} is saved in {newest}"


def _measure(trainer: Trainer, held_out: Sequence[str | Slot], console: Console, what: str) -> Measurement:
    """Measure the policy on the held-out tasks, and say how far that is."""
    config = trainer.config
    greedy = ", and one greedy" * config.evaluation.greedy
    how = f"{counted(config.evaluation.samples, 'episode')} of each at temperature 1{greedy}"
    console.print(f"measuring the {what} on {len(held_out)} held-out tasks, {how} ...", highlight=False)
    with waiting(console, f"measuring the {what}") as trainer.on_progress:
        measured: Measurement = run_on_all_ranks(trainer, "measure", held_out)
        return measured


def resume_run(
    out: str | os.PathLike[str],
    console: Console | None = None,
    iterations: int | None = None,
    torchrun: Communicator | None = None,
    secrets: Mapping[str, Sequence[str]] | None = None,
) -> RunResult:
    """Resume a run with its own options.

    Args:
        out: its folder.
        console: see ``train``.
        iterations: a larger total number of iterations.
        torchrun: see ``train``.
        secrets: ``key=value`` pairs by field of ``Config`` that ``config.json`` does not hold because they are secret.

    Raises:
        UnknownOption: the folder holds no run, or an option is missing or differs from the start.
    """
    out = Path(out)
    path = out / "config.json"
    if not path.is_file():
        raise UnknownOption(
            f"{out} holds no config.json, so there is no run to resume there: start one with --env ENV --out {out}"
        )
    config = with_secrets(Config.from_json(path), secrets or {}, out)
    return train(config, out, console, resume=True, iterations=iterations, torchrun=torchrun)
