"""Sampling engines behind one protocol, and the factory for a run's engine."""

from __future__ import annotations

import importlib.util

from tstar_train.config import Config
from tstar_train.distributed import Communicator
from tstar_train.engines.base import Engine
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.model import Policy


def require_engine(config: Config, device: str) -> None:
    """Check that the engine's package is installed, before a run makes anything.

    vLLM is not imported here; the sampling process imports it.

    Raises:
        MissingExtra: vLLM is not installed.
    """
    if config.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        from tstar_train.engines.vllm import missing_vllm

        raise missing_vllm(device)


def make_engine(config: Config, policy: Policy, world: Communicator) -> Engine:
    """Make one rank's sampling engine.

    Raises:
        MissingExtra: the engine's package is not installed.
        UnknownOption: the engine cannot serve this model.
    """
    rollout = config.rollout
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
    asked = config.tstar and config.tree.nodes == "depth"  # its KL estimates continue from sampled rows
    return LocalEngine(
        policy, rollout.max_sequences, rollout.context_tokens, rollout.cache_gib, keep_rows=asked
    )
