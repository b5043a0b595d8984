"""Sampling engines behind one protocol, and the factory for a run's engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from tstar_envs import UnknownOption
from tstar_train.config import Config, import_named
from tstar_train.distributed import Communicator
from tstar_train.engines.base import Engine
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.model import Policy

ENGINES = ("local", "paged", "vllm", "vllm-server")
_METHODS = ("generate", "logprobs", "sync", "clear_cache", "release")


def engine_class(name: str) -> Callable[[Config, Policy, Communicator], Engine]:
    """Import an engine of somebody's own, named ``module:Class``.

    Returns:
        The class; it is called with the run's options, the policy and the communicator of the ranks.

    Raises:
        UnknownOption: no such engine, or what the module holds under that name lacks a method of ``Engine``.
    """
    attribute = name.rpartition(":")[2]
    if ":" not in name:
        raise UnknownOption(
            f"--engine must be one of {', '.join(ENGINES)}, or module:Class for one of your own; got {name!r}"
        )
    found = import_named("--engine", name)
    lacking = [name for name in _METHODS if not callable(getattr(found, name, None))]
    if not isinstance(found, type) or lacking:
        kind = f"lacks {', '.join(lacking)}" if isinstance(found, type) else f"is a {type(found).__name__}"
        raise UnknownOption(
            f"--engine {name}: {attribute} must be a class with the methods of tstar_train.engines.base.Engine, but {kind}"
        )
    return found


def require_engine(config: Config, device: str) -> None:
    """Check that the engine and its package are there, before a run makes anything.

    vLLM is not imported here; the sampling process imports it.

    Raises:
        MissingExtra: vLLM is not installed.
        UnknownOption: see ``engine_class``, ``engines.paged.require_paged`` and ``vllm_serving.transfer_of``.
    """
    if config.engine not in ENGINES:
        engine_class(config.engine)
    if config.engine == "paged":
        from tstar_train.engines.paged import require_paged

        require_paged(device)
    needed = config.engine == "vllm"
    if config.engine == "vllm-server":
        from tstar_train.engines.vllm_serving import BY_DISK, transfer_of

        needed = config.server.url is None or transfer_of(config, device) not in BY_DISK
    if needed and importlib.util.find_spec("vllm") is None:
        from tstar_train.engines.vllm import missing_vllm

        raise missing_vllm(device, option=f"--engine {config.engine}")


def make_engine(config: Config, policy: Policy, world: Communicator, out: Path | None = None) -> Engine:
    """Make one rank's sampling engine.

    Args:
        config: of the run.
        policy: model and codec.
        world: communicator of the ranks.
        out: folder of the run, for an engine that writes there; None for a temporary one.

    Raises:
        MissingExtra: the engine's package is not installed.
        UnknownOption: the engine cannot serve this model.
    """
    rollout = config.rollout
    if config.engine not in ENGINES:
        return engine_class(config.engine)(config, policy, world)
    if config.engine == "vllm":
        from tstar_train.engines.vllm import VLLMEngine  # vLLM takes ten seconds to import

        return VLLMEngine(
            policy,
            rollout.max_sequences,
            rollout.context_tokens,
            rollout.cache_gib,
            config.vllm.memory,
            rank=world.rank,
            ranks=world.size,
        )
    if config.engine == "vllm-server":
        from tstar_train.engines.vllm_server import VLLMServerEngine

        return VLLMServerEngine(policy, config, world, out)
    if config.engine == "paged":
        from tstar_train.engines.paged import PagedEngine

        return PagedEngine(policy, rollout.max_sequences, rollout.context_tokens, rollout.cache_gib)
    # KL estimates and forks continue from sampled rows.
    asked = config.forks or (config.tstar and config.tree.nodes == "depth")
    return LocalEngine(
        policy, rollout.max_sequences, rollout.context_tokens, rollout.cache_gib, keep_rows=asked
    )


def close_engine(engine: Engine) -> None:
    """End what an engine has started beside this process, by its ``close()`` if it has one."""
    close = getattr(engine, "close", None)
    if callable(close):
        close()
