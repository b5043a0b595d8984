"""``eval``: play tasks with an agent, one record per line, and print what it achieved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tstar_envs.bench.agents import Agent, load_agent, options_of
from tstar_envs.bench.results import Key, ResultFile, latest, sole_evaluation
from tstar_envs.bench.runner import play_missing
from tstar_envs.bench.stats import Summary, summarise
from tstar_envs.bench.what_agents_see import bind_agent
from tstar_envs.cli.console import make_console, plain, say
from tstar_envs.cli.options import make_env, parse_options
from tstar_envs.core import TextEnv
from tstar_envs.errors import UnknownOption, UnknownTask
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry, find_entry

FORMAT = 1  # of the settings file


@dataclass(frozen=True)
class EvalCommand:
    """Evaluate an agent: success with a 95 % interval, steps, invalid actions.

    With --out every episode is appended to a file as it ends. The same command again resumes: episodes in the file are not
    played twice, those that ended in an error are. More --tasks or --samples extend a file; other settings are refused.
    """

    env: str
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    agent: str
    """random, oracle, oracle:KIND, tiny, tiny:PATH (a trained policy), or module:object (an agent, a class or factory, or a function)."""
    split: str = "test"
    """train, valid or test (some environments have test alone)."""
    tasks: int | None = None
    """Play the first N tasks of the split; default: all."""
    samples: int = 1
    """Episodes per task."""
    seed: int = 0
    """Of the agent's sampling."""
    temperature: float | None = None
    """Of the agent's sampling, 0 is greedy; default: the agent's own (tiny: 1)."""
    progress: bool = False
    """Also tell how far each episode came: the expert's share of the way to the goal that is behind it, 0 for what is lost."""
    out: Path | None = None
    """JSON-lines file for the episodes; FILE.config.json beside it holds the settings."""
    options_of: str | None = None
    """Play with the options that this agent wishes (for example tiny), whoever plays: agents are comparable only under the same."""
    topk: int | None = None
    """Search environments: passages per search (the same as --option topk=N)."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")]] = ()
    """Further option of the environment; may be repeated."""


def run(command: EvalCommand, console: Console) -> int:
    """Play what is missing and print the figures.

    Returns:
        0, or 1 if episodes ended in an error (they are in no figure).
    """
    with sole_evaluation(command.out):
        return _evaluate(command, console)


def _evaluate(command: EvalCommand, console: Console) -> int:
    entry = find_entry(command.env)
    agent = load_agent(command.agent, env_id=entry.id, seed=command.seed, temperature=command.temperature)
    wishes = _wishes(command, entry, agent)
    own = _own_options(command, entry)
    options = {**wishes, **own}
    env = make_env(entry, {"split": command.split, **options})
    wanted = _wanted(command, env)
    privileged = bind_agent(agent, env)
    settings = {
        "format": FORMAT, "env": entry.id, "rules_version": entry.rules_version, "tier": env.tier, "split": command.split,
        "agent": command.agent, "seed": command.seed, "options": options,
    }  # fmt: skip
    if command.temperature is not None:  # only then, so that files from before there was a choice go on
        settings["temperature"] = command.temperature
    if command.progress:
        settings["progress"] = True
    results = ResultFile(command.out, settings) if command.out is not None else None
    done = results.episodes() if results is not None else {}
    shown = ", ".join(f"{k}={v}" for k, v in options.items()) or "defaults"
    agent_shown = command.agent if command.temperature is None else f"{command.agent} (temperature {command.temperature:g})"
    say(console, f"{entry.id} ({env.tier}, rules {entry.rules_version}), split {command.split}, agent {agent_shown}, options: {shown}")
    _tell_differences(console, command, wishes, own)
    if privileged and command.agent.partition(":")[0] != "oracle":
        say(console, "this agent is privileged: it is given the environment itself, its expert included", "yellow")
    kept = sum(key in done and done[key].ended != "error" for key in wanted)
    if kept:
        say(console, f"resuming: {kept} of {len(wanted)} episodes are in {command.out} already")
    try:
        _play(env, entry, agent, wanted, done, results, command)
    except KeyboardInterrupt:
        again = "the same command again goes on from here" if results is not None else "with --out it could go on from here"
        say(console, f"interrupted: {again}", "yellow")
        if results is not None:
            done = results.episodes()  # the signal may have come between the writing of a record and its counting
        raise
    finally:  # also after Ctrl-C or a broken service: what was played is told
        summary = summarise([done[key] for key in wanted if key in done])
        console.print(_table(summary, len(wanted)))
        if results is not None:
            say(console, f"episodes in {results.path}", "dim")
    if summary.errors:
        again = "run the same command again to repeat them" if results is not None else "with --out they could be repeated alone"
        say(console, f"{summary.errors} episodes ended in an error and are in no figure above: {again}", "red")
        last = [done[key] for key in wanted if key in done and done[key].ended == "error"][-1]
        say(console, f"the last one, on {last.task}: {last.error}", "red")
    return 1 if summary.errors else 0


def _wishes(command: EvalCommand, entry: EnvEntry, agent: Agent) -> dict[str, Any]:
    """What the agent wishes of its environment, or the agent that --options-of names."""
    if command.options_of is not None:
        return options_of(command.options_of, env_id=entry.id, seed=command.seed)
    return dict(getattr(agent, "env_options", {}))


def _own_options(command: EvalCommand, entry: EnvEntry) -> dict[str, Any]:
    """The user's own options, which stand above any wishes."""
    pairs = [*([f"topk={command.topk}"] if command.topk is not None else []), *command.option]
    return parse_options(entry, pairs, {"split": "--split"})


def _tell_differences(console: Console, command: EvalCommand, wishes: dict[str, Any], own: dict[str, Any]) -> None:
    """Say that an agent plays another environment than the rest, where it does by its own wish."""
    asked = {name: value for name, value in wishes.items() if name not in own}
    if asked and command.options_of is None:
        shown = ", ".join(f"{name}={value}" for name, value in asked.items())
        say(
            console,
            f"agent {command.agent} asks for options of its own ({shown}): compare it only with agents that play under the same, "
            f"with --options-of {command.agent}",
            "yellow",
        )


def _wanted(command: EvalCommand, env: TextEnv[Any, Any]) -> list[Key]:
    ids = env.task_ids(command.split)
    if not ids:
        raise UnknownTask(f"split {command.split!r} of {command.env} has no tasks; choose another split or another data tier")
    if command.samples < 1:
        raise UnknownOption(f"--samples must be at least 1, got {command.samples}")
    count = len(ids) if command.tasks is None else command.tasks
    if not 1 <= count <= len(ids):
        raise UnknownOption(f"--tasks must be from 1 to {len(ids)}, the size of split {command.split!r}, got {count}")
    return [(task, sample) for task in ids[:count] for sample in range(command.samples)]


def _play(
    env: TextEnv[Any, Any], entry: EnvEntry, agent: Agent, wanted: list[Key], done: dict[Key, Episode],
    results: ResultFile | None, command: EvalCommand,
) -> None:  # fmt: skip
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = make_console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        finished = [e for key in wanted if (e := done.get(key)) is not None and e.ended != "error"]
        successes, good, errors = sum(e.success for e in finished), len(finished), 0
        bar = progress.add_task("playing", total=len(wanted), completed=good)
        for episode in play_missing(env, entry, agent, wanted, done, name=command.agent, seed=command.seed, progress=command.progress):
            if results is not None:
                results.append(episode)
            done.update(latest([episode]))
            good += episode.ended != "error"
            errors += episode.ended == "error"
            successes += episode.success
            rate = f"success {successes / good:.1%}" if good else "playing"
            progress.update(bar, advance=1, description=rate + (f", {errors} errors" if errors else ""))


def _table(summary: Summary, wanted: int) -> Table:
    table = Table(show_header=False)
    played = summary.episodes + summary.errors

    def row(name: str, value: str) -> None:
        table.add_row(plain(name), plain(value))

    row("episodes", f"{summary.episodes} ({summary.tasks} tasks)" + (f", {wanted - played} not played yet" if played < wanted else ""))
    row("errors (in no rate)", str(summary.errors))
    if summary.success is not None and summary.wilson is not None:
        row("success", f"{summary.success:.1%}")
        row("95 % interval (Wilson" + (", per episode)" if summary.clustered else ")"), _interval(summary.wilson))
        if summary.clustered:
            row("95 % interval (by task)", _interval(summary.clustered))
        row("mean score", f"{summary.score:.3f}")
        row("mean steps", f"{summary.steps:.2f}")
        row("invalid actions", f"{summary.invalid:.1%} of steps")
        row("out of steps", f"{summary.truncated:.1%} of episodes")
        if summary.progress_unknown:
            row("progress unknown", f"{summary.progress_unknown} episodes")
        for name, value in summary.extra.items():
            row(f"mean {name}", f"{value:.3f}")
    return table


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.1%} to {bounds[1]:.1%}"
