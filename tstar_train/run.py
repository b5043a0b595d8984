"""A whole run: the only place that builds everything."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tstar_envs import BadData, EnvironmentFailed, InfrastructureError, MissingExtra, UnknownOption
from tstar_envs.utils import counted
from tstar_train.build import build, device_of, held_out_tasks, make_env, training_tasks, validation_tasks
from tstar_train.checkpoint import Progress, latest_checkpoint, read_state
from tstar_train.claim import claimed
from tstar_train.config import Config
from tstar_train.config_check import check
from tstar_train.display import waiting
from tstar_train.engines.check import EngineMismatch
from tstar_train.engines.factory import require_engine
from tstar_train.evaluate import Measurement
from tstar_train.finite import NotFinite
from tstar_train.loop import Trainer
from tstar_train.ranks import all_ranks, order
from tstar_train.report import write_report
from tstar_train.result import header, print_result, summarized
from tstar_train.resume import finished, resumed, with_secrets
from tstar_train.stopping import Stop, resume_command, stop_signals
from tstar_train.tracking import LoggerFailed, RunFolder
from tstar_train.training import train_on
from tstar_train.validation import Validation
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
    """Measure, train, measure, report; with validation it is the weights chosen by it that are measured at the end.

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
    config.keep_secrets()
    check(config)
    require_engine(config, device_of(config))
    if importlib.util.find_spec("tensorboard") is None:  # only looked for: importing it costs a second
        raise MissingExtra("training", "tensorboard", "train")
    with claimed(out, resume=resume), stop_signals() as stop:
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
            return summary
        return _run(config, out, console, checkpoint, before, stop, torchrun)


def _run(
    config: Config,
    out: Path,
    console: Console,
    checkpoint: Path | None,
    before: Measurement | None,
    stop: Stop,
    torchrun: World | None,
) -> dict[str, Any]:
    """The run itself, in a folder that is ours."""
    started = time.time()
    # An environment may change the process's folder; commands are for the user's, which stays.
    named, out = out, out.absolute()
    checkpoint = checkpoint and checkpoint.absolute()
    env = make_env(config)
    training_tasks(env, config)  # refused here rather than by a process of its own
    held_out, validated = held_out_tasks(env, config), validation_tasks(env, config)
    progress = Progress()
    folder: RunFolder | None = None
    begun = False
    try:
        with all_ranks(config, torchrun) as world:
            # Before the folder is filled: a start that fails must not leave one behind.
            trainer = build(config, world, console)
            folder = RunFolder(out, config)
            folder.write("config.json", config.to_json())
            world.in_case(
                out,
                lambda: f"{_saved(out)}; when that is mended, go on with: {resume_command(named)}",
            )
            if checkpoint is not None:
                progress = Progress.of(read_state(checkpoint))
                order(trainer, "load", checkpoint)
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
                        f"{counted(progress.iteration, 'iteration')}: put the file back"
                    )
                if before is None:
                    before = _measure(trainer, held_out, console, "start")
                recorded = {**header(config, held_out), "before": before.report()}
                folder.write("evaluation.json", recorded)
            before = Measurement.from_report(recorded["before"], out / "evaluation.json", len(held_out))
            stop.patient = begun = True
            if train_on(trainer, folder, progress, console, started, stop, validation):
                message = f"stopped and saved; continue with: {resume_command(named)}"
                console.print(message, highlight=False, soft_wrap=True)
                return {}
            stop.patient = False
            chosen = validation.report() if validation.on else None
            if chosen is not None and not chosen["iteration"]:
                after = before  # the start is what was measured then
            else:
                if chosen is not None:
                    validation.load_best(trainer)
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
    summary = summarized(config, before, after, progress, time.time() - started, chosen)
    gained = {name: summary[name] for name in ("difference", "ci_low", "ci_high")}
    folder.write(
        "evaluation.json",
        {**recorded, "after": after.report(), **gained, **({"chosen": chosen} if chosen is not None else {})},
    )
    folder.write("summary.json", summary)
    report = write_report(out)
    print_result(console, before, after, summary, named / report.name, chosen)
    return summary


# What fails outside of the trainer, each a sentence of its own.
_OUTSIDE = (InfrastructureError, EngineMismatch, RankFailed, EnvironmentFailed, LoggerFailed)


def _lacks_report(out: Path) -> bool:
    """Whether a run with a summary was killed before its report: there is none, or that of before it was made longer."""
    report = out / "report.html"
    return not report.exists() or report.stat().st_mtime_ns < (out / "summary.json").stat().st_mtime_ns


def _saved(out: Path) -> str:
    """What of a run is safe on the disk, in a sentence without its full stop."""
    newest = latest_checkpoint(out)
    if newest is None or not int(newest.name):
        return "No iteration was saved yet; what was measured is kept"
    return f"What was done up to iteration {int(newest.name)} is saved in {newest}"


def _measure(trainer: Trainer, held_out: Sequence[str], console: Console, what: str) -> Measurement:
    """Measure the policy on the held-out tasks, and say how far that is."""
    config = trainer.config
    greedy = ", and one greedy" * config.evaluation.greedy
    how = f"{counted(config.evaluation.samples, 'episode')} of each at temperature 1{greedy}"
    console.print(f"measuring the {what} on {len(held_out)} held-out tasks, {how} ...", highlight=False)
    with waiting(console, f"measuring the {what}") as trainer.told:
        measured: Measurement = order(trainer, "measure", held_out)
        return measured


def resume_run(
    out: Path,
    console: Console,
    iterations: int | None = None,
    torchrun: World | None = None,
    secrets: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Continue a run by the options it was started with.

    Args:
        out: its folder.
        console: for progress and results.
        iterations: train up to so many instead; more than before.
        torchrun: see ``train``.
        secrets: by field of ``Config`` the ``key=value`` pairs that ``config.json`` does not hold, because they are secret.

    Raises:
        UnknownOption: there is no run in the folder, or an option is missing or another one than it was started with.
    """
    path = out / "config.json"
    if not path.is_file():
        raise UnknownOption(
            f"{out} holds no config.json, so there is no run to resume there: start one with --env ENV --out {out}"
        )
    config = with_secrets(Config.from_json(path), secrets or {}, out)
    return train(config, out, console, resume=True, iterations=iterations, torchrun=torchrun)
