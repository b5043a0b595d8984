"""Episode log: the episodes of an evaluation, with their statistics, as a table and as a plot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tstar_envs.agents.base import failure_of, total
from tstar_envs.errors import UnknownOption, import_extra
from tstar_envs.evaluation.cost import CostSummary, read_prices, summarise_costs
from tstar_envs.evaluation.log import latest, settings_of
from tstar_envs.evaluation.stats import PassRates, Summary, pass_rates, results_by_task, summarise
from tstar_envs.record import Episode
from tstar_envs.record_files import read_episodes
from tstar_envs.utils import counted

if TYPE_CHECKING:
    from tstar_envs.evaluation.report import Written


class EpisodeLog(Sequence[Episode]):
    """Episodes of an evaluation, in order of environment, task and sample.

    Episodes that ended in an error are in the log, and excluded from all rates.

    Example:
        >>> import tstar_envs
        >>> log = tstar_envs.evaluate("oracle", "sokoban-easy", tasks=2, samples=2)
        >>> log.success, log.pass_rates(2).pass_hat, log[0].steps[0].action_valid
        (1.0, 1.0, True)

    Args:
        episodes: the episodes.
        paths: record files that hold them.
        model: name of the agent's model, for its price; None without one.

    Attributes:
        paths: record files that hold the episodes.
        model: name of the agent's model.
    """

    def __init__(
        self, episodes: Iterable[Episode], *, paths: Iterable[Path] = (), model: str | None = None
    ) -> None:
        self._episodes = tuple(episodes)
        self.paths = tuple(paths)
        self.model = model

    @classmethod
    def read(cls, *paths: str | os.PathLike[str]) -> EpisodeLog:
        """Read record files of ``evaluate(out=...)`` or ``eval --out``; the last of several records of an episode counts.

        Args:
            paths: record files, or folders of them as a suite writes.

        Raises:
            MissingData: a file does not exist.
            BadData: a file or its settings cannot be read.
            UnknownOption: no file was given, or a folder has none.
        """
        files = [file for path in paths for file in _files(Path(path))]
        if not files:
            raise UnknownOption("no record file to read: give files that eval --out wrote")
        episodes = [episode for file in files for episode in latest(read_episodes(file)).values()]
        models = {
            (_settings.get("agent_settings") or {}).get("model")
            for file in files
            if (_settings := settings_of(file))
        }
        return cls(episodes, paths=files, model=models.pop() if len(models) == 1 else None)

    @classmethod
    def joined(cls, logs: Sequence[EpisodeLog]) -> EpisodeLog:
        """Join logs of one agent, as of the environments of a suite."""
        episodes = [episode for log in logs for episode in log]
        return cls(
            episodes, paths=[p for log in logs for p in log.paths], model=logs[0].model if logs else None
        )

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> EpisodeLog: ...

    def __getitem__(self, index: int | slice) -> Episode | EpisodeLog:
        if isinstance(index, slice):
            return EpisodeLog(self._episodes[index], paths=self.paths, model=self.model)
        return self._episodes[index]

    def __len__(self) -> int:
        return len(self._episodes)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    def __repr__(self) -> str:
        envs = list(dict.fromkeys(episode.env for episode in self._episodes))
        where = envs[0] if len(envs) == 1 else counted(len(envs), "environment")
        said = f"{counted(len(self), 'episode')} of {where}"
        if self.success is not None:
            said += f", success {self.success:.1%}"
            if self.interval is not None:
                said += f" (95 % interval {self.interval[0]:.1%} to {self.interval[1]:.1%})"
        return f"EpisodeLog({said}{f', {len(self.errors)} errors' if self.errors else ''})"

    @property
    def errors(self) -> list[Episode]:
        """Episodes that ended in an error."""
        return [episode for episode in self._episodes if episode.ended == "error"]

    @property
    def summary(self) -> Summary:
        """Statistics over all episodes; those of several environments are pooled."""
        return summarise(self._episodes)

    @property
    def success(self) -> float | None:
        """Success rate in [0, 1]: the mean over environments; None without a result."""
        return _mean(summarise(log).success for log in self.by_environment().values())

    @property
    def score(self) -> float | None:
        """Mean reward in [0, 1]: the mean over environments; None without a result."""
        return _mean(summarise(log).score for log in self.by_environment().values())

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the success rate: over tasks if they were played several times, else Wilson's.

        None without a result, and for several environments.
        """
        if len(self.by_environment()) != 1:
            return None
        summary = self.summary
        return summary.clustered or summary.wilson

    def by_environment(self) -> dict[str, EpisodeLog]:
        """Split the log by environment id."""
        found: dict[str, list[Episode]] = {}
        for episode in self._episodes:
            found.setdefault(episode.env, []).append(episode)
        return {env: EpisodeLog(episodes, model=self.model) for env, episodes in found.items()}

    def pass_rates(self, k: int) -> PassRates:
        """Compute pass@k and pass^k from several episodes per task (see ``stats.pass_rates``).

        Raises:
            UnknownOption: no task has so many episodes with a result.
        """
        return pass_rates(results_by_task(self._episodes), k)

    def costs(self, prices: str | os.PathLike[str] | None = None) -> CostSummary:
        """Sum requests, tokens, times and cost.

        Args:
            prices: TOML file with prices; None for those of the package.
        """
        return summarise_costs(
            self._episodes, read_prices(None if prices is None else Path(prices)), self.model
        )

    def records(self) -> list[dict[str, Any]]:
        """List one flat record per episode: the rows of ``to_pandas``.

        Fields: ``env``, ``agent``, ``split``, ``task``, ``sample``, ``success`` and ``score`` (None after an error), ``steps``,
        ``invalid_steps``, ``ended``, ``failure``, ``error``, ``seconds`` of the agent, ``input_tokens``, ``output_tokens``, and the
        family's own figures (``em``, ``f1``, ``progress``, ``optimal_length``, ...).
        """
        return [_record(episode) for episode in self._episodes]

    def to_pandas(self) -> Any:
        """Make a ``pandas.DataFrame`` with one row per episode; its columns are the fields of ``records``.

        Raises:
            MissingExtra: pandas is not installed.
        """
        pandas = import_extra("pandas", "to_pandas()", "notebook")
        return pandas.DataFrame(self.records())

    def plot(self, axes: Any = None) -> Any:
        """Draw success rates with 95 % intervals: per environment, or per kind of task if there is one environment.

        Args:
            axes: ``matplotlib`` axes to draw on; None for new ones.

        Returns:
            The axes.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        plt = import_extra("matplotlib.pyplot", "plot()", "notebook")
        parts: dict[str, EpisodeLog] = self.by_environment()
        if len(parts) == 1:
            parts = self._by_kind() or parts
        bars = [
            (name, summary) for name, log in parts.items() if (summary := log.summary).success is not None
        ]
        if axes is None:
            _, axes = plt.subplots(figsize=(6, 1 + 0.35 * len(bars)), layout="constrained")
        rates = [100 * float(summary.success or 0) for _, summary in bars]
        ends = [summary.clustered or summary.wilson or (0.0, 0.0) for _, summary in bars]
        errors = [
            [max(0.0, rate - 100 * low) for rate, (low, _) in zip(rates, ends, strict=True)],
            [max(0.0, 100 * high - rate) for rate, (_, high) in zip(rates, ends, strict=True)],
        ]
        axes.barh([name for name, _ in bars], rates, xerr=errors, capsize=3)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("success, % (95 % interval)")
        return axes

    def _by_kind(self) -> dict[str, EpisodeLog]:
        """Split the log by kind of task; empty unless there are two kinds at least."""
        found: dict[str, list[Episode]] = {}
        for episode in self._episodes:
            if episode.kind:
                found.setdefault(episode.kind, []).append(episode)
        whole = sum(map(len, found.values())) == len(self)
        return {k: EpisodeLog(found[k]) for k in sorted(found)} if len(found) > 1 and whole else {}

    def report(self, out: str | os.PathLike[str]) -> Written:
        """Write the HTML page of results, as ``python -m tstar_envs report`` does.

        Args:
            out: file of the page.

        Raises:
            UnknownOption: the episodes are in no file (``evaluate(out=...)`` writes one).
        """
        from tstar_envs.evaluation.report import write_report

        if not self.paths:
            raise UnknownOption("a report is made of record files: give evaluate an out=FILE")
        return write_report(list(self.paths), Path(out), read_prices(None))


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _record(episode: Episode) -> dict[str, Any]:
    failed, usage = episode.ended == "error", total(episode.calls)
    return {
        "env": episode.env,
        "agent": episode.agent,
        "split": episode.split,
        "task": episode.task,
        "sample": episode.sample,
        "success": None if failed else episode.success,
        "score": None if failed else episode.reward,
        "steps": len(episode.steps),
        "invalid_steps": sum(not step.action_valid for step in episode.steps),
        "ended": episode.ended,
        "failure": failure_of(episode),
        "error": episode.error,
        "seconds": sum(step.seconds for step in episode.steps),
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        **{
            name: value
            for name, value in episode.extra.items()
            if isinstance(value, str | int | float) and name not in _FIELDS
        },
    }


# Fields of a record that an environment's own figures must not replace.
_FIELDS = frozenset(
    ("env", "agent", "split", "task", "sample", "success", "score", "steps", "ended", "failure", "error")
)
