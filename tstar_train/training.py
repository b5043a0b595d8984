"""The iterations of a run: what is logged, saved, validated and said between one and the next."""

from __future__ import annotations

import time
from contextlib import suppress

from rich.console import Console

from tstar_train.checkpoint import Progress, latest_checkpoint, save_checkpoint
from tstar_train.config import Config
from tstar_train.display import Display
from tstar_train.loop import IterationResult, Trainer, share_of_episodes, share_of_minutes
from tstar_train.ranks import order
from tstar_train.stopping import Stop
from tstar_train.tracking import RunFolder
from tstar_train.validation import Validation


def train_on(
    trainer: Trainer,
    folder: RunFolder,
    progress: Progress,
    console: Console,
    started: float,
    stop: Stop,
    validation: Validation,
) -> bool:
    """Iterations until the end. However it ends, the last whole state is saved, if one rank holds it.

    Args:
        trainer: changed in place.
        folder: of the run.
        progress: how far the run is, changed in place.
        console: for progress.
        started: when the run began, by ``time.time``, as if it had never been interrupted.
        stop: whether the user wants an end.
        validation: chooses among the weights.

    Returns:
        Whether the user stopped them.
    """
    config = trainer.config
    display = Display(console, config)
    begun, before = time.perf_counter(), progress.seconds
    saved = progress.iteration if latest_checkpoint(folder.path) is not None or not validation.on else None

    def save(failed: bool = False) -> None:
        nonlocal saved
        if saved != progress.iteration and trainer.whole:
            if not trainer.learner.saves_alone:
                if failed:  # the other ranks hold a part of it, and may be gone: the last checkpoint stands
                    return
                order(trainer, "gather")
            save_checkpoint(folder.path, trainer, progress, config.keep_checkpoints, validation.chosen)
            saved = progress.iteration

    try:
        while not stop.asked:
            late = share_of_minutes(config, progress.seconds) > 1
            last = (
                late
                or progress.iteration >= config.iterations
                or share_of_episodes(config, trainer.cursor) >= 1
            )
            if validation.due(progress.iteration, last):
                save()
                paused = time.perf_counter()
                validation.validate(trainer, progress.iteration, display)
                begun += time.perf_counter() - paused  # it is no time of training
            if last or stop.asked:
                break
            number = progress.iteration + 1
            result: IterationResult = order(
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
            progress.episodes += sum(len(group.trajectories) for group in result.played.groups)
            trainer.whole = True
            folder.show(number, result)
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
            style="yellow",
            markup=False,
            highlight=False,
        )
    if len(result.played.groups) < config.rollout.tasks - len(lost) and config.algo.startswith("dapo"):
        console.print(
            f"iteration {number}: {len(result.played.groups)} of {config.rollout.tasks} groups to learn from after {config.dapo.rounds} "
            f"rounds of sampling (--dapo.rounds); it trains on those",
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
