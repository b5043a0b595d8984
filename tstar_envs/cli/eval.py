"""``eval``: play tasks with an agent, record the episodes, and print the results."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from tstar_envs.agents import Agent, ModelOptions, load_agent, more_agents, options_of
from tstar_envs.agents.base import bind_agent
from tstar_envs.agents.endpoint import Endpoint
from tstar_envs.agents.llm import ChatAgent, ChatOptions
from tstar_envs.cli.console import Live, Row, estimate_table, figures_table, make_env, say, suite_table
from tstar_envs.core import TextEnv
from tstar_envs.errors import TStarError, UnknownOption, UnknownTask
from tstar_envs.evalset import panel
from tstar_envs.evaluation.cost import (
    CostSummary,
    Estimate,
    PriceTable,
    add_costs,
    estimate,
    read_prices,
    summarise_costs,
    usage_notes,
)
from tstar_envs.evaluation.log import Key, ResultFile, latest, sole_evaluation
from tstar_envs.evaluation.runner import Setting, Worker, play_missing
from tstar_envs.evaluation.stats import Summary, summarise
from tstar_envs.evaluation.workers import require_handles
from tstar_envs.foreign import task_ids_of
from tstar_envs.record import Episode
from tstar_envs.redaction import redacted_fields
from tstar_envs.registry import EnvEntry, find_entry, parse_options
from tstar_envs.utils import counted

_KEY_VALUE = tyro.conf.arg(metavar="KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class EvalCommand:
    """Evaluate an agent: success rate with a 95 % interval, failures by cause, and cost.

    With --out every episode is appended to a file as it ends. The same command again resumes: finished episodes in the file are
    kept, those that ended in an error are played again. More --tasks or --samples extend a file; other settings are refused.
    """

    env: str | None = None
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    agent: str
    """Agent to evaluate: random, oracle, oracle:KIND, human, tiny (the built-in policy), tiny:PATH (a trained policy), module:object (an
    agent, class, factory or function), 'command:PROGRAM ARGUMENTS' (a program that speaks JSON Lines); with --model: chat, direct, react,
    reflexion or search-o1."""
    split: str = "test"
    """Split that the tasks come from: train, valid or test (some environments have only test)."""
    suite: str | None = None
    """Instead of --env: play all environments of this suite on the evaluation set of --panel; paper: those of the T-STAR paper's tables.
    --out is then a folder."""
    panel: str | None = None
    """Play the fixed test tasks of this evaluation set (v1), so that results are comparable with published ones."""
    tasks: int | None = None
    """Play only the first N tasks of the split or evaluation set; default: all."""
    samples: int = 1
    """Number of episodes per task."""
    seed: int = 0
    """Seed of the agent's sampling."""
    temperature: float | None = None
    """Sampling temperature of the agent, 0 is greedy; default: the agent's own (tiny: 1, a model behind an endpoint: 0)."""
    model: str | None = None
    """Name of the model at the endpoint, for agents that use one."""
    base_url: str | None = None
    """Base URL of the OpenAI-compatible endpoint, for example http://localhost:8000/v1; default: the environment variable OPENAI_BASE_URL,
    or OpenAI's address. The API key is read from OPENAI_API_KEY."""
    concurrency: int | None = None
    """Number of concurrent episodes; default: 8 for agents that use an endpoint, else 1."""
    max_tokens: int = ChatOptions.max_tokens
    """Maximum length of a model's answer in tokens."""
    context_tokens: int = ChatOptions.context_tokens
    """Maximum length of a request in tokens. The oldest turns are dropped first; the rules, the task and the last turn are always kept."""
    tools: bool = False
    """With --agent chat: let the model act by tool calls (search, click, move, ...) instead of writing actions as text."""
    timeout: float = Endpoint.timeout
    """Timeout in seconds for an answer of a model or program."""
    retries: int = Endpoint.retries
    """Maximum number of retries of a request after status 429 or 5xx, a broken connection, a timeout or an unreadable answer."""
    request: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Additional field of every request, its value as JSON, for example reasoning_effort=low; null leaves a field out, as in
    temperature=null; may be repeated."""
    prices: Path | None = None
    """TOML file with prices per million tokens, in the form of tstar_envs/evaluation/prices.toml, which is the default."""
    dry_run: bool = False
    """Only estimate the requests, tokens and cost of the evaluation; nothing is sent."""
    progress: bool = False
    """Also measure the progress of each episode: the fraction of the expert's path to the goal completed at its end; 0 if the goal is no
    longer reachable."""
    out: Path | None = None
    """JSON Lines file to append the episodes to; FILE.config.json beside it holds the settings. With --suite: a folder, with one file per
    environment."""
    options_of: str | None = None
    """Use the default environment options of this agent, for example tiny: agents are comparable only under equal options."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Option of the environment, for example topk=1 or retriever=http://127.0.0.1:8000; may be repeated."""


FORMAT = 1  # of the settings file


@dataclass(frozen=True)
class Evaluation:
    """Prepared evaluation: environment, agent and episodes to play.

    Attributes:
        command: parsed command line.
        entry: registry entry of the environment.
        env: environment of the first worker.
        agent: agent of the first worker, bound to ``env``.
        options: options of the environment.
        wishes: options requested by the agent, or by the agent of --options-of.
        own: options given by the user.
        wanted: keys of the episodes to play.
        panel: name and hash of the evaluation set, "" if none.
        privileged: True if the agent got the environment itself.
    """

    command: EvalCommand
    entry: EnvEntry
    env: TextEnv[Any, Any]
    agent: Agent
    options: dict[str, Any]
    wishes: dict[str, Any]
    own: dict[str, Any]
    wanted: list[Key]
    panel: str
    privileged: bool

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all runs of one file share, without unset ones (for older files)."""
        command, entry = self.command, self.entry
        settings: dict[str, Any] = {
            "format": FORMAT,
            "env": entry.id,
            "rules_version": entry.rules_version,
            "tier": self.env.tier,
            "split": command.split,
            "agent": command.agent,
            "seed": command.seed,
            "options": self.options,
        }
        own = getattr(self.agent, "settings", None)
        more = {
            "temperature": command.temperature,
            "progress": command.progress or None,
            "panel": self.panel or None,
            "agent_settings": None if own is None else redacted_fields(own),
        }
        return {**settings, **{name: value for name, value in more.items() if value is not None}}

    @property
    def panel_label(self) -> str:
        """Label of the evaluation set for a table, with the part played if not all; "" without one."""
        tasks = {task for task, _ in self.wanted}
        whole = (
            len(panel(self.command.panel)[self.entry.id].tasks)
            if self.command.panel is not None
            else len(tasks)
        )
        return (
            self.panel if len(tasks) == whole else f"{self.panel} (the first {len(tasks)} of {whole} tasks)"
        )

    @property
    def setting(self) -> Setting:
        """Settings for the runner."""
        return Setting(self.entry, self.command.agent, self.command.seed, self.command.progress, self.panel)

    def workers(self, missing: int) -> list[Worker]:
        """Make an environment and an agent for each concurrent episode.

        Args:
            missing: number of episodes to play; no more workers than that are made.

        Raises:
            UnknownOption: the agent or this machine does not support the concurrency.
        """
        command = self.command
        wanted = (
            command.concurrency if command.concurrency is not None else getattr(self.agent, "concurrency", 1)
        )
        count = max(1, min(wanted, missing))
        require_handles(count, self.agent)
        agents = more_agents(self.agent, count, command.agent, lambda: _load(command, self.entry))
        workers = [Worker(self.env, self.agent)]
        for agent in agents[1:]:
            env = make_env(self.entry, {"split": command.split, **self.options})
            bind_agent(agent, env)
            workers.append(Worker(env, agent))
        return workers


def prepare(command: EvalCommand, entry: EnvEntry) -> Evaluation:
    """Load the agent, make its environment, select the tasks.

    Raises:
        UnknownOption: incompatible options, or not an agent.
        UnknownTask: the split is empty.
        PanelMismatch: the evaluation set has other tasks than this environment.
    """
    if command.concurrency is not None and command.concurrency < 1:
        raise UnknownOption(f"--concurrency must be 1 or more, got {command.concurrency}")
    if command.concurrency is not None and command.concurrency > 1 and command.agent == "human":
        raise UnknownOption(f"--concurrency {command.concurrency}: a person plays one episode at a time")
    agent = _load(command, entry)
    wishes, own = _wishes(command, entry, agent), _own_options(command, entry)
    options = {**wishes, **own}
    if command.panel is not None and "data" not in options and entry.has_public_data():
        options["data"] = (
            "mini"  # an evaluation set uses the shipped data, even if this machine has public data
        )
    env = make_env(entry, {"split": command.split, **options})
    tasks, shown_panel = _tasks(command, entry, env)
    wanted = [(task, sample) for task in tasks for sample in range(command.samples)]
    return Evaluation(
        command, entry, env, agent, options, wishes, own, wanted, shown_panel, bind_agent(agent, env)
    )


def _load(command: EvalCommand, entry: EnvEntry) -> Agent:
    model = ModelOptions(
        command.model,
        command.base_url,
        command.max_tokens,
        command.context_tokens,
        command.tools,
        command.timeout,
        command.retries,
        _request_fields(command.request),
    )
    return load_agent(
        command.agent, env_id=entry.id, seed=command.seed, temperature=command.temperature, model=model
    )


def _request_fields(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs into request fields; a value is JSON if it parses, else text."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UnknownOption(
                f"--request takes KEY=VALUE, got {pair!r}: for example --request reasoning_effort=low"
            )
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def _wishes(command: EvalCommand, entry: EnvEntry, agent: Agent) -> dict[str, Any]:
    """Get the environment options requested by the agent, or by the agent that --options-of names."""
    if command.options_of is not None:
        return options_of(command.options_of, env_id=entry.id, seed=command.seed)
    return dict(getattr(agent, "env_options", {}))


def _own_options(command: EvalCommand, entry: EnvEntry) -> dict[str, Any]:
    """Get the user's options, which take precedence over the agent's."""
    return parse_options(entry, command.option, {"split": "--split"})


def _tasks(command: EvalCommand, entry: EnvEntry, env: TextEnv[Any, Any]) -> tuple[list[str], str]:
    """Select the tasks to play, and the label of their evaluation set."""
    if command.samples < 1:
        raise UnknownOption(f"--samples must be at least 1, got {command.samples}")
    ids, of, shown = task_ids_of(env, command.split), f"split {command.split!r}", ""
    if command.panel is not None:
        chosen = panel(command.panel)
        if command.split != "test":
            raise UnknownOption(
                f"panel {chosen.version} is made of test tasks: leave --split {command.split} out"
            )
        chosen.check(env)
        part = chosen[entry.id]
        ids, of, shown = list(part.tasks), f"panel {chosen.version}", f"{chosen.version} {part.hash}"
    if not ids:
        raise UnknownTask(
            f"split {command.split!r} of {entry.name} has no tasks; choose another split or another data tier"
        )
    count = len(ids) if command.tasks is None else command.tasks
    if not 1 <= count <= len(ids):
        raise UnknownOption(f"--tasks must be from 1 to {len(ids)}, the size of {of}, got {count}")
    return ids[:count], shown


@dataclass
class EvaluationRun:
    """State of a running evaluation: its record file and finished episodes."""

    evaluation: Evaluation
    results: ResultFile | None
    done: dict[Key, Episode]

    @property
    def episodes(self) -> list[Episode]:
        """Finished episodes among the wanted ones, in order."""
        return [self.done[key] for key in self.evaluation.wanted if key in self.done]


def run(command: EvalCommand, console: Console) -> int:
    """Play the missing episodes and print the results.

    Returns:
        0, or 1 if episodes ended in an error (they are excluded from all results).
    """
    prices = read_prices(command.prices)
    if command.suite is not None:
        return _run_suite(command, console, prices)
    if command.env is None:
        raise UnknownOption(
            "say what to play: --env ID (python -m tstar_envs list shows them), or --suite paper"
        )
    entry = find_entry(command.env)
    if command.dry_run:
        evaluation = prepare(command, entry)
        found = _dry_run(evaluation, console)
        if found is not None:
            console.print(estimate_table({entry.id: found}, prices.of_model(str(command.model)), prices))
        return 0
    with sole_evaluation(command.out):
        evaluation = prepare(command, entry)
        evaluated = _open(evaluation)
        try:
            _play(evaluated, console, prices)
        finally:  # after Ctrl-C or a broken service too: print the results so far
            summary, costs = _figures(evaluated, prices)
            console.print(figures_table(summary, len(evaluation.wanted), costs, evaluation.panel_label))
            _note(costs, command, console)
            if evaluated.results is not None:
                say(console, f"episodes in {evaluated.results.path}", "dim")
        _show_errors(evaluated, console)
    return 1 if summary.errors else 0


def _run_suite(command: EvalCommand, console: Console, prices: PriceTable) -> int:
    if command.env is not None:
        raise UnknownOption(
            f"--suite {command.suite} names its environments: leave --env {command.env} out, or the suite"
        )
    if command.out is not None and command.out.is_file():
        raise UnknownOption(
            f"--out {command.out} is a file; with --suite it names a folder, which gets one file for each environment"
        )
    chosen = panel(command.panel or "v1")
    commands = []
    for env_id in chosen.suite(str(command.suite)):
        out = command.out / f"{find_entry(env_id).name}.jsonl" if command.out is not None else None
        commands.append(replace(command, env=env_id, panel=chosen.version, out=out))
    if command.dry_run:
        found = {
            str(one.env): estimated
            for one in commands
            if (estimated := _dry_run(prepare(one, find_entry(str(one.env))), console))
        }
        if found:
            console.print(estimate_table(found, prices.of_model(str(command.model)), prices))
        return 0
    rows: list[Row] = []
    try:
        for one in commands:
            with sole_evaluation(one.out):
                evaluated = _open(prepare(one, find_entry(str(one.env))))
                try:
                    _play(evaluated, console, prices)
                finally:
                    rows.append(
                        Row(
                            evaluated.evaluation.entry.id,
                            len(evaluated.evaluation.wanted),
                            *_figures(evaluated, prices),
                        )
                    )
                _show_errors(evaluated, console)
    finally:
        part = "" if command.tasks is None else f", the first {counted(command.tasks, 'task')} of each"
        console.print(suite_table(rows, f"suite {command.suite}, panel {chosen.version} {chosen.hash}{part}"))
        if rows:
            _note(add_costs([row.costs for row in rows]), command, console)
        if command.out is not None:
            say(console, f"episodes in {command.out}", "dim")
    return 1 if any(row.summary.errors for row in rows) else 0


def _open(evaluation: Evaluation) -> EvaluationRun:
    out = evaluation.command.out
    results = ResultFile(out, evaluation.settings) if out is not None else None
    return EvaluationRun(evaluation, results, results.episodes() if results is not None else {})


def _play(evaluated: EvaluationRun, console: Console, prices: PriceTable) -> None:
    evaluation, results, done = evaluated.evaluation, evaluated.results, evaluated.done
    _introduce(evaluation, console)
    finished = [episode for episode in evaluated.episodes if episode.ended != "error"]
    if finished and results is not None:
        say(
            console,
            f"resuming: {len(finished)} of {len(evaluation.wanted)} episodes are in {results.path} already",
        )
    workers = evaluation.workers(len(evaluation.wanted) - len(finished))
    model = evaluation.command.model
    price = prices.of_model(model) if model is not None else None
    try:
        playing = play_missing(workers, evaluation.setting, evaluation.wanted, done)
        with Live(len(evaluation.wanted), finished, price, prices.currency) as live, closing(playing):
            for episode in playing:
                if results is not None:
                    results.append(episode)
                done.update(latest([episode]))
                live.add(episode)
    except (KeyboardInterrupt, TStarError) as stopped:
        again = (
            "run the same command again to resume"
            if results is not None
            else "with --out it could be resumed"
        )
        what = "interrupted" if isinstance(stopped, KeyboardInterrupt) else "stopped"
        say(console, f"{what}: {again}", "yellow")
        if results is not None:
            # The signal may have arrived between writing a record and counting it.
            evaluated.done = results.episodes()
        raise


def _introduce(evaluation: Evaluation, console: Console) -> None:
    command, entry = evaluation.command, evaluation.entry
    shown = ", ".join(f"{k}={v}" for k, v in evaluation.options.items()) or "defaults"
    agent = (
        command.agent
        if command.temperature is None
        else f"{command.agent} (temperature {command.temperature:g})"
    )
    model = f", model {command.model}" if command.model is not None else ""
    tasks = f"tasks of panel {evaluation.panel_label}" if evaluation.panel else f"split {command.split}"
    say(
        console,
        f"{entry.id} ({evaluation.env.tier}, rules {entry.rules_version}), {tasks}, agent {agent}{model}, options: {shown}",
    )
    # Report that the agent's options make the environment different from the default.
    asked = {name: value for name, value in evaluation.wishes.items() if name not in evaluation.own}
    if asked and command.options_of is None:
        shown = ", ".join(f"{name}={value}" for name, value in asked.items())
        say(
            console,
            f"agent {command.agent} requests its own options ({shown}): compare it only with agents under the same options, "
            f"with --options-of {command.agent}",
            "yellow",
        )
    if evaluation.privileged and command.agent.partition(":")[0] != "oracle":
        say(
            console,
            "this agent is privileged: it is given the environment itself, its expert included",
            "yellow",
        )


def _figures(evaluated: EvaluationRun, prices: PriceTable) -> tuple[Summary, CostSummary]:
    return summarise(evaluated.episodes), summarise_costs(
        evaluated.episodes, prices, evaluated.evaluation.command.model
    )


def _note(costs: CostSummary, command: EvalCommand, console: Console) -> None:
    for note in usage_notes(costs.usage, command.max_tokens):
        say(console, note, "yellow")


def _show_errors(evaluated: EvaluationRun, console: Console) -> None:
    errors = [episode for episode in evaluated.episodes if episode.ended == "error"]
    if not errors:
        return
    again = (
        "run the same command again to repeat them"
        if evaluated.results is not None
        else "with --out only these could be repeated"
    )
    episodes = (
        "1 episode ended in an error and is"
        if len(errors) == 1
        else f"{len(errors)} episodes ended in an error and are"
    )
    say(console, f"{episodes} excluded from all results: {again}", "red")
    say(console, f"the last one, on {errors[-1].task}: {errors[-1].error}", "red")


def _dry_run(evaluation: Evaluation, console: Console) -> Estimate | None:
    """Print what would be played and return the estimate; None for an agent that sends no requests."""
    agent, count = evaluation.agent, len(evaluation.wanted)
    if not isinstance(agent, ChatAgent):
        name, turns = evaluation.command.agent, evaluation.env.horizon
        say(
            console,
            f"{evaluation.entry.id}: {counted(count, 'episode')} of {counted(turns, 'turn')} at most; agent {name} sends no requests",
        )
        return None
    say(
        console,
        f"{evaluation.entry.id}: {counted(count, 'episode')} of {agent.method} with model {agent.endpoint.model}; nothing is sent",
    )
    return estimate(evaluation.env, evaluation.entry, agent, evaluation.wanted)
