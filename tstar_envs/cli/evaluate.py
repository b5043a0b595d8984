"""``eval``: play tasks with an agent, one record per line, and print what it achieved."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from rich.console import Console

from tstar_envs.bench.accounts import Accounts, account, together, usage_notes
from tstar_envs.bench.agents.chat import ChatAgent
from tstar_envs.bench.estimate import Estimate, estimate
from tstar_envs.bench.prices import PriceTable, read_prices
from tstar_envs.bench.results import Key, ResultFile, latest, sole_evaluation
from tstar_envs.bench.runner import play_missing
from tstar_envs.bench.stats import Summary, summarise
from tstar_envs.cli.console import say
from tstar_envs.cli.eval_command import EvalCommand
from tstar_envs.cli.evaluation import Evaluation, prepare
from tstar_envs.cli.figures import Row, estimate_table, figures_table, suite_table
from tstar_envs.cli.live import Live
from tstar_envs.errors import TStarError, UnknownOption
from tstar_envs.evalset import panel
from tstar_envs.record import Episode
from tstar_envs.registry import find_entry
from tstar_envs.utils import counted

__all__ = ["EvalCommand", "run"]


@dataclass
class Played:
    """What an evaluation has of its episodes so far."""

    evaluation: Evaluation
    results: ResultFile | None
    done: dict[Key, Episode]

    @property
    def episodes(self) -> list[Episode]:
        """Those that were wanted, in order."""
        return [self.done[key] for key in self.evaluation.wanted if key in self.done]


def run(command: EvalCommand, console: Console) -> int:
    """Play what is missing and print the figures.

    Returns:
        0, or 1 if episodes ended in an error (they are in no figure).
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
        played = _open(evaluation)
        try:
            _play(played, console, prices)
        finally:  # also after Ctrl-C or a broken service: the figures of what was played are shown
            summary, accounts = _figures(played, prices)
            console.print(figures_table(summary, len(evaluation.wanted), accounts, evaluation.panel_label))
            _note(accounts, command, console)
            if played.results is not None:
                say(console, f"episodes in {played.results.path}", "dim")
        _show_errors(played, console)
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
                played = _open(prepare(one, find_entry(str(one.env))))
                try:
                    _play(played, console, prices)
                finally:
                    rows.append(
                        Row(
                            played.evaluation.entry.id,
                            len(played.evaluation.wanted),
                            *_figures(played, prices),
                        )
                    )
                _show_errors(played, console)
    finally:
        part = "" if command.tasks is None else f", the first {counted(command.tasks, 'task')} of each"
        console.print(suite_table(rows, f"suite {command.suite}, panel {chosen.version} {chosen.hash}{part}"))
        if rows:
            _note(together([row.accounts for row in rows]), command, console)
        if command.out is not None:
            say(console, f"episodes in {command.out}", "dim")
    return 1 if any(row.summary.errors for row in rows) else 0


def _open(evaluation: Evaluation) -> Played:
    out = evaluation.command.out
    results = ResultFile(out, evaluation.settings) if out is not None else None
    return Played(evaluation, results, results.episodes() if results is not None else {})


def _play(played: Played, console: Console, prices: PriceTable) -> None:
    evaluation, results, done = played.evaluation, played.results, played.done
    _introduce(evaluation, console)
    finished = [episode for episode in played.episodes if episode.ended != "error"]
    if finished and results is not None:
        say(
            console,
            f"resuming: {len(finished)} of {len(evaluation.wanted)} episodes are in {results.path} already",
        )
    seats = evaluation.seats(len(evaluation.wanted) - len(finished))
    model = evaluation.command.model
    price = prices.of_model(model) if model is not None else None
    try:
        playing = play_missing(seats, evaluation.setting, evaluation.wanted, done)
        with Live(len(evaluation.wanted), finished, price, prices.currency) as live, closing(playing):
            for episode in playing:
                if results is not None:
                    results.append(episode)
                done.update(latest([episode]))
                live.add(episode)
    except (KeyboardInterrupt, TStarError) as stopped:
        again = (
            "the same command again goes on from here"
            if results is not None
            else "with --out it could go on from here"
        )
        what = "interrupted" if isinstance(stopped, KeyboardInterrupt) else "stopped"
        say(console, f"{what}: {again}", "yellow")
        if results is not None:
            # The signal may have come between the writing of a record and its counting.
            played.done = results.episodes()
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
    # Its own wish makes it play another environment than the rest.
    asked = {name: value for name, value in evaluation.wishes.items() if name not in evaluation.own}
    if asked and command.options_of is None:
        shown = ", ".join(f"{name}={value}" for name, value in asked.items())
        say(
            console,
            f"agent {command.agent} asks for options of its own ({shown}): compare it only with agents that play under the same, "
            f"with --options-of {command.agent}",
            "yellow",
        )
    if evaluation.privileged and command.agent.partition(":")[0] != "oracle":
        say(
            console,
            "this agent is privileged: it is given the environment itself, its expert included",
            "yellow",
        )


def _figures(played: Played, prices: PriceTable) -> tuple[Summary, Accounts]:
    return summarise(played.episodes), account(played.episodes, prices, played.evaluation.command.model)


def _note(accounts: Accounts, command: EvalCommand, console: Console) -> None:
    for note in usage_notes(accounts.usage, command.max_tokens):
        say(console, note, "yellow")


def _show_errors(played: Played, console: Console) -> None:
    errors = [episode for episode in played.episodes if episode.ended == "error"]
    if not errors:
        return
    again = (
        "run the same command again to repeat them"
        if played.results is not None
        else "with --out they could be repeated alone"
    )
    episodes = (
        "1 episode ended in an error and is"
        if len(errors) == 1
        else f"{len(errors)} episodes ended in an error and are"
    )
    say(console, f"{episodes} in no figure: {again}", "red")
    say(console, f"the last one, on {errors[-1].task}: {errors[-1].error}", "red")


def _dry_run(evaluation: Evaluation, console: Console) -> Estimate | None:
    """Say what would be played; gives what it would take, None for an agent that sends no requests."""
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
