"""Evaluation from Python: play tasks with an agent, record the episodes, return their log."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tstar_envs.agents.base import Agent, bind_agent
from tstar_envs.agents.load import ModelOptions, agent_of, more_agents, name_of, options_of
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError, UnknownOption, UnknownTask
from tstar_envs.evalset import SUITES, panel
from tstar_envs.evaluation.episode_log import EpisodeLog
from tstar_envs.evaluation.log import Key, ResultFile, sole_evaluation
from tstar_envs.evaluation.runner import Setting, Worker, play_missing
from tstar_envs.evaluation.stats import Figures, figures_of
from tstar_envs.evaluation.workers import StopRequest, require_handles
from tstar_envs.foreign import task_ids_of
from tstar_envs.record import Episode
from tstar_envs.record_files import Head
from tstar_envs.redaction import redacted_fields
from tstar_envs.registry import EnvEntry, find_entry

FORMAT = 1  # of the settings file
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of an evaluation of one agent on one environment; see ``evaluate``."""

    agent: Any
    env: str
    tasks: int | Sequence[str] | None = None
    samples: int = 1
    split: str = "test"
    panel: str | None = None
    seed: int = 0
    temperature: float | None = None
    concurrency: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    options_of: str | None = None
    model: ModelOptions = field(default_factory=ModelOptions)
    measure_progress: bool = False
    out: Path | None = None
    name: str | None = None

    @property
    def agent_name(self) -> str:
        """Name of the agent in the records."""
        return self.name or name_of(self.agent)

    def load_agent(self, entry: EnvEntry) -> Agent:
        """Load the agent for an environment; see ``tstar_envs.agents.load.agent_of``."""
        return agent_of(
            self.agent, env_id=entry.id, seed=self.seed, temperature=self.temperature, model=self.model
        )


@dataclass(frozen=True)
class Evaluation:
    """Prepared evaluation: environment, agent and episodes to play.

    Attributes:
        given: options of the evaluation.
        entry: registry entry of the environment.
        env: environment of the first worker.
        agent: agent of the first worker, bound to ``env``.
        options: options of the environment.
        wishes: options requested by the agent, or by the agent of ``options_of``.
        wanted: keys of the episodes to play.
        panel: name and hash of the evaluation set, "" if none.
        privileged: True if the agent got the environment itself.
    """

    given: EvaluationOptions
    entry: EnvEntry
    env: TextEnv[Any, Any]
    agent: Agent
    options: dict[str, Any]
    wishes: dict[str, Any]
    wanted: list[Key]
    panel: str
    privileged: bool

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all runs of one file share, without unset ones (for older files)."""
        given, entry = self.given, self.entry
        settings: dict[str, Any] = {
            "format": FORMAT,
            "env": entry.id,
            "rules_version": entry.rules_version,
            "tier": self.env.tier,
            "split": given.split,
            "agent": given.agent_name,
            "seed": given.seed,
            "options": self.options,
        }
        own = getattr(self.agent, "settings", None)
        more = {
            "temperature": given.temperature,
            "progress": given.measure_progress or None,
            "panel": self.panel or None,
            "agent_settings": None if own is None else redacted_fields(own),
        }
        return {**settings, **{name: value for name, value in more.items() if value is not None}}

    @property
    def panel_label(self) -> str:
        """Label of the evaluation set for a table, with the part played if not all; "" without one."""
        tasks = {task for task, _ in self.wanted}
        whole = (
            len(panel(self.given.panel)[self.entry.id].tasks) if self.given.panel is not None else len(tasks)
        )
        first = "the first " if isinstance(self.given.tasks, int) else ""
        return self.panel if len(tasks) == whole else f"{self.panel} ({first}{len(tasks)} of {whole} tasks)"

    def workers(self, missing: int) -> list[Worker]:
        """Make an environment and an agent for each concurrent episode.

        Args:
            missing: number of episodes to play; no more workers than that are made.

        Raises:
            UnknownOption: the agent or this machine does not support the concurrency.
        """
        given = self.given
        wanted = given.concurrency if given.concurrency is not None else getattr(self.agent, "concurrency", 1)
        count = max(1, min(wanted, missing))
        require_handles(count, self.agent)
        agents = more_agents(self.agent, count, given.agent, lambda: given.load_agent(self.entry))
        workers = [Worker(self.env, self.agent)]
        for agent in agents[1:]:
            env = self.entry.make(split=given.split, **self.options)
            bind_agent(agent, env)
            workers.append(Worker(env, agent))
        return workers


def prepare(given: EvaluationOptions) -> Evaluation:
    """Load the agent, make its environment, select the tasks.

    Raises:
        UnknownOption: incompatible options, or not an agent.
        UnknownTask: the split is empty, or has no such task.
        PanelMismatch: the evaluation set has other tasks than this environment.
    """
    entry = find_entry(given.env)
    if given.concurrency is not None and given.concurrency < 1:
        raise UnknownOption(f"concurrency must be 1 or more, got {given.concurrency}")
    if given.concurrency is not None and given.concurrency > 1 and given.agent == "human":
        raise UnknownOption(f"concurrency {given.concurrency}: a person plays one episode at a time")
    agent = given.load_agent(entry)
    wishes = (
        dict(getattr(agent, "env_options", {}))
        if given.options_of is None
        else options_of(given.options_of, env_id=entry.id, seed=given.seed)
    )
    options = {**wishes, **given.options}
    if given.panel is not None and "data" not in options and entry.has_public_data():
        options["data"] = (
            "mini"  # an evaluation set uses the shipped data, even if this machine has public data
        )
    for name, value in options.items():
        if given.out is not None and not isinstance(value, str | int | float | os.PathLike | None):
            own = "; module:Class names a retriever in a file" if name == "retriever" else ""
            raise UnknownOption(
                f"option {name!r} is an object ({type(value).__name__}), which a file of results cannot record: leave out=... away{own}"
            )
    env = entry.make(split=given.split, **options)
    tasks, shown_panel = _tasks(given, entry, env)
    wanted = [(task, sample) for task in tasks for sample in range(given.samples)]
    return Evaluation(given, entry, env, agent, options, wishes, wanted, shown_panel, bind_agent(agent, env))


def _tasks(given: EvaluationOptions, entry: EnvEntry, env: TextEnv[Any, Any]) -> tuple[list[str], str]:
    """Select the tasks to play, and the label of their evaluation set."""
    if given.samples < 1:
        raise UnknownOption(f"samples must be at least 1, got {given.samples}")
    ids, of, shown = task_ids_of(env, given.split), f"split {given.split!r}", ""
    if given.panel is not None:
        chosen = panel(given.panel)
        if given.split != "test":
            raise UnknownOption(
                f"panel {chosen.version} is made of test tasks: leave split {given.split} out"
            )
        chosen.check(env)
        part = chosen[entry.id]
        ids, of, shown = list(part.tasks), f"panel {chosen.version}", f"{chosen.version} {part.hash}"
    if not ids:
        raise UnknownTask(
            f"split {given.split!r} of {entry.name} has no tasks; choose another split or another data tier"
        )
    if given.tasks is not None and not isinstance(given.tasks, int):
        return _named_tasks(given.tasks, ids, of), shown
    count = len(ids) if given.tasks is None else given.tasks
    if not 1 <= count <= len(ids):
        raise UnknownOption(f"tasks must be from 1 to {len(ids)}, the size of {of}, got {count}")
    return ids[:count], shown


def _named_tasks(named: Sequence[str], ids: Sequence[str], of: str) -> list[str]:
    if isinstance(named, str):
        raise UnknownOption(f"tasks must be a number or a list of task ids, got the text {named!r:.60}")
    known, chosen = set(ids), list(dict.fromkeys(named))
    if missing := [task for task in chosen if task not in known]:
        raise UnknownTask(f"{of} has no task {missing[0]!r:.80}; the first of {len(ids)} is {ids[0]!r:.80}")
    if not chosen:
        raise UnknownOption("tasks must name at least one task, got an empty list")
    return chosen


class EvaluationRun:
    """State of a running evaluation: its record file and finished episodes.

    Args:
        evaluation: what is played.
        keep: keep the played episodes in memory; without a record file they are kept in any case.

    Attributes:
        evaluation: what is played.
        path: record file, None without one.
    """

    def __init__(self, evaluation: Evaluation, *, keep: bool = True) -> None:
        self.evaluation = evaluation
        self.path = evaluation.given.out
        self._results = ResultFile(self.path, evaluation.settings) if self.path is not None else None
        self._keep = keep or self._results is None
        # Of the episodes that the file held before, their heads are enough to resume; the others are read when they are asked for.
        self._done: dict[Key, Head | Episode] = {}
        self._whole = True  # no episode is missing in memory
        self._figures: list[Figures] | None = None
        self._read()

    def _read(self) -> None:
        self._figures = None
        if self._results is not None:
            self._done = dict(self._results.heads())
            self._whole = not self._done

    @property
    def episodes(self) -> list[Episode]:
        """Finished episodes among the wanted ones, in order; reads the record file if they are not all in memory."""
        done: Mapping[Key, Any] = self._done
        if self._results is not None and not self._whole:
            done = self._results.episodes()
        return [done[key] for key in self.evaluation.wanted if key in done]

    @property
    def figures(self) -> list[Figures]:
        """Figures of the finished episodes, in order; reads the record file, an episode at a time, if they are not all in memory."""
        if self._figures is None:
            if self._results is None or self._whole:
                return figures_of(self.episodes)
            done = self._results.figures()
            self._figures = [done[key] for key in self.evaluation.wanted if key in done]
        return self._figures

    @property
    def finished(self) -> list[Head | Episode]:
        """Episodes among the wanted ones that have a result, in order; of those recorded before the heads."""
        done = (self._done[key] for key in self.evaluation.wanted if key in self._done)
        return [one for one in done if one.ended != "error"]

    @property
    def total(self) -> int:
        """Number of episodes of the whole evaluation."""
        return len(self.evaluation.wanted)

    @property
    def log(self) -> EpisodeLog:
        """Log of the finished episodes."""
        paths = [self.path] if self.path is not None else []
        return EpisodeLog(self.episodes, paths=paths, model=self.evaluation.given.model.model)

    def play(self, stop: StopRequest | None = None) -> Generator[Episode, None, None]:
        """Play the episodes that are missing or ended in an error; record and yield each as it ends.

        Raises:
            BrokenRun: several episodes in a row ended in an error.
            WriteFailed: an episode could not be recorded.
        """
        evaluation, given = self.evaluation, self.evaluation.given
        workers = evaluation.workers(self.total - len(self.finished))
        setting = Setting(
            evaluation.entry, given.agent_name, given.seed, given.measure_progress, evaluation.panel
        )
        record = None if self._results is None else self._write
        self._whole = self._whole and self._keep
        self._figures = None
        try:
            with closing(
                play_missing(workers, setting, evaluation.wanted, self._done, stop, record)
            ) as playing:
                for episode in playing:
                    self._figures = None
                    self._done[episode.task, episode.sample] = episode if self._keep else Head.of(0, episode)
                    yield episode
        except (KeyboardInterrupt, TStarError):
            self._read()  # the signal may have arrived between writing a record and counting it
            raise

    def _write(self, episodes: list[Episode]) -> None:
        if self._results is not None:
            self._results.append(*episodes)


Callback = Callable[[EvaluationRun, Episode | None], None]


def evaluate(
    agent: Any,
    env: str,
    *,
    tasks: int | Sequence[str] | None = None,
    samples: int = 1,
    split: str = "test",
    panel: str | None = None,
    seed: int = 0,
    temperature: float | None = None,
    concurrency: int | None = None,
    options: Mapping[str, Any] | None = None,
    options_of: str | None = None,
    model: str | ModelOptions | None = None,
    measure_progress: bool = False,
    out: str | os.PathLike[str] | None = None,
    name: str | None = None,
    callback: Callback | None = None,
) -> EpisodeLog:
    """Evaluate an agent on an environment or a suite, as ``python -m tstar_envs eval`` does.

    It works where an event loop runs already, as in a notebook: the episodes are then played in a thread.

    Example:
        >>> import tstar_envs
        >>> log = tstar_envs.evaluate("random", "blocksworld-stack", tasks=3)
        >>> len(log), log.success is not None
        (3, True)

    Args:
        agent: an agent (``act(observation, info) -> str``), a class or factory of one, a function ``(observation, info) -> str``, or a
            name as on the command line (``random``, ``oracle``, ``tiny:PATH``, ``chat``, ``module:object``).
        env: environment id or short name, or a suite (``paper``), whose environments play the tasks of ``panel``.
        tasks: number of tasks from the start of the split or panel, or task ids; None for all.
        samples: number of episodes per task.
        split: split of the tasks.
        panel: name of an evaluation set whose tasks to play (``v1``, the default of a suite).
        seed: seed of the agent's sampling.
        temperature: sampling temperature, 0 is greedy; None is the agent's own.
        concurrency: number of concurrent episodes; None is the agent's own.
        options: options of the environment, which take precedence over the agent's.
        options_of: use the environment options of this agent, named as on the command line.
        model: name of the model of an agent that uses an endpoint, or its options.
        measure_progress: also measure the progress of each episode, the fraction of the expert's path that was completed.
        out: JSON Lines file for the episodes, a folder for a suite. The same call resumes it.
        name: name of the agent in the records; None takes that of its class or function.
        callback: called with the run and None before the first episode of an environment, then with each finished episode.

    Returns:
        The episodes, those that ``out`` held already included.

    Raises:
        UnknownOption: an argument is out of its range, or not an agent.
        PanelMismatch: the evaluation set has other tasks than this environment.
        InUse: another process writes ``out``.
        BrokenRun: several episodes in a row ended in an error.
    """
    given = EvaluationOptions(
        agent=agent,
        env=env,
        tasks=tasks,
        samples=samples,
        split=split,
        panel=panel,
        seed=seed,
        temperature=temperature,
        concurrency=concurrency,
        options=dict(options or {}),
        options_of=options_of,
        model=ModelOptions(model) if isinstance(model, str) else model or ModelOptions(),
        measure_progress=measure_progress,
        out=None if out is None else Path(out),
        name=name,
    )
    every = of_suite(given) if env in SUITES else [given]
    return EpisodeLog.joined([run.log for run in play_evaluations(every, callback)])


def play_evaluations(
    every: Sequence[EvaluationOptions], callback: Callback | None = None, *, keep: bool = True
) -> list[EvaluationRun]:
    """Play evaluations one after the other; see ``evaluate``.

    Args:
        every: evaluations.
        callback: see ``evaluate``.
        keep: see ``EvaluationRun``.
    """

    def run(stop: StopRequest) -> list[EvaluationRun]:
        return [_evaluate(one, callback, stop, keep) for one in every]

    return _outside_running_loop(run)


def of_suite(given: EvaluationOptions) -> list[EvaluationOptions]:
    """List the evaluations of a suite, one per environment; ``out`` becomes a file in the folder.

    Raises:
        UnknownOption: unknown suite, ``out`` is a file, or tasks are given by their ids.
    """
    out = given.out
    if out is not None and out.is_file():
        raise UnknownOption(
            f"{out} is a file; for a suite it names a folder, which gets one file for each environment"
        )
    if given.tasks is not None and not isinstance(given.tasks, int):
        raise UnknownOption("tasks of a suite are given by their number: its environments share no ids")
    chosen = panel(given.panel or "v1")
    return [
        replace(
            given,
            env=env_id,
            panel=chosen.version,
            out=None if out is None else out / f"{find_entry(env_id).name}.jsonl",
        )
        for env_id in chosen.suite(given.env)
    ]


def _evaluate(
    given: EvaluationOptions, callback: Callback | None, stop: StopRequest, keep: bool
) -> EvaluationRun:
    """Evaluate an agent on one environment."""
    with sole_evaluation(given.out):
        run = EvaluationRun(prepare(given), keep=keep)
        if callback is not None:
            callback(run, None)
        with closing(run.play(stop)) as playing:  # agents are closed at once if the callback raises
            for episode in playing:
                if callback is not None:
                    callback(run, episode)
        return run


def _outside_running_loop(function: Callable[[StopRequest], Result]) -> Result:
    """Call a function; in a thread of its own if an event loop runs in this one."""
    stop = StopRequest()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(stop)
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(stop))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        stop.ask()
        thread.join()
        raise
    if errors:
        raise errors[0]
    return results[0]
