"""``eval``: play tasks with an agent, one record per line, and print what it achieved."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from tstar_envs.bench.accounts import account
from tstar_envs.bench.agents import Agent, ModelOptions, load_agent, more_agents, options_of
from tstar_envs.bench.agents.chat import ChatAgent, ChatOptions
from tstar_envs.bench.agents.endpoint import Endpoint
from tstar_envs.bench.estimate import estimate
from tstar_envs.bench.prices import PriceTable, read_prices
from tstar_envs.bench.results import Key, ResultFile, latest, sole_evaluation
from tstar_envs.bench.runner import Seat, Setting, play_missing
from tstar_envs.bench.stats import summarise
from tstar_envs.bench.what_agents_see import bind_agent
from tstar_envs.cli.console import say
from tstar_envs.cli.figures import estimate_table, figures_table
from tstar_envs.cli.live import Live
from tstar_envs.cli.options import make_env, parse_options
from tstar_envs.core import TextEnv
from tstar_envs.errors import UnknownOption, UnknownTask
from tstar_envs.panel import Panel, panel
from tstar_envs.record import Episode
from tstar_envs.registry import EnvEntry, find_entry

FORMAT = 1  # of the settings file
_KEY_VALUE = tyro.conf.arg(metavar="KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class EvalCommand:
    """Evaluate an agent: success with a 95 % interval, why it failed where it did, and what that cost.

    With --out every episode is appended to a file as it ends. The same command again resumes: episodes in the file are not
    played twice, those that ended in an error are. More --tasks or --samples extend a file; other settings are refused.
    """

    env: str | None = None
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    agent: str
    """random, oracle, oracle:KIND, human, tiny, tiny:PATH (a trained policy), module:object (an agent, a class or factory, or a function),
    'command:PROGRAM ARGUMENTS' (JSON lines); and with --model: chat, direct, react, reflexion, search-o1."""
    split: str = "test"
    """train, valid or test (some environments have test alone)."""
    suite: str | None = None
    """Instead of --env: play all environments of a suite on the tasks of the panel. paper is the table of the paper; --out is a folder."""
    panel: str | None = None
    """Play the fixed test tasks of this panel (v1), so that results can be compared with those of others."""
    tasks: int | None = None
    """Play the first N tasks of the split, or of the panel; default: all."""
    samples: int = 1
    """Episodes per task."""
    seed: int = 0
    """Of the agent's sampling."""
    temperature: float | None = None
    """Of the agent's sampling, 0 is greedy; default: the agent's own (tiny: 1, a model behind an endpoint: 0)."""
    model: str | None = None
    """Agents that talk to an endpoint: name of the model, as the endpoint calls it."""
    base_url: str | None = None
    """Of the OpenAI-compatible endpoint, for example http://localhost:8000/v1; default: OPENAI_BASE_URL, or OpenAI's. The key is
    OPENAI_API_KEY."""
    concurrency: int | None = None
    """Episodes to play at the same time; default: 8 for agents that talk to an endpoint, else 1."""
    max_tokens: int = ChatOptions.max_tokens
    """Longest answer of a model."""
    context_tokens: int = ChatOptions.context_tokens
    """Bound on the messages of a request; the oldest turns are left out first, the rules, the task and the last turn never."""
    tools: bool = False
    """Let the model act by calling typed tools (search, click, move, ...) instead of writing an action. Of --agent chat."""
    timeout: float = Endpoint.timeout
    """Seconds for an answer, of a model or of a program."""
    retries: int = Endpoint.retries
    """How often a request is sent again that met 429, 5xx, a broken connection, no answer in time or one that cannot be read."""
    request: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Further field of each request, its value as JSON (reasoning_effort=low); null leaves a field out (temperature=null)."""
    prices: Path | None = None
    """TOML file of prices for a million tokens; default: the shipped table (tstar_envs/bench/prices.toml shows the form)."""
    dry_run: bool = False
    """Play nothing: tell how many requests and tokens it will take, and what they cost."""
    progress: bool = False
    """Also tell how far each episode came: the expert's share of the way to the goal that is behind it, 0 for what is lost."""
    out: Path | None = None
    """JSON-lines file for the episodes; FILE.config.json beside it holds the settings. With --suite a folder, one file for each."""
    options_of: str | None = None
    """Play with the options that this agent wishes (for example tiny), whoever plays: agents are comparable only under the same."""
    topk: int | None = None
    """Search environments: passages per search (the same as --option topk=N)."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Further option of the environment; may be repeated."""


def run(command: EvalCommand, console: Console) -> int:
    """Play what is missing and print the figures.

    Returns:
        0, or 1 if episodes ended in an error (they are in no figure).
    """
    prices = read_prices(command.prices)
    if command.suite is not None:
        return _run_suite(command, console, prices)
    if command.env is None:
        raise UnknownOption("say what to play: --env ID (python -m tstar_envs list shows them), or --suite paper")
    with sole_evaluation(command.out):
        return _evaluate(command, find_entry(command.env), console, prices)


def _run_suite(command: EvalCommand, console: Console, prices: PriceTable) -> int:
    if command.env is not None:
        raise UnknownOption(f"--suite {command.suite} names its environments; leave --env {command.env} out, or the suite")
    if command.out is not None and command.out.is_file():
        raise UnknownOption(f"--out {command.out} is a file; with --suite it names a folder, which gets one file for each environment")
    chosen = panel(command.panel or "v1")
    worst = 0
    for env_id in chosen.suite(str(command.suite)):
        entry = find_entry(env_id)
        out = command.out / f"{entry.name}.jsonl" if command.out is not None else None
        one = replace(command, env=env_id, panel=chosen.version, out=out)
        with sole_evaluation(out):
            worst = max(worst, _evaluate(one, entry, console, prices))
    return worst


def _evaluate(command: EvalCommand, entry: EnvEntry, console: Console, prices: PriceTable) -> int:
    agent = _load(command, entry)
    wishes = _wishes(command, entry, agent)
    own = _own_options(command, entry)
    options = {**wishes, **own}
    env = make_env(entry, {"split": command.split, **options})
    tasks, shown_panel = _tasks(command, env)
    wanted = [(task, sample) for task in tasks for sample in range(command.samples)]
    privileged = bind_agent(agent, env)
    if command.dry_run:
        return _dry_run(command, console, agent, env, entry, wanted, prices)
    settings = {
        "format": FORMAT, "env": entry.id, "rules_version": entry.rules_version, "tier": env.tier, "split": command.split,
        "agent": command.agent, "seed": command.seed, "options": options,
    }  # fmt: skip
    # Only where there is something to say, so that files from before there was a choice go on.
    more = {
        "temperature": command.temperature, "progress": command.progress or None, "panel": shown_panel or None,
        "agent_settings": getattr(agent, "settings", None),
    }  # fmt: skip
    settings.update({name: value for name, value in more.items() if value is not None})
    results = ResultFile(command.out, settings) if command.out is not None else None
    done = results.episodes() if results is not None else {}
    _introduce(command, console, entry, env, options, shown_panel)
    _tell_differences(console, command, wishes, own)
    if privileged and command.agent.partition(":")[0] != "oracle":
        say(console, "this agent is privileged: it is given the environment itself, its expert included", "yellow")
    kept = sum(key in done and done[key].ended != "error" for key in wanted)
    if kept:
        say(console, f"resuming: {kept} of {len(wanted)} episodes are in {command.out} already")
    seats = _seats(command, entry, Seat(env, agent), options, len(wanted) - kept)
    setting = Setting(entry, command.agent, command.seed, command.progress, shown_panel)
    try:
        _play(seats, setting, wanted, done, results, prices, command.model)
    except KeyboardInterrupt:
        again = "the same command again goes on from here" if results is not None else "with --out it could go on from here"
        say(console, f"interrupted: {again}", "yellow")
        if results is not None:
            done = results.episodes()  # the signal may have come between the writing of a record and its counting
        raise
    finally:  # also after Ctrl-C or a broken service: what was played is told
        played = [done[key] for key in wanted if key in done]
        summary = summarise(played)
        console.print(figures_table(summary, len(wanted), account(played, prices, command.model), shown_panel))
        if results is not None:
            say(console, f"episodes in {results.path}", "dim")
    if summary.errors:
        again = "run the same command again to repeat them" if results is not None else "with --out they could be repeated alone"
        say(console, f"{summary.errors} episodes ended in an error and are in no figure above: {again}", "red")
        last = [done[key] for key in wanted if key in done and done[key].ended == "error"][-1]
        say(console, f"the last one, on {last.task}: {last.error}", "red")
    return 1 if summary.errors else 0


def _load(command: EvalCommand, entry: EnvEntry) -> Agent:
    model = ModelOptions(
        command.model, command.base_url, command.max_tokens, command.context_tokens, command.tools, command.timeout, command.retries,
        _request_fields(command.request),
    )  # fmt: skip
    return load_agent(command.agent, env_id=entry.id, seed=command.seed, temperature=command.temperature, model=model)


def _request_fields(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` as fields of a request: JSON where it is, else the text."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UnknownOption(f"--request takes KEY=VALUE, got {pair!r}: for example --request reasoning_effort=low")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def _seats(command: EvalCommand, entry: EnvEntry, first: Seat, options: dict[str, Any], missing: int) -> list[Seat]:
    """An environment and an agent for each episode that is played at the same time."""
    wanted = command.concurrency if command.concurrency is not None else getattr(first.agent, "concurrency", 1)
    if wanted < 1:
        raise UnknownOption(f"--concurrency must be 1 or more, got {wanted}")
    if wanted > 1 and command.agent == "human":
        raise UnknownOption(f"--concurrency {wanted}: a person plays one episode at a time")
    agents = more_agents(first.agent, max(1, min(wanted, missing)), command.agent, lambda: _load(command, entry))
    seats = [first]
    for agent in agents[1:]:
        env = make_env(entry, {"split": command.split, **options})
        bind_agent(agent, env)
        seats.append(Seat(env, agent))
    return seats


def _introduce(
    command: EvalCommand, console: Console, entry: EnvEntry, env: TextEnv[Any, Any], options: dict[str, Any], shown_panel: str
) -> None:
    shown = ", ".join(f"{k}={v}" for k, v in options.items()) or "defaults"
    agent = command.agent if command.temperature is None else f"{command.agent} (temperature {command.temperature:g})"
    model = f", model {command.model}" if command.model is not None else ""
    tasks = f"tasks of panel {shown_panel}" if shown_panel else f"split {command.split}"
    say(console, f"{entry.id} ({env.tier}, rules {entry.rules_version}), {tasks}, agent {agent}{model}, options: {shown}")


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


def _tasks(command: EvalCommand, env: TextEnv[Any, Any]) -> tuple[list[str], str]:
    """The tasks to play, and the panel that they are of, "" if of none."""
    if command.samples < 1:
        raise UnknownOption(f"--samples must be at least 1, got {command.samples}")
    ids, of, shown = list(env.task_ids(command.split)), f"split {command.split!r}", ""
    if command.panel is not None:
        ids, of, shown = _panel_tasks(command, panel(command.panel), env)
    if not ids:
        raise UnknownTask(f"split {command.split!r} of {command.env} has no tasks; choose another split or another data tier")
    count = len(ids) if command.tasks is None else command.tasks
    if not 1 <= count <= len(ids):
        raise UnknownOption(f"--tasks must be from 1 to {len(ids)}, the size of {of}, got {count}")
    return ids[:count], shown


def _panel_tasks(command: EvalCommand, chosen: Panel, env: TextEnv[Any, Any]) -> tuple[list[str], str, str]:
    if command.split != "test":
        raise UnknownOption(f"panel {chosen.version} is made of test tasks: leave --split {command.split} out")
    chosen.check(env)
    part = chosen[str(command.env)]
    return list(part.tasks), f"panel {chosen.version}", f"{chosen.version} {part.hash}"


def _dry_run(
    command: EvalCommand, console: Console, agent: Agent, env: TextEnv[Any, Any], entry: EnvEntry, wanted: list[Key], prices: PriceTable
) -> int:
    if not isinstance(agent, ChatAgent):
        say(console, f"{entry.id}: {len(wanted)} episodes, {env.horizon} turns each at most; agent {command.agent} sends no requests")
        return 0
    price = prices.of_model(agent.endpoint.model)
    say(console, f"{entry.id}: {command.agent} with model {agent.endpoint.model}, {len(wanted)} episodes; nothing is sent")
    console.print(estimate_table(estimate(env, entry, agent, wanted), price, prices))
    return 0


def _play(
    seats: list[Seat], setting: Setting, wanted: list[Key], done: dict[Key, Episode], results: ResultFile | None, prices: PriceTable,
    model: str | None,
) -> None:  # fmt: skip
    finished = [e for key in wanted if (e := done.get(key)) is not None and e.ended != "error"]
    price = prices.of_model(model) if model is not None else None
    with Live(len(wanted), finished, price, prices.currency) as live:
        for episode in play_missing(seats, setting, wanted, done):
            if results is not None:
                results.append(episode)
            done.update(latest([episode]))
            live.add(episode)
