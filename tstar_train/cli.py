"""The commands' options: tyro over the configuration dataclasses, on top of a preset.

Modules that import torch are imported where they are needed: it takes seconds, and help and option errors do not need it.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console

from tstar_envs import UnknownOption, find_entry, list_envs, refuse_repeats
from tstar_envs.redaction import redacted
from tstar_train.config import RENAMED_OPTIONS, RENAMED_VALUES, Config
from tstar_train.config_check import DEPENDENT_OPTIONS, flag, options
from tstar_train.output import Output
from tstar_train.presets import (
    LARGE,
    chosen_for,
    option_for_each,
    read_shares,
    with_choices,
    with_environment_options,
)

if TYPE_CHECKING:
    from tstar_train.distributed import Communicator

_USAGE = """python -m tstar_train --env ENV [--env ENV:WEIGHT ...] [options]
       python -m tstar_train --resume RUN [--iterations N]
       python -m tstar_train warmstart --env ENV --out FOLDER
       python -m tstar_train warmstart --model PATH --env ENV [--env ENV2 ...] --out FOLDER"""

_BY_STATE = (
    "tree: nodes by state, which asks the policy nothing: --tree.eps-kl, --tree.kl-*, --tree.history, --tree.same-parent and "
    "--tree.baseline are not used; {grafts} (--tree.nodes depth is the paper's tree)"
)


def train_command(arguments: Sequence[str]) -> int:
    """``python -m tstar_train --env ENV [options]`` or ``--resume RUN``."""
    first = _first_options()
    arguments, notes = with_present_options(arguments)
    refuse_repeats(arguments, _ONCE)
    known, rest = first.parse_known_args(list(arguments))
    if any(a in ("-h", "--help") for a in rest):
        _print_help(first, known, rest)
        return 0
    console = Output()
    if os.environ.get("RANK", "0") == "0":
        for note in notes:
            console.print(note, highlight=False)
    if "RANK" in os.environ:
        _take_rank(known, rest, console)
    else:
        _lead(known, rest, console, None)
    return 0


def with_present_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Replace old spellings of options.

    Args:
        arguments: of the command line.

    Returns:
        The arguments with present names and values, and a note for each old option.
    """
    old_flags = {}
    for old, new in RENAMED_OPTIONS.items():
        old_flags[flag(old)] = (old, flag(new))
        part, _, name = old.rpartition(".")
        if part:  # of a switch also the form that turns it off
            old_flags[flag(f"{part}.no_{name}")] = (old, flag(f"{part}.no_{new.rpartition('.')[2]}"))
    present: list[str] = []
    notes: dict[str, str] = {}
    values: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        given = name.replace("_", "-")
        if name.startswith("--") and given in old_flags:
            old, new = old_flags[given]
            notes[given] = f"{given} is now {new}; the old name works until the next release"
            values = RENAMED_VALUES.get(old, {})
            present.append(f"{new}{equals}{values.get(value, value)}")
            values = {} if equals else values
        else:
            present.append(values.get(argument, argument))
            values = {}
    return present, list(notes.values())


# Of others the last one counts, so that a script's can be overruled.
_ONCE = ("--model", "--out", "--resume")


def _take_rank(known: argparse.Namespace, rest: Sequence[str], console: Output) -> None:
    """Run as one rank of those that ``torchrun`` started."""
    from tstar_train.distributed import from_torchrun
    from tstar_train.ranks import leading_rank, torchrun_worker_loop

    torchrun = from_torchrun(_patience(rest))
    try:
        if torchrun is not None and torchrun.rank:
            # The options are the first rank's to read, and it says what is wrong with them.
            torchrun_worker_loop(torchrun)
        else:
            with leading_rank(torchrun):
                _lead(known, rest, console, torchrun)
    finally:
        if torchrun is not None:
            torchrun.close()


def _patience(arguments: Sequence[str]) -> float:
    """Read the timeout of the ranks early; invalid values are reported later."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    early.add_argument("--timeout-minutes", "--timeout_minutes", type=float, default=Config.timeout_minutes)
    with suppress(argparse.ArgumentError, SystemExit):
        minutes: float = early.parse_known_args(list(arguments))[0].timeout_minutes
        if 0 < minutes <= 10_000:
            return minutes
    return Config.timeout_minutes


def _lead(
    known: argparse.Namespace, rest: Sequence[str], console: Output, torchrun: Communicator | None
) -> None:
    """Run the command as the first rank, in most runs the only process."""
    if known.resume is not None:
        _resume(known, rest, console, torchrun)
        return
    if not known.env:
        raise UnknownOption(
            f"which environment? --env {{{','.join(e.name for e in list_envs())}}}  (or --resume RUN)"
        )
    config, reason = _config(known, rest)
    console.print(reason, highlight=False)
    if config.tstar and config.tree.nodes == "state":
        console.print(_BY_STATE.format(grafts=_grafts(config)), highlight=False)
    if known.dry_run:
        from tstar_train.plan import dry_run

        dry_run(config, console)
        return
    from tstar_train.run import train

    train(config, known.out, console, torchrun=torchrun)


def read_config(arguments: Sequence[str]) -> Config:
    """Read the options of ``python -m tstar_train --env ENV`` as that command does.

    Args:
        arguments: the words after ``tstar_train``, with an environment.

    Raises:
        UnknownOption: one is not an option, or an environment or its option is not known.
        SystemExit: a value is not one that its option takes; the message is printed.
    """
    known, rest = _first_options().parse_known_args(with_present_options(arguments)[0])
    return _config(known, rest)[0]


def _config(known: argparse.Namespace, rest: Sequence[str]) -> tuple[Config, str]:
    """Read the options of a new run; also says which preset was chosen and why."""
    shares = read_shares(known.env)
    entries = [share.entry for share in shares]
    preset, reason = chosen_for(shares, known.model, known.preset, known.recipe)
    preset = for_choices(preset, rest)
    config, unknown = tyro.cli(
        Config, default=preset, args=rest, return_unknown_args=True, prog="python -m tstar_train --env ENV"
    )
    if unknown:
        raise UnknownOption(_no_such_option(unknown[0], config))
    elsewhere = {"split": "--split"}
    own = option_for_each(entries, "--env-option", known.env_option, elsewhere)
    elsewhere["horizon"] = "--rollout.horizon"
    further = option_for_each(entries, "--training-option", known.training_option, elsewhere)
    return with_environment_options(config, own, further), reason


def _grafts(config: Config) -> str:
    """Say what is grafted with nodes by state, and where episodes begin."""
    if not config.graft.enabled:
        grafts = "no grafts unless --graft.enabled asks for them"
    else:
        grafts = f"grafts from --graft.source {config.graft.source}"
    return (
        f"{grafts}; forks take {config.explore.share:.0%} of the turns (--explore.share)"
        if config.forks
        else grafts
    )


def for_choices(preset: Config, arguments: Sequence[str], refuse: bool = True) -> Config:
    """Apply the defaults of the chosen algorithm, nodes, ways and forks to a preset; the command line overrides them.

    Args:
        preset: of environment and model.
        arguments: of the command line; what is missing or wrong in them is reported later.
        refuse: True to refuse options that would be ignored.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    switches = ("tstar", "tree.enabled", "graft.enabled", "graft.surgical", "graft.way_only", "graft.verify")
    for name in ("algo", "tree.nodes", "explore.share", "rollout.group_size", *DEPENDENT_OPTIONS):
        if name not in switches:
            early.add_argument(flag(name), dest=name, type=str if name == "algo" else _value, nargs="?")
    for name in switches:
        part, dot, last = name.rpartition(".")
        early.add_argument(flag(name), dest=name, action="store_true")
        early.add_argument(flag(f"{part}{dot}no_{last}"), dest=name, action="store_false")
    given = vars(early.parse_known_args([*map(_dashed, arguments)])[0])
    return with_choices(preset, {name: value for name, value in given.items() if value is not None}, refuse)


def _dashed(word: str) -> str:
    """Write an option as its help does; underscores are accepted as well."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _value(text: str) -> float | str:
    """Read a number or a word early; an invalid one is reported later."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def _first_options() -> argparse.ArgumentParser:
    """Make the parser of the options that choose the preset; its values are the defaults of all others."""
    parser = argparse.ArgumentParser(
        prog="python -m tstar_train",
        usage=_USAGE,
        add_help=False,
        allow_abbrev=False,
        description="Train an agent: measure it on held-out tasks, train it, measure it again, and write a report. `warmstart` makes a "
        "policy to start from by imitation (options: python -m tstar_train warmstart --help).",
    )
    which = parser.add_argument_group("what and where")
    _add_environments(which, "train on", "tasks")
    which.add_argument(
        "--model",
        metavar="MODEL",
        help="auto (the default: the built-in policy if the environment has one), tiny, or the name or path of a Hugging Face causal LM",
    )
    which.add_argument(
        "--preset",
        choices=sorted(LARGE),
        default=None,
        help="use the paper's hyperparameters for this model, and train it unless --model names another (for example its local path)",
    )
    which.add_argument(
        "--recipe",
        metavar="FILE",
        type=Path,
        default=None,
        help="use the settings of this recipe (docs/recipes.md) instead of the preset",
    )
    which.add_argument(
        "--dry-run",
        action="store_true",
        help="print the memory and time that the run would need and what would not fit; load and write nothing",
    )
    which.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        help="folder of the run; it must be new or empty (default: a new folder in runs/)",
    )
    which.add_argument(
        "--resume",
        metavar="RUN",
        type=Path,
        help="resume the run in this folder; other options allowed are --iterations, which makes the run longer, and --env-option and "
        "--training-option for values that hold a secret, which no file of the run keeps",
    )
    which.add_argument(
        "--training-option",
        metavar="[ENV:]KEY=VALUE",
        action="append",
        default=[],
        help="option of the environment in training only; evaluation does not use it; may be repeated",
    )
    return parser


def _print_help(first: argparse.ArgumentParser, known: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Print the help of both groups of options; with an environment, the defaults are those of its preset."""
    print(first.format_help())
    env = " and ".join(known.env or []) or None
    preset = (
        chosen_for(read_shares(known.env), known.model, known.preset, known.recipe)[0]
        if env is not None
        else Config(env=list_envs()[0].id)
    )
    preset = for_choices(preset, arguments, refuse=False)
    whose = (
        f"the preset for {env}"
        if env is not None
        else "the paper; with --env ENV (and --model) those of its preset are shown"
    )
    prog = "python -m tstar_train --env ENV"
    tyro.cli(
        Config, default=preset, args=["--help"], prog=prog, description=f"Defaults are those of {whose}."
    )


def _resume(
    known: argparse.Namespace, rest: Sequence[str], console: Console, torchrun: Communicator | None
) -> None:
    more = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    more.add_argument("--iterations")
    found, left = more.parse_known_args(list(rest))
    single = ("env", "model", "preset", "recipe", "dry_run", "out")
    others = [flag(name) for name in single if getattr(known, name)] + left
    if others:
        raise UnknownOption(
            f"--resume goes on with the run's own options and takes no others, got {' '.join(others)}"
        )
    iterations = found.iterations
    if iterations is not None and not (
        iterations.isascii() and iterations.isdigit() and len(iterations) < 10
    ):
        raise UnknownOption(f"--iterations must be a whole number, got {iterations!r:.40}")
    from tstar_train.run import resume_run

    secrets = {"env_options": known.env_option, "training_options": known.training_option}
    resume_run(known.resume, console, None if iterations is None else int(iterations), torchrun, secrets)


def _no_such_option(given: str, config: Config) -> str:
    """Format the error for an unknown option: the nearest names, or all."""
    names = [
        "--env",
        "--model",
        "--preset",
        "--recipe",
        "--dry-run",
        "--out",
        "--resume",
        "--env-option",
        "--training-option",
    ]
    names += [
        flag(name)
        for name, _, _ in options(config)
        if name not in ("env", "model", "env_options", "training_options", "mix", "mix_options")
    ]
    return (
        f"no option {given!r}; {_guess(given, names)} All with their defaults: python -m tstar_train --help"
    )


def _guess(given: str, names: Sequence[str]) -> str:
    """Suggest the nearest option names, or list all."""
    # A shared "--" alone must not count.
    near = difflib.get_close_matches(given.partition("=")[0], names, cutoff=0.7)
    return f"did you mean {' or '.join(near)}?" if near else f"valid: {', '.join(names)}."


def warmstart_command(arguments: Sequence[str]) -> int:
    """``python -m tstar_train warmstart --env ENV --out FOLDER``, or with ``--model PATH``."""
    if any(argument.partition("=")[0] == "--model" for argument in arguments):
        return _imitate_command(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m tstar_train warmstart",
        allow_abbrev=False,
        description="Make a tiny policy by imitation of an environment's expert. With --model PATH, train any Hugging Face causal LM by "
        "imitation of experts or of recorded episodes; its options: python -m tstar_train warmstart --model PATH --help",
    )
    parser.add_argument(
        "--env", default="hotpotqa", help="environment to imitate the expert of (default: hotpotqa)"
    )
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help=_MADE)
    parser.add_argument(
        "--steps",
        type=int,
        default=None,
        help="optimizer updates per training stage, 1 or more (default: as many as the shipped weights had)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the initial weights and of the demonstrations (default: 0)",
    )
    parser.add_argument(
        "--recipe",
        metavar="FILE",
        type=Path,
        default=None,
        help="recipe of the policy (docs/recipes.md; default: that of the environment, or a general one)",
    )
    options, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        from tstar_train.imitation.options import ImitationOptions

        if unknown[0].partition("=")[0] in {"--env-option", *_flags(ImitationOptions())}:
            raise UnknownOption(
                f"{unknown[0]} is an option of the imitation by a model of yours: give --model PATH as well"
            )
        names = ["--env", "--out", "--steps", "--seed", "--recipe", "--model"]
        raise UnknownOption(f"no option {unknown[0]!r}; {_guess(unknown[0], names)}")
    if options.steps is not None and options.steps < 1:
        raise UnknownOption(f"--steps must be 1 or more, got {options.steps}")
    from tstar_train.recipes.recipe import read_recipe
    from tstar_train.warmstart import build_weights

    recipe = None if options.recipe is None else read_recipe(options.recipe)
    build_weights(find_entry(options.env), options.out, options.seed, options.steps, Output(), recipe)
    return 0


_MADE = "new or empty folder for model, tokenizer and the record of how they were made"


def _flags(config: object) -> list[str]:
    """List the options of a dataclass as on the command line."""
    return [flag(name) for name, _, _ in options(config)]


def _add_environments(group: argparse._ActionsContainer, purpose: str, shared: str) -> None:
    """Add ``--env`` and ``--env-option``.

    Args:
        group: to add them to.
        purpose: of the environments, as a verb.
        shared: word for what several environments share.
    """
    group.add_argument(
        "--env",
        metavar="ENV[:WEIGHT]",
        action="append",
        help=f"environment to {purpose}; may be repeated, then each has its share of the {shared} by its weight (default: 1): "
        + ", ".join(e.name for e in list_envs()),
    )
    group.add_argument(
        "--env-option",
        metavar="[ENV:]KEY=VALUE",
        action="append",
        default=[],
        help="option of the environment, for example topk=1; may be repeated; of several environments it is for all that have it, or for "
        "ENV alone",
    )


def _imitate_command(arguments: Sequence[str]) -> int:
    """``python -m tstar_train warmstart --model PATH --env ENV --out FOLDER``."""
    from tstar_train.imitation.options import ImitationOptions, default_options, run_of

    first = argparse.ArgumentParser(
        prog="python -m tstar_train warmstart --model PATH",
        usage="python -m tstar_train warmstart --model PATH --env ENV[:WEIGHT] [--env ENV2 ...] --out FOLDER [options]",
        add_help=False,
        allow_abbrev=False,
        description="Train any causal LM by imitation: of the experts' demonstrations with thoughts, or of recorded episodes (--episodes). "
        "The loss is on the model's own tokens, in the form in which a run with the same --rollout options shows them. The result is an "
        "ordinary Hugging Face folder: python -m tstar_train --env ENV --model FOLDER.",
    )
    first.add_argument(
        "--model",
        metavar="MODEL",
        required=True,
        help="name or path of a Hugging Face causal LM; tiny, or the path of a policy of that kind, goes on from a built-in policy",
    )
    _add_environments(first, "imitate", "episodes")
    first.add_argument("--out", metavar="FOLDER", type=Path, help=_MADE)
    refuse_repeats(arguments, ("--model", "--out"))
    known, rest = first.parse_known_args(list(arguments))
    helped = any(argument in ("-h", "--help") for argument in rest)
    prog = "python -m tstar_train warmstart --model PATH"
    if helped:
        print(first.format_help())
        tyro.cli(ImitationOptions, args=["--help"], prog=prog, description="Further options.")
    if not known.env:
        raise UnknownOption(f"which environment? --env {{{','.join(e.name for e in list_envs())}}}")
    if known.out is None:
        raise UnknownOption(f"where to? --out FOLDER, a {_MADE}")
    shares = read_shares(known.env)
    preset, _ = chosen_for(shares, known.model, None)
    asked, unknown = tyro.cli(
        ImitationOptions, default=default_options(preset), args=rest, return_unknown_args=True, prog=prog
    )
    if unknown:
        names = ["--model", "--env", "--out", "--env-option", *_flags(asked)]
        of_recipes = "; it belongs to a policy made from scratch, so leave --model out" * (
            unknown[0].partition("=")[0] == "--recipe"
        )
        raise UnknownOption(f"no option {unknown[0]!r}{of_recipes}; {_guess(unknown[0], names)}")
    entries = [share.entry for share in shares]
    own = option_for_each(entries, "--env-option", known.env_option, {"split": "--tasks"})
    config = run_of(with_environment_options(preset, own, {}), asked)
    from tstar_train.imitation.train import imitate_model

    command = shlex.join(["python", "-m", "tstar_train", "warmstart", *arguments])
    imitate_model(config, asked, known.out, Output(), redacted(command))
    return 0
