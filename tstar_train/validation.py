"""Choosing among the weights of a run by what they earn on tasks that are neither trained on nor measured at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tstar_envs import BadData, UnknownOption, find_entry
from tstar_envs.utils import counted
from tstar_train.best import best_folder, keep_best, restore_best, verified_best
from tstar_train.build import VALIDATION
from tstar_train.config import Config
from tstar_train.display import Display
from tstar_train.evaluate import Measurement
from tstar_train.loop import Trainer
from tstar_train.ranks import order
from tstar_train.tracking import VALIDATIONS, RunFolder

# A mean of shares differs in its last bits with the order of its terms; a difference of one episode is far larger.
_DIGITS = 9


class Validation:
    """The validations of a run so far, and the best weights by them.

    Args:
        config: of the run.
        folder: of the run, cut to where it goes on.
        tasks: what is validated on; none: nothing is.
        console: for the results.

    Attributes:
        means: mean outcome at each validated iteration.

    Raises:
        BadData: a recorded validation cannot be read.
        BadCheckpoint: the weights that were chosen so far are lost.
    """

    def __init__(self, config: Config, folder: RunFolder, tasks: Sequence[str], console: Console) -> None:
        self._config = config
        self._folder = folder
        self._tasks = tasks
        self._console = console
        self.means: dict[int, float] = {}
        if not tasks:
            return
        records = folder.validations()
        for record in records:
            if not isinstance(record.get("mean"), int | float):
                raise BadData(
                    f"{folder.path / VALIDATIONS}: no 'mean' of iteration {record['iteration']}: put the file back"
                )
            self.means[record["iteration"]] = record["mean"]
        if records:
            restore_best(folder.path, self.best)
            folder.draw_validation(records[-1])  # a kill after its line may have come before its points

    def due(self, iteration: int, last: bool) -> bool:
        """Whether the weights after an iteration are to be validated and were not yet.

        Args:
            iteration: how many there were.
            last: whether none follows.
        """
        every = self._config.evaluation.validate_every
        return bool(self._tasks) and iteration not in self.means and (last or iteration % every == 0)

    @property
    def on(self) -> bool:
        """Whether the run validates."""
        return bool(self._tasks)

    @property
    def best(self) -> int:
        """The iteration that is best so far.

        Raises:
            ValueError: nothing was validated.
        """
        best = self.chosen(max(self.means, default=0))
        if best is None:
            raise ValueError("nothing was validated")
        return best

    def chosen(self, until: int) -> int | None:
        """The best iteration up to one, of equal ones the earliest; None if none was validated."""
        seen = {iteration: mean for iteration, mean in self.means.items() if iteration <= until}
        return min(seen, key=lambda iteration: (-seen[iteration], iteration), default=None)

    def validate(self, trainer: Trainer, iteration: int, display: Display) -> None:
        """Measure the weights after an iteration, whose checkpoint was saved, and keep them if they are the best.

        Raises:
            UnknownOption: the processes do not share the run folder.
            InfrastructureError: most episodes failed.
        """
        # In this order: the checkpoint is saved, measured, recorded, and becomes ``best``. So a run that is killed anywhere in between
        # goes on from these very weights: it measures them if they are not recorded, and makes ``best`` what the records say in any
        # case. Where they are cut to an earlier checkpoint, its choice is still there (``save_checkpoint``).
        config, path = self._config, self._folder.path
        with display.busy(
            f"validating {_named(iteration)} on {counted(len(self._tasks), 'task')}"
        ) as trainer.told:
            measured: Measurement = order(trainer, "measure", self._tasks, VALIDATION)
        self.means[iteration] = round(measured.mean, _DIGITS)
        best = self.best
        report = measured.report()
        record = {
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
        self._folder.log_validation(record)
        if best == iteration:
            keep_best(path, iteration)
        # Said now rather than when all is trained.
        if not iteration and not order(trainer, "finds", best_folder(path)):
            raise UnknownOption(
                f"--evaluation.validate-every: every process reads {best_folder(path)} in the end, and one does not find it: give an --out "
                f"that all hosts share, or --evaluation.validate-every 0"
            )
        greedy = "" if measured.greedy is None else f", greedy {measured.greedy:.1%}"
        self._console.print(
            f"validation of {_named(iteration)}: {find_entry(config.env).metric} {measured.mean:.1%} (95 % interval "
            f"{record['ci_low']:.1%} to {record['ci_high']:.1%}){greedy}; best so far: {_named(best)}",
            highlight=False,
        )

    def load_best(self, trainer: Trainer) -> None:
        """Bring all ranks to the best weights.

        Raises:
            BadCheckpoint: they are damaged.
        """
        order(trainer, "load", verified_best(self._folder.path, self.best))

    def report(self) -> dict[str, Any]:
        """The entry of ``evaluation.json``: which weights were chosen, and by what."""
        return {
            "iteration": self.best,
            "by": "validation",
            "mean": self.means[self.best],
            "candidates": len(self.means),
            "split": VALIDATION,
            "tasks": len(self._tasks),
            "samples": self._config.evaluation.samples,
        }


def _named(iteration: int) -> str:
    return f"iteration {iteration}" if iteration else "the start"
