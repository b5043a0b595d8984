"""The commands' options: tyro over the configuration dataclasses, on top of a preset."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from tstar_envs import UnknownOption, find_entry, list_envs
from tstar_train.config import Config
from tstar_train.presets import choose
from tstar_train.run import resume_run, train
from tstar_train.warmstart.build import build_weights


def train_command(arguments: Sequence[str]) -> int:
    """``python -m tstar_train --env ENV [options]`` or ``--resume RUN``."""
    # The environment and the model choose the preset, whose values are then the defaults that tyro shows and overrides.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env")
    first.add_argument("--model", default="auto")
    first.add_argument("--out", type=Path)
    first.add_argument("--resume", type=Path)
    first.add_argument("--env-option", action="append", default=[])
    known, rest = first.parse_known_args(list(arguments))
    console = Console()
    if known.resume is not None:
        if rest or known.env:
            raise UnknownOption("--resume takes the run's own options; give no others")
        resume_run(known.resume, console)
        return 0
    helping = any(a in ("-h", "--help") for a in rest)
    if known.env is None and not helping:
        raise UnknownOption(f"which environment? --env {{{','.join(e.name for e in list_envs())}}}  (or --resume RUN)")
    entry = find_entry(known.env or list_envs()[0].name)
    preset, reason = choose(entry, known.model) if known.env is not None else (Config(env=entry.id), "")
    config = tyro.cli(
        Config, default=preset, args=rest,
        prog="python -m tstar_train --env ENV [--model auto|tiny|NAME|PATH] [--env-option KEY=VALUE] [--out FOLDER]",
        description="Train an agent. Defaults are those of the preset for --env and --model (the paper's where no --env is named).",
    )  # fmt: skip
    console.print(reason, highlight=False, soft_wrap=True)
    config = dataclasses.replace(config, env_options={**config.env_options, **dict(map(_option, known.env_option))})
    method = f"tstar-{config.algo}" if config.tstar else config.algo
    out = known.out or Path("runs") / f"{entry.name}-{method}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    train(dataclasses.replace(config, env=entry.id), out, console)
    return 0


def _option(text: str) -> tuple[str, Any]:
    """``KEY=VALUE``; a value that is a Python literal (7, True, None) counts as one, else it is text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UnknownOption(f"--env-option takes KEY=VALUE, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def warmstart_command(arguments: Sequence[str]) -> int:
    """``python -m tstar_train warmstart --env ENV --out FOLDER``."""
    parser = argparse.ArgumentParser(prog="python -m tstar_train warmstart", description="Make a tiny policy by imitation.")
    parser.add_argument("--env", default="hotpotqa", help="environment whose family the weights are for")
    parser.add_argument("--out", type=Path, required=True, help="folder for model, tokenizer and the record of how they were made")
    parser.add_argument("--steps", type=int, default=None, help="updates per stage (default: as the shipped weights)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(list(arguments))
    build_weights(find_entry(options.env), options.out, options.seed, options.steps, Console())
    return 0
