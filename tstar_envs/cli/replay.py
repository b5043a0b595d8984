"""``replay``: replay recorded episodes and report where rules or scores differ from the record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
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
from tstar_envs.evaluation.replay import Change, Replayed, recordings, replay
from tstar_envs.record import Episode, read_episodes
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
    episodes = list(read_episodes(command.file))
    if not episodes:
        raise BadData(
            f"{command.file} holds no episode: give a file that `python -m tstar_envs eval --out FILE` or a training run wrote"
        )
    if command.env is not None:
        chosen = find_entry(command.env).id
        episodes = [episode for episode in episodes if episode.env == chosen]
        if not episodes:
            raise UnknownOption(f"--env {command.env}: {command.file} holds no episode of {chosen}")
    ids = list(dict.fromkeys(episode.env for episode in episodes))
    if len(ids) > 1:
        raise BadData(
            f"{command.file} mixes episodes of {' and '.join(ids)}: give one file for each, or one of them by --env"
        )
    entry = find_entry(ids[0])
    try:
        wanted = recordings(episodes)
    except BadData as error:
        raise BadData(f"{command.file}, {error}") from error
    options, message = _options(command, entry)
    if "data" not in options and {e.tier for e in episodes} == {"mini"} and entry.has_public_data():
        options["data"] = "mini"  # the public data were installed after the recording
    envs = [
        make_env(entry, {"split": episodes[0].split, **options})
        for _ in range(min(SIDE_BY_SIDE, len(wanted)))
    ]
    played_on = _played_on(entry, envs[0], episodes)
    if not command.json:
        _introduce(console, command, episodes, options, message, played_on)
    results = list(replay(envs, entry, wanted))
    if command.json:
        facts = {
            "format": FORMAT,
            "file": str(command.file),
            "env": entry.id,
            "options": options,
            **_counts(results),
        }
        findings = {"recorded": played_on, "different": _facts(results), "failed": _failures(results)}
        console.file.write(json.dumps({**facts, **findings}, indent=1) + "\n")
    else:
        _show(command, console, results)
    return 1 if any(result.changes or result.failed for result in results) else 0


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


def _played_on(
    entry: EnvEntry, env: TextEnv[Any, Any], episodes: Sequence[Episode]
) -> dict[str, dict[str, Any]]:
    """Compare rules version, tier and panel: all recorded values, and the current ones."""
    here = {"rules version": str(env.metadata["rules_version"]), "tier": env.tier}
    recorded = {
        "rules version": sorted({episode.rules_version for episode in episodes}),
        "tier": sorted({episode.tier for episode in episodes}),
    }
    message = {name: {"recorded": recorded[name], "here": value} for name, value in here.items()}
    panels = sorted({episode.panel for episode in episodes if episode.panel})
    if panels:
        version = panels[0].partition(" ")[0]
        now = f"{version} {panel(version)[entry.id].hash}" if version in panel_versions() else "no such panel"
        message["panel"] = {"recorded": panels, "here": now}
    return message


def _introduce(
    console: Console,
    command: ReplayCommand,
    episodes: Sequence[Episode],
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
    agents = ", ".join(dict.fromkeys(episode.agent for episode in episodes))
    shown = ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"
    say(
        console,
        f"{command.file}: {counted(len(episodes), 'episode')} of {episodes[0].env} by {agents}; options: {shown} ({origin})",
    )


def _show(command: ReplayCommand, console: Console, results: Sequence[Replayed]) -> None:
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
    counts = _counts(results)
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


def _counts(results: Sequence[Replayed]) -> dict[str, int]:
    same = sum(not result.changes and not result.failed for result in results)
    return {"recordings": len(results), "as_recorded": same, "steps": sum(result.steps for result in results)}


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
