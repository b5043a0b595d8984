"""Taking a run up again: where it stands, whether its files still say what it was, whether it is done, and making it longer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tstar_envs import BadData, UnknownOption, find_entry, parse_options, read_json, write_whole
from tstar_envs.redaction import HIDDEN, without_secrets
from tstar_train.checkpoint import check_same_options, latest_checkpoint, read_state, remove_partial
from tstar_train.config import ENVIRONMENT_OPTIONS, Config
from tstar_train.loop import share_of_episodes, share_of_minutes
from tstar_train.stopping import hidden_options, option
from tstar_train.tracking import RunFolder


def resumed(
    out: Path, config: Config, iterations: int | None, console: Console
) -> tuple[Path | None, Config]:
    """The newest checkpoint of a run, verified, and the options that it goes on with.

    Args:
        out: the run folder, which must be ours (see ``claim``).
        config: what its ``config.json`` says.
        iterations: train up to so many, None for as many as it was started with.
        console: for what is said.

    Returns:
        (checkpoint or None if there is none yet, options).

    Raises:
        BadCheckpoint: the checkpoint is damaged.
        UnknownOption: ``config.json`` was edited, or ``iterations`` does not make the run longer.
    """
    remove_partial(out)
    for left in out.glob(".report.html.*"):
        left.unlink()
    checkpoint = latest_checkpoint(out)
    if checkpoint is None:
        if iterations is not None:
            config = _longer(config, iterations, config.iterations, out)
            write_whole(out / "config.json", config.to_json())
        return None, config
    state = read_state(checkpoint)
    check_same_options(checkpoint, state, config)
    made_with = state["config"].get("iterations")
    if iterations is None:
        if config.iterations != made_with:
            raise UnknownOption(
                f"{out / 'config.json'} was edited (iterations is {config.iterations}, the run was made with {made_with}): "
                f"put it back; to make the run longer: --resume {out} --iterations N"
            )
        return checkpoint, config
    config = _longer(config, iterations, made_with, out)
    if share_of_minutes(config, state["seconds"]) > 1:
        raise UnknownOption(
            f"the run was ended by --minutes {config.minutes:g}, so that more iterations change nothing"
        )
    if share_of_episodes(config, state.get("cursor", 0)) >= 1:
        raise UnknownOption(
            f"the run was ended by --episodes {config.episodes}, so that more iterations change nothing"
        )
    if config.iterations > made_with:
        _extend(out, checkpoint, state, config)
        console.print(
            f"the run goes on to {config.iterations} iterations instead of {made_with}", highlight=False
        )
    return checkpoint, config


def with_secrets(config: Config, given: Mapping[str, Sequence[str]], out: Path) -> Config:
    """The options of a run with those that hold a secret, which no file of it does, as they are given again.

    Args:
        config: as ``config.json`` says.
        given: ``key=value`` pairs by the field of ``config``.
        out: the run folder, for messages.

    Raises:
        UnknownOption: one is missing, or one is given that the run has otherwise.
    """
    for field in ENVIRONMENT_OPTIONS:
        stored = getattr(config, field)
        told = parse_options(find_entry(config.env), given.get(field, ()))
        for name, value in told.items():
            if without_secrets({name: value}) != {name: stored.get(name)}:
                raise UnknownOption(
                    f"--resume goes on with the run's own options and takes no others, got {option(field)} "
                    f"{name}={without_secrets(value, name)} where {out} has {stored.get(name)!r}; only secrets are given again"
                )
        parts: dict[str, Any] = {field: {**stored, **told}}
        config = replace(config, **parts)
    missing = hidden_options(config)
    if missing:
        raise UnknownOption(
            f"no file of {out} holds the secrets of its options: give them again, each in place of {HIDDEN}: --resume {out} "
            f"{shlex.join(missing)}"
        )
    return config


def finished(out: Path, config: Config, checkpoint: Path | None) -> dict[str, Any] | None:
    """The summary of a run that is complete, None if it is not.

    Raises:
        BadData: the summary, or what was logged, is damaged or not of this run.
    """
    path = out / "summary.json"
    if not path.exists():
        return None
    summary: dict[str, Any] = read_json(path)
    done = int(checkpoint.name) if checkpoint is not None else 0
    if summary.get("iterations") != done or type(summary["iterations"]) is not int:
        raise BadData(
            f"{path} is of {summary.get('iterations')!r:.40} iterations, the newest checkpoint of {done}: remove it to measure the "
            f"checkpoint again"
        )
    RunFolder(out, config).cut(done)
    return summary


def _longer(config: Config, iterations: int, before: Any, out: Path) -> Config:
    if not isinstance(before, int) or iterations < before:
        raise UnknownOption(
            f"--iterations {iterations}: {out} was started with {before}, and a run can only be made longer"
        )
    return replace(config, iterations=iterations)


def _extend(out: Path, checkpoint: Path, state: dict[str, Any], config: Config) -> None:
    """Write down that a run goes on, keeping the result that it had.

    The options come first and the checkpoint's word of them last: killed in between, the same command does the rest.
    """
    had = state["iteration"]
    write_whole(out / "config.json", config.to_json())
    for name in ("summary.json", "evaluation.json"):
        if (out / name).exists() and (name == "summary.json" or "after" in read_json(out / name)):
            kept = out / name.replace(".json", f"-{had:06d}.json")
            write_whole(kept, (out / name).read_bytes())
            if name == "summary.json":
                (out / name).unlink()
    recorded = read_json(out / "evaluation.json")
    rest = {
        key: value
        for key, value in recorded.items()
        if key not in ("after", "difference", "ci_low", "ci_high", "chosen")
    }
    RunFolder(out, config).write("evaluation.json", rest)
    longer = {**state, "config": {**state["config"], "iterations": config.iterations}}
    write_whole(checkpoint / "state.json", json.dumps(longer, indent=1))
