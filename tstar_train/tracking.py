"""Run folder, TensorBoard, Weights & Biases, and progress display."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tstar_envs import (
    BadData,
    MissingExtra,
    TStarError,
    append_episode,
    find_entry,
    parse_json,
    read_json,
    write_whole,
)
from tstar_envs.redaction import redacted, redacted_parts
from tstar_train.config import Config
from tstar_train.metrics import SHOWN_GROUPS, IterationResult, telling
from tstar_train.tree import tree_to_dict
from tstar_train.types import Group

SECONDS_BETWEEN_LINES = 30.0  # without a terminal


class Ticker:
    """Progress of a long activity: live on a terminal, elsewhere a line every 30 s.

    Args:
        say: prints a line.
        show: updates the terminal; None without a terminal.
    """

    def __init__(self, say: Callable[[str], None], show: Callable[[str], None] | None = None) -> None:
        self._say, self._show = say, show
        self._told = time.monotonic()

    def __call__(self, text: str) -> None:
        """Report progress."""
        now = time.monotonic()
        if self._show is not None:
            self._show(text)
        elif now - self._told >= SECONDS_BETWEEN_LINES:
            self._told = now
            self._say(text)


class Display:
    """Live progress of a run in a terminal; without one, a line every few iterations.

    Args:
        console: console to print to.
        config: the run's options.
    """

    def __init__(self, console: Console, config: Config) -> None:
        self._console = console
        self._total = config.iterations
        self._metric = config.metric
        self._window: list[dict[str, Any]] = []
        columns = (
            TextColumn("[bold]{task.completed}/{task.total}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._progress = Progress(*columns, console=console, transient=False, disable=not console.is_terminal)
        self._row = self._progress.add_task("", total=self._total, figures="")
        self._started = False
        self._told = time.monotonic()

    def update(self, number: int, metrics: dict[str, Any], seconds_per_iteration: float) -> None:
        """Show iteration ``number`` (from 1)."""
        if not self._started:
            self._progress.start()
            self._started = True
        self._window = [*self._window[-9:], metrics]

        def mean(name: str) -> float:
            values = [m[name] for m in self._window if m.get(name) is not None]
            return sum(values) / len(values) if values else 0.0

        # Show means over iterations: one iteration has few tasks, and different ones each time.
        several = f"means of {len(self._window)}: " if len(self._window) > 1 else ""
        figures = f"{several}success {mean('success'):.1%}"
        if by_env := metrics.get("by_env"):
            window = [m["by_env"] for m in self._window]
            parts = {
                env: [m[env]["success"] for m in window if m[env]["success"] is not None] for env in by_env
            }
            each = (
                f"{find_entry(env).name} {sum(part) / len(part):.1%}" if part else f"{find_entry(env).name} -"
                for env, part in parts.items()
            )
            figures += f" ({', '.join(each)})"
        if self._metric != "success":
            figures += f"  {self._metric} {mean('reward'):.1%}"
        if "grafts" in metrics:
            figures += (
                f"  tree {mean('tree_nodes_before'):.0f}->{mean('tree_nodes_after'):.0f} nodes, "
                f"{mean('tree_divergent_nodes'):.1f} divergent  grafts {mean('grafts'):.0f}"
            )
        self._progress.update(self._row, completed=number, figures=figures)
        now = time.monotonic()
        due = (
            number == 1
            or number % 10 == 0
            or number == self._total
            or now - self._told >= SECONDS_BETWEEN_LINES
        )
        if not self._console.is_terminal and due:
            self._told = now
            left = (self._total - number) * seconds_per_iteration
            share = f"{number / self._total:.0%}"
            line = f"iteration {number}/{self._total} ({share})  {figures}  {left / 60:.1f} min left"
            self._console.print(line, highlight=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[Ticker]:
        """Show another activity and its progress during a ``with`` block."""
        if not self._started:
            with waiting(self._console, what) as ticker:
                yield ticker
            return
        before = self._progress.tasks[0].fields["figures"]
        self._progress.update(self._row, figures=what)
        try:
            yield _ticker(self._console, what, lambda text: self._progress.update(self._row, figures=text))
        finally:
            self._progress.update(self._row, figures=before)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        if self._started:
            self._progress.stop()


@contextmanager
def waiting(console: Console, what: str) -> Iterator[Ticker]:
    """Show a long activity and its progress during a ``with`` block."""
    with console.status(what) as status:
        yield _ticker(console, what, status.update)


def _ticker(console: Console, what: str, show: Callable[[str], None]) -> Ticker:
    """Make a ticker that prefixes its texts with the name of the activity; without a terminal it writes to standard error."""
    return Ticker(
        lambda text: print(redacted(f"{what}: {text}"), file=sys.stderr, flush=True),
        (lambda text: show(f"{what}: {text}")) if console.is_terminal else None,
    )


VALIDATIONS = "validation.jsonl"


class LoggerFailed(TStarError, RuntimeError):
    """A logger failed; the run's own files and weights are intact."""


@contextmanager
def _logger(name: str, advice: str) -> Iterator[None]:
    """Convert errors of a logger to ``LoggerFailed`` with its name and advice."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise LoggerFailed(f"{name} failed: {type(error).__name__}: {reason:.300}; {advice}") from error


class RunFolder:
    """Files of a run. Every method keeps earlier data intact, even if it fails.

    Args:
        path: folder of the run; created if missing.
        config: the run's options.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self._config = config
        (path / "trees").mkdir(parents=True, exist_ok=True)
        self._events: Any = None
        self._validations: Any = None
        self._wandb: Any = None
        if config.wandb is not None and find_spec("wandb") is None:
            raise MissingExtra("--wandb", "wandb", "wandb")

    def write(self, name: str, content: dict[str, Any] | str) -> None:
        """Replace a file atomically."""
        text = (
            content
            if isinstance(content, str)
            else json.dumps(redacted_parts(_plain(content)), indent=1) + "\n"
        )
        write_whole(self.path / name, text)

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of this folder; empty if it is missing.

        Raises:
            BadData: the file is not a JSON object.
        """
        path = self.path / name
        if not path.exists():
            return {}
        content: dict[str, Any] = read_json(path)
        return content

    def log(self, number: int, result: IterationResult, seconds: float) -> None:
        """Append an iteration (numbered from 1) to the run's own files, which a resumed run reads."""
        self._append("metrics.jsonl", {"iteration": number, **result.metrics})
        memory = {"gpu_memory_peak_gib": result.memory} if result.memory else {}
        self._append("timings.jsonl", {"iteration": number, **result.seconds, "seconds": seconds, **memory})
        shown = sorted(result.data.groups, key=telling)[:SHOWN_GROUPS]
        for group in shown:
            own = group.advantages[: len(group.trajectories)]  # forks are with the trees
            for trajectory, advantages in zip(group.trajectories, own, strict=True):
                episode = trajectory.episode
                episode.extra = {
                    **episode.extra,
                    "iteration": number,
                    "advantages": [round(float(a), 6) for a in advantages],
                }
                append_episode(self.path / "episodes.jsonl", episode)
        for episode in result.data.failed:
            episode.extra = {**episode.extra, "iteration": number}
            append_episode(self.path / "episodes.jsonl", episode)
        trees = [self._tree(group, result) for group in shown if group.tree is not None]
        if trees:
            (self.path / "trees").mkdir(exist_ok=True)
            self.write(f"trees/{number:04d}.json", {"iteration": number, "trees": trees})

    def show(self, number: int, result: IterationResult) -> None:
        """Log an iteration to TensorBoard and, if requested, to Weights & Biases.

        Raises:
            LoggerFailed: a logger failed; the run's own files are intact.
        """
        with _logger("TensorBoard", "repair its folder tensorboard/"):
            self._tensorboard(number, result)
        if self._config.wandb is not None:
            figures = {k: v for k, v in _flat(result.metrics).items() if isinstance(v, int | float)}
            with _logger("Weights & Biases (--wandb)", "log in (wandb login), or set WANDB_MODE=offline"):
                self._weights_and_biases(self._config.wandb, number, figures | _measured(result))

    def log_validation(self, record: dict[str, Any]) -> None:
        """Append a validation."""
        self._append(VALIDATIONS, record)
        with _logger("TensorBoard", "repair its folder tensorboard/"):
            self.draw_validation(record)
        if self._config.wandb is not None:
            drawn = {f"validation/{k}": v for k, v in _drawn(record)}
            with _logger("Weights & Biases (--wandb)", "log in (wandb login), or set WANDB_MODE=offline"):
                self._weights_and_biases(self._config.wandb, record["iteration"], drawn)

    def draw_validation(self, record: dict[str, Any]) -> None:
        """Log a validation to TensorBoard, replacing points of this and later iterations.

        Validations are a separate TensorBoard run, so that replacing them keeps other points.
        """
        if self._validations is None:
            self._validations = _event_writer(self.path / "tensorboard" / "validation", record["iteration"])
        for name, value in _drawn(record):
            self._validations.add_scalar(f"validation/{name}", value, record["iteration"])
        self._validations.flush()

    def validations(self) -> list[dict[str, Any]]:
        """Read the records of ``log_validation``, without an unfinished last line."""
        return [line.record for line in self._until(self.path / VALIDATIONS) or []]

    def cut(self, iterations: int) -> None:
        """Drop the logs after an iteration; a resumed run writes them again.

        Raises:
            BadData: a line is damaged, or lines of earlier iterations are missing; nothing is changed.
        """
        names = [
            "metrics.jsonl",
            "timings.jsonl",
            "episodes.jsonl",
            *([VALIDATIONS] if self._config.evaluation.validate_every else []),
        ]
        kept = {name: self._until(self.path / name, iterations) for name in names}
        wanted = {"metrics.jsonl": list(range(1, iterations + 1))}  # timings may be missing
        wanted["episodes.jsonl"] = [
            line.number for line in kept["metrics.jsonl"] or [] if _has_episodes(line.record)
        ]
        for name, numbers in wanted.items():
            lines, comes_after = kept[name], f"the checkpoint comes after {iterations} iterations"
            if lines is None and numbers:
                raise BadData(
                    f"{self.path / name} is missing, and {comes_after}: restore it, or start a new run"
                )
            found = list(dict.fromkeys(line.number for line in lines or []))
            if found != numbers:
                which = (
                    f"iterations 1 to {iterations}"
                    if len(numbers) == iterations
                    else f"the {len(numbers)} iterations with episodes"
                )
                raise BadData(
                    f"{self.path / name} does not hold {which}, and {comes_after} (it has {len(found)} of them): restore the file, or "
                    f"start a new run"
                )
        if every := self._config.evaluation.validate_every:
            # The validation after the last iteration may be missing: the checkpoint is saved before it.
            missing = sorted(
                {*range(0, iterations, every)} - {line.number for line in kept[VALIDATIONS] or []}
            )
            if missing:
                raise BadData(
                    f"{self.path / VALIDATIONS} lacks the validation of iteration {missing[0]}, and the checkpoint comes after "
                    f"{iterations}: restore the file, or start a new run"
                )
        for name, lines in kept.items():
            if lines is not None:
                self.write(name, "".join(line.text for line in lines))
        for path in (self.path / "trees").glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) > iterations:
                path.unlink()

    def _until(self, path: Path, iterations: float = math.inf) -> list[_Line] | None:
        """Read the whole lines of a file up to an iteration; None if the file is missing."""
        if not path.is_file():
            return None
        kept = []
        with open(path, encoding="utf-8", errors="backslashreplace") as handle:
            for line_number, line in enumerate(handle, start=1):
                if not line.endswith("\n"):  # the writer was killed within this line
                    break
                record = parse_json(line, f"{path}, line {line_number}")
                extra = record.get("extra")
                number = record.get("iteration", extra.get("iteration") if isinstance(extra, dict) else None)
                if type(number) is not int:
                    raise BadData(f"{path}, line {line_number}: no whole number 'iteration'")
                if number > iterations:  # lines are in order, so the rest is later too
                    break
                kept.append(_Line(number, line, record))
        return kept

    def close(self) -> None:
        """Flush and close TensorBoard and Weights & Biases."""
        for events in (self._events, self._validations):
            if events is not None:
                events.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with open(self.path / name, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(redacted_parts(_plain(record))) + "\n")
            handle.flush()
            os.fsync(handle.fileno())

    def _tree(self, group: Group, result: IterationResult) -> dict[str, Any]:
        first = group.trajectories[0]
        grafts = [
            {
                "depth": g.depth,
                "spread": g.spread,
                "best_members": g.best_members,
                "worst_members": g.worst_members,
                "source": g.source,
                "verified": g.verified,
                "thought": g.thought,
                "worst_step": list(g.worst_step),
                "failed": g.failed._asdict(),
                "succeeded": g.succeeded._asdict(),
            }
            for g in result.data.grafts.kept
            if g.group == first.group
        ]
        options, shrink, members = self._config.tree, self._config.graft.shrink, group.members
        tree: dict[str, Any] = {}
        if group.tree is not None:
            tree = tree_to_dict(group.tree, members, options.delta, shrink, options.baseline, options.credit)
        return {
            "task": first.episode.task,
            "instruction": first.episode.instruction,
            "rewards": [t.reward for t in group.trajectories],
            "tree": tree,
            "grafts": grafts,
        }

    def _weights_and_biases(self, project: str, number: int, figures: dict[str, Any]) -> None:
        if self._wandb is None:
            import wandb  # imported late: an optional extra

            # A resumed run continues under the same id.
            name = hashlib.blake2b(str(self.path.resolve()).encode(), digest_size=8).hexdigest()
            config = json.loads(self._config.to_json())
            self._wandb = wandb.init(
                project=project,
                name=self.path.name,
                id=name,
                resume="allow",
                config=config,
                dir=str(self.path),
            )
        self._wandb.log(figures, step=number)

    def _tensorboard(self, number: int, result: IterationResult) -> None:
        if self._events is None:
            self._events = _event_writer(self.path / "tensorboard", number)
        for name, value in {**_flat(result.metrics), **_measured(result)}.items():
            if isinstance(value, int | float):
                self._events.add_scalar(name, value, number)
        self._events.flush()  # otherwise a kill loses up to two minutes of points, which the resumed run does not log again


def _event_writer(folder: Path, first: int) -> Any:
    """Make a TensorBoard writer; it hides points of iteration ``first`` and later that a killed run left in other files."""
    from torch.utils.tensorboard import SummaryWriter  # imported late: it takes a second

    return SummaryWriter(str(folder), purge_step=first)


def _measured(result: IterationResult) -> dict[str, float]:
    """Return seconds, and on a GPU peak memory, by curve name."""
    return {
        **{f"seconds/{phase}": value for phase, value in result.seconds.items()},
        **{f"gpu_memory_peak_gib/{phase}": value for phase, value in result.memory.items()},
    }


def _flat(metrics: dict[str, Any]) -> dict[str, Any]:
    """Name the figures of each environment ``success/nq``."""
    each = {
        f"{name}/{find_entry(env).name}": value
        for env, figures in metrics.get("by_env", {}).items()
        for name, value in figures.items()
    }
    return metrics | each


def _drawn(validation: dict[str, Any]) -> list[tuple[str, float]]:
    """Select a validation's values to plot."""
    return [
        (name, value)
        for name, value in _flat(validation).items()
        if name.partition("/")[0] in ("mean", "greedy") and value is not None
    ]


class _Line(NamedTuple):
    """Line of a log: its iteration, its exact text, and its record."""

    number: int
    text: str
    record: dict[str, Any]


def _has_episodes(metrics: dict[str, Any]) -> bool:
    """Check whether an iteration wrote lines to ``episodes.jsonl``; DAPO may have dropped all its episodes."""
    return metrics.get("reward", 0.0) is not None or bool(metrics.get("failed_episodes"))


def _plain(value: Any) -> Any:
    """Convert infinity and NaN, which JSON lacks, to strings."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
