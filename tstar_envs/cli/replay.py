"""``replay``: replay recorded episodes and report where rules or scores differ from the record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from tstar_envs.cli.console import make_env, say
from tstar_envs.core import TextEnv
from tstar_envs.data.files import read_json
from tstar_envs.errors import BadData, UnknownOption
from tstar_envs.evalset import panel, panel_versions
from tstar_envs.evaluation.log import recorded_options
from tstar_envs.evaluation.replay import Change, Recording, Replayed, recordings, replay
from tstar_envs.record_files import Head, episode_of_line, read_episodes, read_heads
from tstar_envs.registry import EnvEntry, find_entry, parse_options
from tstar_envs.utils import counted

FORMAT = 1  # of --json
SIDE_BY_SIDE = 32  # episodes in lockstep, so that a search service gets few requests
_AROUND = 60  # characters shown before the first difference of two texts
_AFTER = 200  # characters shown from there on


@dataclass(frozen=True)
class ReplayCommand:
    """Replay recorded episodes and show where observations, rules or scores differ from the record.

    The file is one written by eval --out, or the episodes.jsonl of a training run. The environment is made with the options recorded beside
    the file. For each episode the first differing step is shown, with the recorded and the new values. An episode that ended in an error is
    replayed as far as possible. The exit status is 0 if nothing differs, 1 if anything differs or could not be replayed.
    """

    file: tyro.conf.Positional[Path]
    """File of episodes to replay."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")]] = ()
    """Option of the environment that replaces the recorded one; may be repeated."""
    env: str | None = None
    """Environment whose episodes to replay, of a training run on several."""
    episode: int | None = None
    """Line of the one episode to replay, from 1; the others are not read."""
    show: int = 10
    """Maximum number of differing episodes to show; the summary counts all."""
    json: bool = False
    """Print one JSON object with all differences instead of lines."""


def run(command: ReplayCommand, console: Console) -> int:
    """Replay a file and print the differences.

    Returns:
        0 if nothing differs, else 1.

    Raises:
        MissingData: the file does not exist.
        BadData: not a file of episodes, or one of several environments.
        UnknownOption: an option that the environment does not have, or an invalid --show.
    """
    if command.show < 0:
        raise UnknownOption(f"--show must be at least 0, got {command.show}")
    if command.episode is not None and command.episode < 1:
        raise UnknownOption(f"--episode must be at least 1, the first line, got {command.episode}")
    heads = _heads(command)
    entry = find_entry(heads[0].env)
    options, message = _options(command, entry)
    if "data" not in options and {head.tier for head in heads} == {"mini"} and entry.has_public_data():
        options["data"] = "mini"  # the public data were installed after the recording
    envs = [
        make_env(entry, {"split": heads[0].split, **options}) for _ in range(min(SIDE_BY_SIDE, len(heads)))
    ]
    played_on = _played_on(entry, envs[0], heads)
    if not command.json:
        _introduce(console, command, heads, options, message, played_on)
    counts = dict.fromkeys(("recordings", "as_recorded", "steps"), 0)
    results = []  # those that differ or failed: the others need no memory
    for result in replay(envs, entry, _recordings(command, heads)):
        odd = bool(result.changes or result.failed)
        counts["recordings"] += 1
        counts["as_recorded"] += not odd
        counts["steps"] += result.steps
        if odd:
            results.append(result)
    if command.json:
        facts = {
            "format": FORMAT,
            "file": str(command.file),
            "env": entry.id,
            "options": options,
            **counts,
        }
        findings = {"recorded": played_on, "different": _facts(results), "failed": _failures(results)}
        console.file.write(json.dumps({**facts, **findings}, indent=1) + "\n")
    else:
        _show(command, console, results, counts)
    return 1 if results else 0


def _heads(command: ReplayCommand) -> list[Head]:
    """Read the heads of the episodes to replay, of one environment."""
    if command.episode is not None:
        heads = [Head.of(command.episode, episode_of_line(command.file, command.episode))]
    else:
        heads = list(read_heads(command.file))
    if not heads:
        raise BadData(
            f"{command.file} holds no episode: give a file that `python -m tstar_envs eval --out FILE` or a training run wrote"
        )
    if command.env is not None:
        chosen = find_entry(command.env).id
        heads = [head for head in heads if head.env == chosen]
        if not heads:
            line = "" if command.episode is None else f", line {command.episode}"
            raise UnknownOption(f"--env {command.env}: {command.file}{line} holds no episode of {chosen}")
    ids = list(dict.fromkeys(head.env for head in heads))
    if len(ids) > 1:
        raise BadData(
            f"{command.file} mixes episodes of {' and '.join(ids)}: give one file for each, or one of them by --env"
        )
    return heads


def _recordings(command: ReplayCommand, heads: Sequence[Head]) -> Iterator[Recording]:
    """Read the recordings to replay, an episode at a time."""
    try:
        if command.episode is not None:
            yield from recordings([episode_of_line(command.file, command.episode)], [command.episode])
            return
        wanted = {head.line for head in heads}
        for line, episode in enumerate(read_episodes(command.file), start=1):
            if line in wanted:
                yield from recordings([episode], [line])
    except BadData as error:
        where = str(command.file)
        raise BadData(f"{error}" if str(error).startswith(where) else f"{where}, {error}") from error


def _options(command: ReplayCommand, entry: EnvEntry) -> tuple[dict[str, Any], str]:
    """Collect the options to replay with, and the source of those that were not typed."""
    own = parse_options(entry, command.option)
    found = recorded_options(command.file)
    if found is not None:
        return {**found, **own}, f"from {command.file.name}.config.json"
    run = command.file.with_name("config.json")
    if command.file.name == "episodes.jsonl" and run.is_file():
        return {**_of_training(entry, run, own), **own}, f"from {run}"
    return own, f"no {command.file.name}.config.json is beside the file, so all others are the defaults"


def _of_training(entry: EnvEntry, config: Path, own: dict[str, Any]) -> dict[str, Any]:
    """Read the options of a training run, combined as ``tstar_train`` does: no episode exceeds the environment's own horizon."""
    record = read_json(config)
    try:
        of_env = record.get("mix_options", {}).get(entry.id, record)
        options = {**of_env["env_options"], **of_env["training_options"]}
        wanted = record["rollout"]["horizon"]
        if record["rollout"].get("horizon_growth") is not None and "horizon" not in own:
            raise BadData(
                f"{config}: the horizon grew in this run (--rollout.horizon-growth), so that its episodes have different ones: give "
                f"--option horizon=STEPS; episodes of other horizons differ in their end"
            )
        return (
            options
            if wanted is None
            else {**options, "horizon": min(options.get("horizon") or entry.horizon, wanted)}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BadData(
            f"{config} is not the settings of a training run ({error}): move it away and give --option instead"
        ) from error


def _played_on(entry: EnvEntry, env: TextEnv[Any, Any], heads: Sequence[Head]) -> dict[str, dict[str, Any]]:
    """Compare rules version, tier and panel: all recorded values, and the current ones."""
    here = {"rules version": str(env.metadata["rules_version"]), "tier": env.tier}
    recorded = {
        "rules version": sorted({head.rules_version for head in heads}),
        "tier": sorted({head.tier for head in heads}),
    }
    message = {name: {"recorded": recorded[name], "here": value} for name, value in here.items()}
    panels = sorted({head.panel for head in heads if head.panel})
    if panels:
        version = panels[0].partition(" ")[0]
        now = f"{version} {panel(version)[entry.id].hash}" if version in panel_versions() else "no such panel"
        message["panel"] = {"recorded": panels, "here": now}
    return message


def _introduce(
    console: Console,
    command: ReplayCommand,
    heads: Sequence[Head],
    options: dict[str, Any],
    origin: str,
    played_on: dict[str, Any],
) -> None:
    for name, facts in played_on.items():
        if facts["recorded"] != [facts["here"]]:
            say(
                console,
                f"{name}: recorded under {' and '.join(facts['recorded'])}, here it is {facts['here']}",
                "yellow",
            )
    agents = ", ".join(dict.fromkeys(head.agent for head in heads))
    shown = ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"
    say(
        console,
        f"{command.file}: {counted(len(heads), 'episode')} of {heads[0].env} by {agents}; options: {shown} ({origin})",
    )


def _show(
    command: ReplayCommand, console: Console, results: Sequence[Replayed], counts: Mapping[str, int]
) -> None:
    different, failed = [r for r in results if r.changes], [r for r in results if r.failed]
    for result in different[: command.show]:
        where = "the reset" if not result.step else f"step {result.step}"
        said = f", after {_reply(result)[:_AFTER]!r}" if result.step else ""
        say(console, f"{_name(result)} differs at {where}{said}:", "yellow")
        for change in result.changes:
            old, new = _excerpts(change)
            say(console, f"  {change.what} was {old}\n  {' ' * len(change.what)}  is {new}")
    if len(different) > command.show:
        say(console, f"... and {len(different) - command.show} more (--show N shows more, --json all)", "dim")
    for result in failed[: command.show]:
        say(
            console, f"{_name(result)} could not be played beyond step {result.steps}: {result.failed}", "red"
        )
    if len(failed) > command.show:
        say(console, f"... and {len(failed) - command.show} more that could not be played", "dim")
    message = f"{counts['as_recorded']} of {counts['recordings']} recordings are unchanged ({counts['steps']} steps played)"
    if not different and not failed:
        say(console, message, "green")
        return
    first = Counter(change.what for result in different for change in result.changes)
    what = (
        f"; {len(different)} differ, first in {', '.join(f'{name} ({n})' for name, n in first.most_common())}"
        if different
        else ""
    )
    say(console, f"{message}{what}{f'; {len(failed)} could not be played' if failed else ''}", "red")


def _name(result: Replayed) -> str:
    line, attempt, episode = result.recording
    tried = f", attempt {attempt + 1}" if episode.attempts or attempt else ""
    return f"line {line}, task {episode.task!r}, sample {episode.sample}{tried}"


def _reply(result: Replayed) -> str:
    return result.recording.episode.steps[result.step - 1].reply if result.step else ""


def _where(result: Replayed) -> dict[str, Any]:
    line, attempt, episode = result.recording
    return {"line": line, "task": episode.task, "sample": episode.sample, "attempt": attempt}


def _facts(results: Sequence[Replayed]) -> list[dict[str, Any]]:
    return [
        {**_where(r), "step": r.step, "reply": _reply(r), "changes": [c._asdict() for c in r.changes]}
        for r in results
        if r.changes
    ]


def _failures(results: Sequence[Replayed]) -> list[dict[str, Any]]:
    return [
        {**_where(result), "steps": result.steps, "error": result.failed}
        for result in results
        if result.failed
    ]


def _excerpts(change: Change) -> tuple[str, str]:
    """Excerpt old and new text around their first difference."""
    old, new = change.old, change.new
    if not (isinstance(old, str) and isinstance(new, str)):
        return repr(old), repr(new)
    parts = next(
        (at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    start = max(0, parts - _AROUND)
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int) -> str:
    end = start + _AROUND + _AFTER
    return ("..." if start else "") + repr(text[start:end]) + ("..." if end < len(text) else "")
