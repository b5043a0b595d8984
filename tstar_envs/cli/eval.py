"""``eval``: play tasks with an agent, record the episodes, and print the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from tstar_envs.agents import ModelOptions
from tstar_envs.agents.endpoint import Endpoint
from tstar_envs.agents.llm import ChatAgent, ChatOptions
from tstar_envs.cli.console import Live, Row, estimate_table, figures_table, say, suite_table
from tstar_envs.errors import TStarError, UnknownOption
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
from tstar_envs.evaluation.evaluate import (
    Evaluation,
    EvaluationOptions,
    EvaluationRun,
    of_suite,
    play_evaluations,
    prepare,
)
from tstar_envs.evaluation.stats import Summary, summarise
from tstar_envs.record import Episode
from tstar_envs.registry import find_entry, parse_options
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
    """Number of episodes per task; from 2 on the results have pass@k and pass^k."""
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
    fail_under: float | None = None
    """End with status 1 if the success rate is below this fraction, for example 0.6, or any episode ended in an error. A suite is judged by
    the mean over its environments."""
    options_of: str | None = None
    """Use the default environment options of this agent, for example tiny: agents are comparable only under equal options."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Option of the environment, for example topk=1 or retriever=http://127.0.0.1:8000; may be repeated."""

    def given(self, env: str) -> EvaluationOptions:
        """Collect the options of the evaluation on one environment.

        Raises:
            UnknownOption: an option of the environment or a request field cannot be read.
        """
        entry = find_entry(env)
        return EvaluationOptions(
            agent=self.agent,
            env=entry.id,
            tasks=self.tasks,
            samples=self.samples,
            split=self.split,
            panel=self.panel,
            seed=self.seed,
            temperature=self.temperature,
            concurrency=self.concurrency,
            options=parse_options(entry, self.option, {"split": "--split"}),
            options_of=self.options_of,
            model=ModelOptions(
                self.model,
                self.base_url,
                self.max_tokens,
                self.context_tokens,
                self.tools,
                self.timeout,
                self.retries,
                _request_fields(self.request),
            ),
            measure_progress=self.progress,
            out=self.out,
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


def run(command: EvalCommand, console: Console) -> int:
    """Play the missing episodes and print the results.

    Returns:
        0, or 1 if episodes ended in an error (they are excluded from all results) or the success rate is below ``fail_under``.
    """
    prices = read_prices(command.prices)
    if command.fail_under is not None and not 0 <= command.fail_under <= 1:
        raise UnknownOption(
            f"--fail-under is a fraction from 0 to 1, such as 0.6, got {command.fail_under:g}"
        )
    if command.suite is not None:
        return _run_suite(command, console, prices)
    if command.env is None:
        raise UnknownOption(
            "say what to play: --env ID (python -m tstar_envs list shows them), or --suite paper"
        )
    given = command.given(command.env)
    if command.dry_run:
        evaluation = prepare(given)
        found = _dry_run(evaluation, console)
        if found is not None:
            console.print(
                estimate_table({evaluation.entry.id: found}, prices.of_model(str(command.model)), prices)
            )
        return 0
    shown = _Shown(console, prices)
    try:
        with shown.playing(given):
            _evaluate(given, shown)
    finally:  # after Ctrl-C or a broken service too: print the results so far
        for run in shown.runs:
            summary, costs = _figures(run, prices)
            console.print(figures_table(summary, run.total, costs, run.evaluation.panel_label))
            _note(costs, command, console)
            if run.path is not None:
                say(console, f"episodes in {run.path}", "dim")
    _show_errors(shown.runs[-1], console)
    return _status([summary], command, console)


def _status(summaries: list[Summary], command: EvalCommand, console: Console) -> int:
    """Compute the exit status, and say why it is 1 for a low success rate."""
    failed = any(summary.errors for summary in summaries)
    if command.fail_under is not None:
        rates = [summary.success for summary in summaries if summary.success is not None]
        success = sum(rates) / len(rates) if rates else 0.0
        if success < command.fail_under:
            say(console, f"success {success:.1%} is below --fail-under {command.fail_under:g}", "red")
            failed = True
    return int(failed)


def _run_suite(command: EvalCommand, console: Console, prices: PriceTable) -> int:
    if command.env is not None:
        raise UnknownOption(
            f"--suite {command.suite} names its environments: leave --env {command.env} out, or the suite"
        )
    chosen = panel(command.panel or "v1")
    every = [
        replace(command.given(given.env), panel=given.panel, out=given.out)
        for given in of_suite(
            EvaluationOptions(
                agent=command.agent, env=str(command.suite), panel=command.panel, out=command.out
            )
        )
    ]
    if command.dry_run:
        found = {given.env: estimated for given in every if (estimated := _dry_run(prepare(given), console))}
        if found:
            console.print(estimate_table(found, prices.of_model(str(command.model)), prices))
        return 0
    shown = _Shown(console, prices)
    rows: list[Row] = []
    try:
        for given in every:
            with shown.playing(given):
                _evaluate(given, shown)
            _show_errors(shown.runs[-1], console)
    finally:
        rows = [Row(run.evaluation.entry.id, run.total, *_figures(run, prices)) for run in shown.runs]
        part = "" if command.tasks is None else f", the first {counted(command.tasks, 'task')} of each"
        console.print(suite_table(rows, f"suite {command.suite}, panel {chosen.version} {chosen.hash}{part}"))
        if rows:
            _note(add_costs([row.costs for row in rows]), command, console)
        if command.out is not None:
            say(console, f"episodes in {command.out}", "dim")
    return _status([row.summary for row in rows], command, console)


def _evaluate(given: EvaluationOptions, shown: _Shown) -> None:
    play_evaluations([given], shown, keep=False)


class _Shown:
    """Display of running evaluations; the callback of ``evaluate``.

    Attributes:
        runs: evaluations that began.
    """

    def __init__(self, console: Console, prices: PriceTable) -> None:
        self.runs: list[EvaluationRun] = []
        self._console, self._prices = console, prices
        self._live: Live | None = None

    def __call__(self, run: EvaluationRun, episode: Episode | None) -> None:
        """Show the start of a run, or a finished episode."""
        if episode is not None:
            if self._live is not None:
                self._live.add(episode)
            return
        self.runs.append(run)
        _introduce(run.evaluation, self._console)
        finished = run.finished
        if finished and run.path is not None:
            say(
                self._console,
                f"resuming: {len(finished)} of {run.total} episodes are in {run.path} already",
            )
        model = run.evaluation.given.model.model
        price = self._prices.of_model(model) if model is not None else None
        self._live = Live(run.total, finished, price, self._prices.currency)
        self._live.__enter__()

    @contextmanager
    def playing(self, given: EvaluationOptions) -> Iterator[None]:
        """Show what happens in the block, and say how to resume if it is interrupted."""
        before = len(self.runs)
        try:
            yield
        except (KeyboardInterrupt, TStarError) as stopped:
            self._end()
            if len(self.runs) > before:  # it had begun
                again = (
                    "run the same command again to resume"
                    if given.out is not None
                    else "with --out it could be resumed"
                )
                what = "interrupted" if isinstance(stopped, KeyboardInterrupt) else "stopped"
                say(self._console, f"{what}: {again}", "yellow")
            raise
        finally:
            self._end()

    def _end(self) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None


def _introduce(evaluation: Evaluation, console: Console) -> None:
    command, entry = evaluation.given, evaluation.entry
    shown = ", ".join(f"{k}={v}" for k, v in evaluation.options.items()) or "defaults"
    agent = (
        command.agent
        if command.temperature is None
        else f"{command.agent} (temperature {command.temperature:g})"
    )
    model = f", model {command.model.model}" if command.model.model is not None else ""
    tasks = f"tasks of panel {evaluation.panel_label}" if evaluation.panel else f"split {command.split}"
    say(
        console,
        f"{entry.id} ({evaluation.env.tier}, rules {entry.rules_version}), {tasks}, agent {agent}{model}, options: {shown}",
    )
    # Report that the agent's options make the environment different from the default.
    asked = {name: value for name, value in evaluation.wishes.items() if name not in command.options}
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


def _figures(run: EvaluationRun, prices: PriceTable) -> tuple[Summary, CostSummary]:
    figures = run.figures
    return summarise(figures), summarise_costs(figures, prices, run.evaluation.given.model.model)


def _note(costs: CostSummary, command: EvalCommand, console: Console) -> None:
    for note in usage_notes(costs.usage, command.max_tokens):
        say(console, note, "yellow")


def _show_errors(run: EvaluationRun, console: Console) -> None:
    errors = [one for one in run.figures if one.ended == "error"]
    if not errors:
        return
    again = (
        "run the same command again to repeat them"
        if run.path is not None
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
        name, turns = evaluation.given.agent, evaluation.env.horizon
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
