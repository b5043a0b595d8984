"""Configuration checks, run before anything is computed or written."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from tstar_envs import MissingExtra, UnknownOption, find_entry
from tstar_envs.redaction import redacted
from tstar_train.algorithms import ALGORITHMS, algorithm_class
from tstar_train.config import FLAG_PARTS, Config, ServerConfig, range_of


def check(config: Config) -> None:
    """Check that all options are valid.

    Raises:
        UnknownOption: a value has the wrong type or is out of range, or two options exclude each other. The message names the option,
            its value and the valid ones.
        MissingExtra: a package that an option needs is not installed.
    """
    check_values(config)
    _check_mix(config)
    for env in config.environments:
        _check_horizon(config.of(env))
    _check_growth(config)
    _check_algorithm(config)
    _check_graph(config)
    _check_course(config)
    _check_ahead(config)
    _check_server(config)
    _check_device(config.device)
    if config.learner == "deepspeed" and config.optim.optimizer == "muon":
        raise UnknownOption(
            "--optim.optimizer muon needs whole matrices, of which --learner deepspeed gives each process a part: use --learner torch"
        )
    # Only find it: importing it takes seconds.
    if config.learner == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise MissingExtra("--learner deepspeed", "deepspeed", "deepspeed")


def check_values(config: Any) -> None:
    """Check that each option has a valid value for itself.

    Args:
        config: a dataclass of options, with nested parts.

    Raises:
        UnknownOption: a value has the wrong type or is out of range.
    """
    for name, value, hint in options(config):
        if not is_a(value, hint):
            raise UnknownOption(f"{flag(name)} must be {expected(hint)}, got {value!r}")
        valid = range_of(hint)
        if valid is None or not isinstance(value, int | float):  # none, or a word beside the numbers
            continue
        if value not in valid:
            words = "".join(f" or {word}" for word in _words(hint))
            raise UnknownOption(f"{flag(name)} must be {valid}{words}, got {value}")
        if value == math.inf and not valid.infinite:
            raise UnknownOption(f"{flag(name)} must be a finite number, got {value}")


def _check_algorithm(config: Config) -> None:
    """Check that the algorithm supports T-STAR, and that the processes divide the tasks evenly."""
    if config.tstar and not algorithm_class(config.algo).carries_tstar:
        raise UnknownOption(
            f"--tstar needs an algorithm that compares episodes of one task, which {config.algo} does not: leave --tstar out, or "
            f"choose --algo {' or '.join(name for name in ALGORITHMS if algorithm_class(name).carries_tstar)}"
        )
    if config.processes is not None and config.rollout.tasks_per_iteration % config.processes:
        fits = [
            n
            for n in range(1, config.rollout.tasks_per_iteration + 1)
            if config.rollout.tasks_per_iteration % n == 0
        ]
        raise UnknownOption(
            f"--rollout.tasks-per-iteration {config.rollout.tasks_per_iteration} does not divide by "
            f"--processes {config.processes}: give {' or '.join(map(str, fits))} "
            f"processes, or other tasks"
        )


def _check_graph(config: Config) -> None:
    """Check that ways and forks have the graph that they need."""
    asked = {
        f"--graft.source {config.graft.source}": config.tstar and config.graft.source != "divergence",
        f"--explore.share {config.explore.share}": config.explore.share > 0,
        "--graft.way-only": config.tstar and config.graft.way_only,
        "--tree.values bellman": config.tstar and config.tree.values == "bellman",
    }
    for name in (name for name, on in asked.items() if on):
        if not config.tstar:
            carried = algorithm_class(config.algo).carries_tstar
            other = "give --tstar" if carried else f"choose another --algo than {config.algo}, which has none"
            raise UnknownOption(f"{name} needs T-STAR: {other}, or leave it out")
        if config.tree.nodes != "state":
            raise UnknownOption(f"{name} needs the graph of states: give --tree.nodes state")
    if config.graft.way_only and config.tstar and not config.imitates_ways:
        raise UnknownOption(
            "--graft.way-only needs ways to imitate: give --graft.source way --graft.loss imitate"
        )
    if config.forks and config.tree.values != "bellman":
        raise UnknownOption(
            f"--explore.share {config.explore.share} needs values solved on the graph, since forks that stop in a known state have no "
            f"reward of their own: give --tree.values bellman, got {config.tree.values}"
        )
    if config.forks and not config.tree.enabled:
        raise UnknownOption(
            f"--explore.share {config.explore.share} needs the tree's credit, which --tree.no-enabled turns off: leave one out"
        )
    size = config.rollout.group_size
    if config.forks and config.first_episodes >= size:
        most = f"{math.ceil(1000 / size) / 1000} or more" if size > 2 else "0"
        raise UnknownOption(
            f"--explore.share {config.explore.share} leaves no turns for forks: of --rollout.group-size {size} all {size} episodes begin "
            f"at the start (at least two do); give --explore.share {most}, or a larger group"
        )


# Options that do nothing alone: the value that asks for nothing, and the parts that the others need (keys of ``parts`` below).
_NEEDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "tree.values": ("mean", ("T-STAR", "values")),
    "tree.credit": (None, ("T-STAR", "the tree's credit", "credit by turns")),
    "graft.source": ("divergence", ("T-STAR", "grafts")),
    "graft.way_only": (False, ("T-STAR",)),
    "graft.loss": ("imitate", ("T-STAR", "ways")),
    "graft.way_weight": (1.0, ("T-STAR", "ways to imitate")),
    "graft.keep": ("iteration", ("T-STAR", "grafted thoughts", "the surgical loss")),
    "graft.batch": (None, ("T-STAR", "grafted thoughts", "a set that is kept")),
    "graft.verify": (False, ("T-STAR", "grafted thoughts")),
    "explore.where": ("reach", ("T-STAR", "forks")),
    "explore.first": ("policy", ("T-STAR", "forks")),
    "explore.weights": ("equal", ("T-STAR", "forks", "credit by turns")),
    "explore.credit": ("rows", ("T-STAR", "forks")),
}
DEPENDENT_OPTIONS = tuple(_NEEDS)


def check_effects(config: Config, given: Mapping[str, Any]) -> None:
    """Check that options that do nothing alone have beside them what they need.

    Args:
        config: with the options that the user gave.
        given: those options by dotted name; what a preset says is not refused.

    Raises:
        UnknownOption: an option would be ignored; the message names what it needs.
    """
    graft, carried = config.graft, algorithm_class(config.algo).carries_tstar
    parts = {
        "T-STAR": (config.tstar, "give --tstar" if carried else f"choose another --algo than {config.algo}"),
        "grafts": (graft.enabled, "leave out --graft.no-enabled"),
        "the tree's credit": (config.tree.enabled, "leave out --tree.no-enabled"),
        "values": (config.tree.enabled or config.makes_pairs, "leave out --tree.no-enabled"),
        "the surgical loss": (graft.surgical, "leave out --graft.no-surgical"),
        "ways": (graft.source != "divergence", "give --graft.source way"),
        "ways to imitate": (config.imitates_ways, "give --graft.source way --graft.loss imitate"),
        "grafted thoughts": (
            config.makes_pairs,
            "give --graft.source both" if graft.enabled else "give --graft.enabled",
        ),
        "a set that is kept": (config.keeps_grafts, "give --graft.keep all"),
        "forks": (
            config.explore.share > 0,
            "give --explore.share 0.5" + (" --rollout.group-size 4" if config.rollout.group_size < 4 else ""),
        ),
        "credit by turns": (
            not config.forks or config.explore.credit == "rows",
            "give --explore.credit rows",
        ),
    }
    for name, (nothing, needed) in _NEEDS.items():
        if name not in given or given[name] == nothing:
            continue
        for part, remedy in ((part, parts[part][1]) for part in needed if not parts[part][0]):
            said = flag(name) if given[name] is True else f"{flag(name)} {given[name]}"
            raise UnknownOption(f"{said} needs {part}: {remedy}, or leave {flag(name)} out")


def _check_course(config: Config) -> None:
    """Check that something grows for as long as ``--curriculum-until`` says."""
    plain = Config(env=config.env).curriculum_until
    grows = config.curriculum == "optimum" or config.rollout.horizon_growth is not None
    if config.curriculum_until != plain and not grows:
        raise UnknownOption(
            f"--curriculum-until {config.curriculum_until:g} is for what grows: give --curriculum optimum or --rollout.horizon-growth, or "
            f"leave it out"
        )


def _check_ahead(config: Config) -> None:
    """Check that sampling and update can go on side by side."""
    if not config.rollout.ahead:
        return
    name = f"--rollout.ahead {config.rollout.ahead}"
    if config.engine == "vllm":
        raise UnknownOption(
            f"{name} samples during the update, for which --engine vllm frees its memory: use --engine vllm-server, or --rollout.ahead 0"
        )
    if config.forks and config.explore.credit == "graph":
        raise UnknownOption(
            f"{name} computes credit with the weights that sampled, and --explore.credit graph with those of each step: leave one out"
        )


def _check_server(config: Config) -> None:
    """Check the sampling server's options: its URL, or the GPUs of one that the run starts."""
    server, plain = config.server, ServerConfig()
    given = [field.name for field in dataclasses.fields(server)]
    given = [name for name in given if getattr(server, name) != getattr(plain, name)]
    if given and config.engine != "vllm-server":
        raise UnknownOption(
            f"{flag(f'server.{given[0]}')} is for --engine vllm-server, got --engine {config.engine}: give that engine, or leave it out"
        )
    own = [name for name in given if name in ("devices", "tensor_parallel")]
    if server.url is not None and own:
        raise UnknownOption(
            f"--engine.url names a server that runs already, and {flag(f'server.{own[0]}')} is for one that the run starts: leave one out"
        )
    if server.url is not None:
        _check_url(server.url)
    devices = server.devices.split(",") if server.devices is not None else []
    if not all(re.fullmatch(r"\d+|(GPU|MIG)-[\w-]+", device) for device in devices):
        raise UnknownOption(
            f"--engine.devices must be GPUs with commas, as in CUDA_VISIBLE_DEVICES (6,7), got {server.devices!r}"
        )
    if server.tensor_parallel not in (None, len(devices) or 1):
        have = (
            f"--engine.devices {server.devices} names {len(devices)}"
            if devices
            else "without --engine.devices it has 1"
        )
        raise UnknownOption(
            f"--engine.tensor-parallel {server.tensor_parallel} needs as many GPUs of the server's own, and {have}: give both alike"
        )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    if "@" in parts.netloc or parts.query:
        raise UnknownOption(
            "--engine.url must hold no name, password or query, since config.json keeps it: set VLLM_API_KEY to the server's key"
        )
    if not usable or parts.path not in ("", "/"):
        raise UnknownOption(
            f"--engine.url must be the address of a vLLM server without a path, for example http://HOST:8000, got {redacted(url)!r}"
        )


def _check_horizon(config: Config) -> None:
    """Check horizons: a number of steps and a multiple of each task's optimum cannot be compared."""
    own, wanted = config.env_options.get("horizon"), config.rollout.horizon
    if isinstance(own, str) and config.rollout.horizon_growth is not None:
        raise UnknownOption(
            f"--rollout.horizon-growth {config.rollout.horizon_growth} counts steps, --env-option horizon={own} is a multiple of each "
            "task's optimum: leave one out, or give --env-option horizon=STEPS"
        )
    if isinstance(own, str) and wanted is not None:
        raise UnknownOption(
            f"--rollout.horizon {wanted} counts steps, --env-option horizon={own} is a multiple of each task's optimum: "
            "give --rollout.horizon None, which trains with the multiple too, or --env-option horizon=STEPS"
        )


def _check_mix(config: Config) -> None:
    """Check the weights and options of several environments."""
    if not config.mix:
        return
    wrong = [
        env for env, weight in config.mix.items() if not is_a(weight, float) or not 0 < weight < math.inf
    ]
    if wrong:
        raise UnknownOption(
            f"--env {wrong[0]}: the weight must be a finite number above 0, got {config.mix[wrong[0]]!r}"
        )
    others = [env for env in config.mix if env != config.env]
    if len(others) + 1 != len(config.mix) or set(others) != set(config.mix_options):
        raise UnknownOption(
            f"mix has {', '.join(config.mix)}, and must have {config.env} and the environments of mix_options: use make_config([...])"
        )


def _check_growth(config: Config) -> None:
    """Check that the horizon of an environment grows."""
    first, wanted = config.rollout.horizon_growth, config.rollout.horizon
    if first is None or not config.env:  # a recipe's, which names no environment
        return
    full = 0
    for env in config.environments:
        alone = config.of(env)
        own = {**alone.env_options, **alone.training_options}.get("horizon") or find_entry(env).horizon
        full = max(full, own if wanted is None else min(own, wanted))
    if first >= full:
        raise UnknownOption(
            f"--rollout.horizon-growth {first} is where the horizon begins, and training episodes have at most {full} steps: give less, "
            f"or leave it out"
        )


def flag(name: str) -> str:
    """Format an option as on the command line: ``--tree.kl-samples`` for ``tree.kl_samples``."""
    part, dot, last = name.rpartition(".")
    return f"--{FLAG_PARTS.get(part, part)}{dot}{last}".replace("_", "-")


def options(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, value, type) of each option, with those of nested parts."""
    hints = get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            yield from options(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, hint


_UNIONS = (types.UnionType, Union)  # ``int | None``; a union with a Literal or Annotated


def is_a(value: Any, hint: Any) -> bool:
    """Check whether a value has an annotated type; integers count as numbers, booleans do not."""
    if get_origin(hint) is Annotated:
        return is_a(value, get_args(hint)[0])
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) in _UNIONS:
        return any(is_a(value, part) for part in get_args(hint))
    if hint in (int, float):  # True is an int in Python, but not a number here; 1 is a float
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _words(hint: Any) -> list[str]:
    """List the words that a type allows."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    parts = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    return [word for part in parts for word in _words(part)]


def expected(hint: Any) -> str:
    """Describe an annotated type in words."""
    if get_origin(hint) is Annotated:
        return expected(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) in _UNIONS:
        return " or ".join(map(expected, get_args(hint)))
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        types.NoneType: "none",
    }
    return names.get(hint, "a mapping")


def _check_device(name: str) -> None:
    if name == "auto":
        return
    import torch  # imported late: it takes seconds, and the command line's help imports this module

    try:
        usable = torch.zeros(1, device=name).device.type != "meta"  # "meta" has shapes but no values
        cause = "its tensors have no values"
    except (RuntimeError, AssertionError, ValueError) as error:  # no such name, no such card, not compiled in
        usable, cause = False, str(error).partition("\n")[0]
    if not usable:
        count = torch.cuda.device_count()
        cards = (
            "".join(f", cuda:{i}" for i in range(count)) if count else " (this machine has no CUDA device)"
        )
        raise UnknownOption(
            f"--device must be auto, cpu{cards}, or another torch device that works here; got {name!r} ({cause:.150})"
        )
