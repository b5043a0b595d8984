"""The run folder: metrics, timings, episodes and trees appended as they come, TensorBoard events, a progress display."""

from __future__ import annotations

import hashlib
import json
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tstar_envs import BadData, MissingExtra, append_episode, parse_json, read_json, write_whole
from tstar_train.config import Config
from tstar_train.loop import IterationResult
from tstar_train.rollout.group import GroupResult
from tstar_train.tree import tree_to_dict

_EPISODE_GROUPS = 2  # groups per iteration whose episodes are kept: all of them would be tens of megabytes


class RunFolder:
    """Files of a run; every method leaves what was written before intact, whatever happens.

    Args:
        path: of the folder; made if it is not there.
        config: of the run.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self._config = config
        (path / "trees").mkdir(parents=True, exist_ok=True)
        self._events: Any = None
        self._wandb: Any = None
        if config.wandb is not None and find_spec("wandb") is None:
            raise MissingExtra("--wandb", "wandb", "wandb")

    def write(self, name: str, content: dict[str, Any] | str) -> None:
        """Replace a file atomically."""
        text = content if isinstance(content, str) else json.dumps(_plain(content), indent=1) + "\n"
        write_whole(self.path / name, text)

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of this folder; empty if it is not there.

        Raises:
            BadData: it holds no object.
        """
        path = self.path / name
        if not path.exists():
            return {}
        content: dict[str, Any] = read_json(path)
        return content

    def log(self, number: int, result: IterationResult, seconds: float) -> None:
        """Append an iteration (numbered from 1)."""
        self._append("metrics.jsonl", {"iteration": number, **result.metrics})
        self._append("timings.jsonl", {"iteration": number, **result.seconds, "seconds": seconds})
        shown = _most_telling(result.played.groups)
        for group in shown:
            for trajectory, advantages in zip(group.trajectories, group.advantages, strict=True):
                episode = trajectory.episode
                episode.extra = {**episode.extra, "iteration": number, "advantages": [round(float(a), 6) for a in advantages]}
                append_episode(self.path / "episodes.jsonl", episode)
        for episode in result.played.failed:
            episode.extra = {**episode.extra, "iteration": number}
            append_episode(self.path / "episodes.jsonl", episode)
        trees = [self._tree(group, result) for group in shown if group.tree is not None]
        if trees:
            self.write(f"trees/{number:04d}.json", {"iteration": number, "trees": trees})
        self._tensorboard(number, result)
        if self._config.wandb is not None:
            self._weights_and_biases(self._config.wandb, number, result)

    def cut(self, iterations: int) -> None:
        """Drop what was logged after an iteration: a resumed run writes it again.

        Raises:
            BadData: a line is damaged, or lines of the iterations before are missing; nothing is changed then.
        """
        kept = {name: self._until(self.path / name, iterations) for name in ("metrics.jsonl", "timings.jsonl", "episodes.jsonl")}
        wanted = {"metrics.jsonl": list(range(1, iterations + 1))}  # clock times are missed by nobody
        wanted["episodes.jsonl"] = [line.number for line in kept["metrics.jsonl"] or [] if _has_episodes(line.record)]
        for name, numbers in wanted.items():
            lines, comes_after = kept[name], f"the checkpoint comes after {iterations} iterations"
            if lines is None and numbers:
                raise BadData(f"{self.path / name} is missing, and {comes_after}: put it back, or start a new run")
            found = list(dict.fromkeys(line.number for line in lines or []))
            if found != numbers:
                which = f"iterations 1 to {iterations}" if len(numbers) == iterations else f"the {len(numbers)} iterations with episodes"
                raise BadData(
                    f"{self.path / name} does not hold {which}, and {comes_after} (it has {len(found)} of them): put the file back, or "
                    f"start a new run"
                )
        for name, lines in kept.items():
            if lines is not None:
                self.write(name, "".join(line.text for line in lines))
        for path in (self.path / "trees").glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) > iterations:
                path.unlink()

    def _until(self, path: Path, iterations: int) -> list[_Line] | None:
        """The whole lines of a file up to an iteration; None if it is not there."""
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
                if number > iterations:  # lines come in order: what stands behind is later still
                    break
                kept.append(_Line(number, line, record))
        return kept

    def close(self) -> None:
        """Flush what TensorBoard and Weights & Biases have not written yet."""
        if self._events is not None:
            self._events.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with open(self.path / name, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(_plain(record)) + "\n")
            handle.flush()
            os.fsync(handle.fileno())

    def _tree(self, group: GroupResult, result: IterationResult) -> dict[str, Any]:
        first = group.trajectories[0]
        grafts = [
            {
                "depth": g.depth, "spread": g.spread, "best_members": g.best_members, "worst_members": g.worst_members,
                "source": g.source, "verified": g.verified, "thought": g.thought, "worst_step": list(g.worst_step),
                "failed": g.failed._asdict(), "succeeded": g.succeeded._asdict(),
            }
            for g in result.played.grafts.kept
            if g.group == first.group
        ]  # fmt: skip
        delta, shrink, baseline = self._config.tree.delta, self._config.graft.shrink, self._config.tree.baseline
        tree = tree_to_dict(group.tree, group.trajectories, delta, shrink, baseline) if group.tree is not None else {}
        return {
            "task": first.episode.task,
            "instruction": first.episode.instruction,
            "rewards": [t.reward for t in group.trajectories],
            "tree": tree,
            "grafts": grafts,
        }

    def _weights_and_biases(self, project: str, number: int, result: IterationResult) -> None:
        if self._wandb is None:
            import wandb  # imported late: an extra of its own

            # A resumed run goes on under its name.
            name = hashlib.blake2b(str(self.path.resolve()).encode(), digest_size=8).hexdigest()
            config = json.loads(self._config.to_json())
            self._wandb = wandb.init(
                project=project, name=self.path.name, id=name, resume="allow", config=config, dir=str(self.path)
            )
        figures = {k: v for k, v in result.metrics.items() if isinstance(v, int | float)}
        self._wandb.log(figures | {f"seconds/{k}": v for k, v in result.seconds.items()}, step=number)

    def _tensorboard(self, number: int, result: IterationResult) -> None:
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter  # imported late: it costs a second

            # Points from here on that a killed run left in other files are not shown twice.
            self._events = SummaryWriter(str(self.path / "tensorboard"), purge_step=number)
        for name, value in {**result.metrics, **{f"seconds/{k}": v for k, v in result.seconds.items()}}.items():
            if isinstance(value, int | float):
                self._events.add_scalar(name, value, number)
        self._events.flush()  # else a kill takes up to two minutes of points, which the resumed run does not draw again


class _Line(NamedTuple):
    """A line of a log: the iteration that it tells of, as it stands there, and what it says."""

    number: int
    text: str
    record: dict[str, Any]


def _has_episodes(metrics: dict[str, Any]) -> bool:
    """Whether an iteration with these figures has lines in ``episodes.jsonl``: DAPO may have dropped all that it played."""
    return metrics.get("reward", 0.0) is not None or bool(metrics.get("failed_episodes"))


def _most_telling(groups: list[GroupResult]) -> list[GroupResult]:
    """The groups with most divergences, else the first ones."""
    return sorted(groups, key=lambda g: (-len(g.divergences), g.trajectories[0].group))[:_EPISODE_GROUPS]


def _plain(value: Any) -> Any:
    """JSON has no infinity or NaN: they become strings, so that every reader can read the file."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Display:
    """Live progress in a terminal; a line every few iterations elsewhere.

    Args:
        console: where to.
        config: of the run.
    """

    def __init__(self, console: Console, config: Config) -> None:
        self._console = console
        self._total = config.iterations
        self._window: list[dict[str, Any]] = []
        columns = (
            TextColumn("[bold]{task.completed}/{task.total}"), BarColumn(bar_width=20), TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console, transient=False, disable=not console.is_terminal)
        self._row = self._progress.add_task("", total=self._total, figures="")
        self._started = False

    def update(self, number: int, metrics: dict[str, Any], seconds_per_iteration: float) -> None:
        """Show iteration ``number`` (from 1)."""
        if not self._started:
            self._progress.start()
            self._started = True
        self._window = [*self._window[-9:], metrics]

        def mean(name: str) -> float:
            values = [m[name] for m in self._window if m.get(name) is not None]
            return sum(values) / len(values) if values else 0.0

        # Of one iteration a figure says little: its tasks are few, and others than those of the one before.
        several = f"means of {len(self._window)}: " if len(self._window) > 1 else ""
        figures = f"{several}success {mean('success'):.1%}"
        if "f1" in metrics:  # question answering: the reward is exact match
            figures += f"  EM {mean('reward'):.1%}"
        if "grafts" in metrics:
            figures += (
                f"  tree {mean('tree_nodes_before'):.0f}->{mean('tree_nodes_after'):.0f} nodes, "
                f"{mean('tree_divergent_nodes'):.1f} divergent  grafts {mean('grafts'):.0f}"
            )
        self._progress.update(self._row, completed=number, figures=figures)
        if not self._console.is_terminal and (number == 1 or number % 10 == 0 or number == self._total):
            left = (self._total - number) * seconds_per_iteration
            share = f"{number / self._total:.0%}"
            line = f"iteration {number}/{self._total} ({share})  {figures}  {left / 60:.1f} min left"
            self._console.print(line, highlight=False)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        if self._started:
            self._progress.stop()
