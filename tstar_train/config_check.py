"""Whether the values of a configuration make a run: checked before anything is computed or written."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch

from tstar_envs import MissingExtra, UnknownOption
from tstar_train.algorithms import ALGORITHMS, algorithm_class
from tstar_train.config import Config


class Range(NamedTuple):
    """Valid numbers: ``low`` to ``high``, both included unless they are open."""

    low: float
    high: float = math.inf
    open_low: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or math.isnan(value):
            return False
        return (value > self.low if self.open_low else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.open_low else f"{self.low:g} or more"
        return f"{'above' if self.open_low else 'from'} {self.low:g} {'and at most' if self.open_low else 'to'} {self.high:g}"


_FROM_0, _FROM_1, _ABOVE_0, _SHARE = Range(0), Range(1), Range(0, open_low=True), Range(0, 1)
RANGES = {
    "iterations": _FROM_0,
    "minutes": _ABOVE_0,
    "episodes": _FROM_1,
    "checkpoint_every": _FROM_1,
    "keep_checkpoints": _FROM_1,
    "threads": _FROM_1,
    "processes": _FROM_1,
    "helper_minutes": Range(0, 10_000, open_low=True),
    "optim.max_logprob_difference": _ABOVE_0,
    "rollout.cache_gib": _ABOVE_0,
    "lora.rank": _FROM_0,
    "vllm.memory": Range(0, 1, open_low=True),
    "lora.alpha": _ABOVE_0,
    "rollout.tasks": _FROM_1,
    "rollout.group": Range(2),  # a group of one has nothing to be compared with: its advantage is 0
    "rollout.max_tokens": _FROM_1,
    "rollout.context_tokens": Range(2),
    "rollout.temperature": _ABOVE_0,  # the update divides by it
    "rollout.history": _FROM_0,
    "rollout.horizon": _FROM_1,
    "rollout.invalid_penalty": _FROM_0,
    "rollout.revisit_penalty": _FROM_0,
    "rollout.progress_credit": _FROM_0,
    "rollout.batch": _FROM_1,
    "tree.eps_kl": _FROM_0,
    "tree.kl_samples": _FROM_1,
    "tree.gamma": Range(0, 1, open_low=True),
    "tree.delta": _FROM_0,
    "graft.temperature": _FROM_0,
    "graft.shrink": _FROM_0,
    "graft.weight": _FROM_0,
    "graft.beta": _ABOVE_0,
    "graft.alpha": _SHARE,
    "optim.learning_rate": _FROM_0,
    "optim.clip_low": _SHARE,
    "optim.clip_high": _FROM_0,
    "optim.negative_weight": _FROM_0,
    "optim.kl_coefficient": _FROM_0,
    "optim.max_gradient_norm": _ABOVE_0,
    "optim.max_loss": _ABOVE_0,
    "optim.updates": _FROM_1,
    "optim.decay": _SHARE,
    "optim.micro_tokens": _FROM_1,
    "ppo.critic_learning_rate": _FROM_0,
    "ppo.gamma": Range(0, 1, open_low=True),
    "ppo.lam": _SHARE,
    "ppo.value_weight": _FROM_0,
    "ppo.value_clip": _FROM_0,
    "dapo.rounds": _FROM_1,
    "dapo.overlong_buffer": _SHARE,
    "dapo.overlong_factor": _FROM_0,
    "gigpo.step_weight": _FROM_0,
    "gigpo.gamma": Range(0, 1, open_low=True),
    "gigpo.inner": Range(2),  # a turn that is compared with itself alone has advantage 0
    "evaluation.tasks": _FROM_1,
    "evaluation.samples": _FROM_1,
    "evaluation.validate_every": _FROM_0,
    "evaluation.validation_tasks": _FROM_1,
}
# For these infinity has a meaning: everything merges, nothing is clipped, no end.
_MAY_BE_INFINITE = {"minutes", "tree.eps_kl", "optim.max_gradient_norm", "optim.max_loss", "optim.clip_high"}


def check(config: Config) -> None:
    """Refuse values that no run can have.

    Raises:
        UnknownOption: a value of another type or out of its range, or two that exclude one another; option, value and what is valid
            are named.
    """
    for name, value, hint in options(config):
        if not is_a(value, hint):
            raise UnknownOption(f"{flag(name)} must be {expected(hint)}, got {value!r}")
        if name not in RANGES or value is None:
            continue
        if value not in RANGES[name]:
            raise UnknownOption(f"{flag(name)} must be {RANGES[name]}, got {value}")
        if value == math.inf and name not in _MAY_BE_INFINITE:
            raise UnknownOption(f"{flag(name)} must be a finite number, got {value}")
    _check_horizon(config)
    _check_algorithm(config)
    _check_device(config.device)
    if (
        config.optimizer == "deepspeed" and importlib.util.find_spec("deepspeed") is None
    ):  # only looked for: an import takes seconds
        raise MissingExtra("--optimizer deepspeed", "deepspeed", "deepspeed")


def _check_algorithm(config: Config) -> None:
    """T-STAR replaces a term for whole episodes, and processes share an iteration's tasks evenly."""
    if config.tstar and not algorithm_class(config.algo).carries_tstar:
        raise UnknownOption(
            f"--tstar stands on an algorithm that compares episodes of one task, which {config.algo} does not: leave --tstar out, or "
            f"choose --algo {' or '.join(name for name in ALGORITHMS if algorithm_class(name).carries_tstar)}"
        )
    if config.processes is not None and config.rollout.tasks % config.processes:
        fits = [n for n in range(1, config.rollout.tasks + 1) if config.rollout.tasks % n == 0]
        raise UnknownOption(
            f"--rollout.tasks {config.rollout.tasks} does not divide by --processes {config.processes}: give {' or '.join(map(str, fits))} "
            f"processes, or other tasks"
        )


def _check_horizon(config: Config) -> None:
    """A bound in steps and one that is a multiple of each task's optimum have no smaller one."""
    own, wanted = config.env_options.get("horizon"), config.rollout.horizon
    if isinstance(own, str) and wanted is not None:
        raise UnknownOption(
            f"--rollout.horizon {wanted} counts steps, --env-option horizon={own} is a multiple of each task's optimum: "
            "give --rollout.horizon None, which trains with the multiple too, or --env-option horizon=STEPS"
        )


def flag(name: str) -> str:
    """An option as the command line writes it: ``--tree.kl-samples`` for ``tree.kl_samples``."""
    return f"--{name.replace('_', '-')}"


def options(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, value, type) of each option, those of the parts included."""
    hints = get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            yield from options(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, hint


def is_a(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; whole numbers are also numbers, truth values are none."""
    if get_origin(hint) is Annotated:
        return is_a(value, get_args(hint)[0])
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is types.UnionType:
        return any(is_a(value, part) for part in get_args(hint))
    if hint in (int, float):  # True is an int in Python, but no number here; 1 is a float
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def expected(hint: Any) -> str:
    """An annotated type in words."""
    if get_origin(hint) is Annotated:
        return expected(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is types.UnionType:
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
    try:
        usable = torch.zeros(1, device=name).device.type != "meta"  # which has shapes but no numbers
        cause = "it holds no numbers"
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
