"""The commands' options: tyro over the configuration dataclasses, on top of a preset."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import time
from collections.abc import Sequence
from pathlib import Path

import tyro
from rich.console import Console

from tstar_envs import UnknownOption, find_entry, list_envs, parse_options
from tstar_train.config import Config
from tstar_train.config_check import flag, options
from tstar_train.presets import choose
from tstar_train.run import resume_run, train
from tstar_train.warmstart.build import build_weights


def train_command(arguments: Sequence[str]) -> int:
    """``python -m tstar_train --env ENV [options]`` or ``--resume RUN``."""
    # The environment and the model choose the preset, whose values are then the defaults that tyro shows and overrides.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--env")
    first.add_argument("--model")
    first.add_argument("--out", type=Path)
    first.add_argument("--resume", type=Path)
    first.add_argument("--env-option", action="append", default=[])
    first.add_argument("--training-option", action="append", default=[])
    known, rest = first.parse_known_args(list(arguments))
    console = Console()
    if known.resume is not None:
        others = [flag(name) for name in ("env", "model", "out", "env_option", "training_option") if getattr(known, name)] + rest
        if others:
            raise UnknownOption(f"--resume goes on with the run's own options and takes no others, got {' '.join(others)}")
        resume_run(known.resume, console)
        return 0
    helping = any(a in ("-h", "--help") for a in rest)
    if known.env is None and not helping:
        raise UnknownOption(f"which environment? --env {{{','.join(e.name for e in list_envs())}}}  (or --resume RUN)")
    entry = find_entry(known.env or list_envs()[0].name)
    preset, reason = choose(entry, known.model or "auto") if known.env is not None else (Config(env=entry.id), "")
    config, unknown = tyro.cli(
        Config, default=preset, args=rest, return_unknown_args=True,
        prog="python -m tstar_train --env ENV [--model auto|tiny|NAME|PATH] [--env-option KEY=VALUE] [--training-option KEY=VALUE]"
        " [--out FOLDER]",
        description="Train an agent. Defaults are those of the preset for --env and --model (the paper's where no --env is named).",
    )  # fmt: skip
    if unknown:
        raise UnknownOption(_no_such_option(unknown[0], config))
    console.print(reason, highlight=False, soft_wrap=True)
    own = parse_options(entry, known.env_option, {"split": "--split"})
    further = parse_options(entry, known.training_option, {"split": "--split", "horizon": "--rollout.horizon"})
    config = dataclasses.replace(
        config, env_options={**config.env_options, **own}, training_options={**config.training_options, **further}
    )
    method = f"tstar-{config.algo}" if config.tstar else config.algo
    out = known.out or Path("runs") / f"{entry.name}-{method}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    train(dataclasses.replace(config, env=entry.id), out, console)
    return 0


def _no_such_option(given: str, config: Config) -> str:
    """What to say of an option that there is not: the nearest ones, or all."""
    names = ["--env", "--model", "--out", "--resume", "--env-option", "--training-option"]
    names += [flag(name) for name, _, _ in options(config) if name not in ("env", "model", "env_options", "training_options")]
    near = difflib.get_close_matches(given.partition("=")[0], names, cutoff=0.7)  # a shared "--" alone must not count
    listed = f"did you mean {' or '.join(near)}?" if near else f"valid: {', '.join(names)}."
    return f"no option {given!r}; {listed} All with their defaults: python -m tstar_train --help"


def warmstart_command(arguments: Sequence[str]) -> int:
    """``python -m tstar_train warmstart --env ENV --out FOLDER``."""
    parser = argparse.ArgumentParser(prog="python -m tstar_train warmstart", description="Make a tiny policy by imitation.")
    parser.add_argument("--env", default="hotpotqa", help="environment that the weights are for")
    parser.add_argument("--out", type=Path, required=True, help="folder for model, tokenizer and the record of how they were made")
    parser.add_argument("--steps", type=int, default=None, help="updates per stage (default: as the shipped weights)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(list(arguments))
    build_weights(find_entry(options.env), options.out, options.seed, options.steps, Console())
    return 0
