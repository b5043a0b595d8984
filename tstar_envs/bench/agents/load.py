"""From what ``--agent`` says to an agent: a built-in name, a trained policy by path, or ``module:object`` for the user's own."""

from __future__ import annotations

import importlib
import inspect
import math
from typing import Any

from tstar_envs.bench.agents.oracle import OracleAgent
from tstar_envs.bench.agents.protocol import Agent, FunctionAgent
from tstar_envs.bench.agents.random import RandomAgent
from tstar_envs.errors import MissingExtra, TStarError, UnknownOption

BUILT_IN = ("random", "oracle", "tiny")
# By name only: this package never imports the trainer, which brings torch.
_TINY = "tstar_train.agent:load_agent"
_TINY_OPTIONS = "tstar_train.agent:environment_options"
_FORMS = (
    "valid: random, oracle, oracle:KIND, tiny, tiny:PATH (a trained policy), or module:object, where object is an agent (with "
    "act(observation, info) -> str and, if it likes, reset(observation, info)), a class or factory of one that needs no "
    "arguments, or a function (observation, info) -> str"
)


def load_agent(spec: str, *, env_id: str, seed: int, temperature: float | None = None) -> Agent:
    """Find an agent.

    Args:
        spec: ``random``, ``oracle``, ``oracle:KIND``, ``tiny``, ``tiny:PATH`` or ``module:object``.
        env_id: a factory that has a parameter ``env_id`` gets it.
        seed: likewise ``seed``.
        temperature: likewise ``temperature``, 0 or more (0 is greedy); None leaves it to the agent.

    Raises:
        UnknownOption: nothing there, or not an agent (the valid forms are listed); a temperature that is none, or for an agent that
            takes none.
        MissingExtra: ``tiny`` without the trainer's packages.
    """
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise UnknownOption(f"temperature must be a number of 0 or more, got {temperature}")
    if spec in ("random", "oracle") or spec.startswith("oracle:"):
        if temperature is not None:
            raise _no_temperature(spec, temperature)
        return RandomAgent() if spec == "random" else OracleAgent(spec.partition(":")[2] or "expert")
    offered: dict[str, Any] = {"env_id": env_id, "seed": seed}
    if temperature is not None:
        offered["temperature"] = temperature
    if spec.startswith("tiny:") and spec != "tiny:":
        offered["model"] = spec.removeprefix("tiny:")
        spec = "tiny"
    module_name, colon, path = (_TINY if spec == "tiny" else spec).partition(":")
    if not colon or not module_name or not path:
        raise UnknownOption(f"unknown agent {spec!r}; {_FORMS}")
    found: Any = _import(spec, module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise UnknownOption(f"agent {spec!r}: {module_name} has no {path!r}; {_FORMS}")
        found = getattr(found, part)
    return _as_agent(spec, found, offered)


def options_of(spec: str, *, env_id: str, seed: int) -> dict[str, Any]:
    """The options that an agent wishes its environment to have, so that another one can be evaluated under the same.

    Args:
        spec: as for ``load_agent``; of ``tiny`` and ``tiny:PATH`` no weights are read.
        env_id: the environment.
        seed: for a factory that has a parameter ``seed``.

    Raises:
        UnknownOption: no such agent.
        MissingExtra: ``tiny`` without the trainer's packages.
    """
    if spec == "tiny" or spec.startswith("tiny:"):
        module_name, _, name = _TINY_OPTIONS.partition(":")
        options: dict[str, Any] = getattr(_import("tiny", module_name), name)(env_id, spec.partition(":")[2] or "tiny")
        return options
    return dict(getattr(load_agent(spec, env_id=env_id, seed=seed), "env_options", {}))


def _import(spec: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if spec == "tiny":
            raise MissingExtra("the tiny agent", error.name or "tstar_train", "train") from error
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            message = f"agent {spec!r}: no module {error.name!r} here or among the installed packages; {_FORMS}"
            raise UnknownOption(message) from error
        raise UnknownOption(f"agent {spec!r}: importing {module_name} failed: {error}") from error
    except TStarError:
        raise
    except Exception as error:  # the user's module: whatever it raises is shown as one line
        raise UnknownOption(f"agent {spec!r}: importing {module_name} raised {type(error).__name__}: {error}") from error


def _no_temperature(spec: str, temperature: float) -> UnknownOption:
    return UnknownOption(
        f"agent {spec!r} takes no temperature, got {temperature}: leave it out, or name an agent whose class or factory has a parameter "
        "temperature (tiny and tiny:PATH do)"
    )


def _as_agent(spec: str, found: Any, offered: dict[str, Any]) -> Agent:
    if not isinstance(found, type) and callable(getattr(found, "act", None)):
        if "temperature" in offered:
            raise _no_temperature(spec, offered["temperature"])
        return _complete(spec, found)
    if not callable(found):
        raise UnknownOption(f"agent {spec!r} is a {type(found).__name__}, which is no agent; {_FORMS}")
    try:
        signature = inspect.signature(found)
    except ValueError as error:  # some built-in callables tell nothing
        raise UnknownOption(f"agent {spec!r} cannot be called as an agent; {_FORMS}") from error
    arguments = {name: value for name, value in offered.items() if name in signature.parameters}
    if "temperature" in offered and "temperature" not in arguments:
        raise _no_temperature(spec, offered["temperature"])
    if _fits(signature, **arguments):
        return _complete(spec, _make(spec, found, arguments))
    if not isinstance(found, type) and _fits(signature, "observation", {}):
        return FunctionAgent(found)
    raise UnknownOption(f"agent {spec!r} needs other arguments, {signature}; {_FORMS}")


def _fits(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _make(spec: str, factory: Any, arguments: dict[str, Any]) -> Any:
    try:
        return factory(**arguments)
    except ModuleNotFoundError as error:
        if spec == "tiny":  # the trainer may import its packages late
            raise MissingExtra("the tiny agent", error.name or "torch", "train") from error
        raise UnknownOption(f"agent {spec!r}: {error}") from error
    except TStarError:
        raise
    except Exception as error:  # the user's code: whatever it raises is shown as one line
        raise UnknownOption(f"agent {spec!r}: making it raised {type(error).__name__}: {error}") from error


def _complete(spec: str, agent: Any) -> Agent:
    if not callable(getattr(agent, "act", None)):
        raise UnknownOption(f"agent {spec!r} made a {type(agent).__name__} without act(observation, info); {_FORMS}")
    if not isinstance(getattr(agent, "env_options", {}), dict):
        raise UnknownOption(f"agent {spec!r}: env_options must be a dict, found {agent.env_options!r:.80}")
    if not callable(getattr(agent, "reset", None)):
        wrapped = FunctionAgent(agent.act)
        wrapped.__dict__.update({name: getattr(agent, name) for name in ("env_options", "bind", "privileged") if hasattr(agent, name)})
        return wrapped
    complete: Agent = agent
    return complete
