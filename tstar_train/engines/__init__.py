"""Sampling engines behind one contract, and the one that a run's options name."""

from __future__ import annotations

import importlib.util

from tstar_train.config import Config
from tstar_train.distributed import Communicator
from tstar_train.engines.base import Engine
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.model import Policy


def require_engine(config: Config, device: str) -> None:
    """Look for what the engine needs, before anything is made; vLLM itself is imported by the process that samples.

    Raises:
        MissingExtra: it is not installed.
    """
    if config.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        from tstar_train.engines.vllm import missing_vllm

        raise missing_vllm(device)


def make_engine(config: Config, policy: Policy, world: Communicator) -> Engine:
    """One rank's engine.

    Raises:
        MissingExtra: what it needs is not installed.
        UnknownOption: it cannot serve this model.
    """
    rollout = config.rollout
    if config.engine == "vllm":
        from tstar_train.engines.vllm import VLLMEngine  # brings vLLM, which takes ten seconds to import

        return VLLMEngine(
            policy,
            rollout.max_sequences,
            rollout.context_tokens,
            rollout.cache_gib,
            config.vllm.memory,
            rank=world.rank,
            ranks=world.size,
        )
    asked = config.tstar and config.tree.nodes == "depth"  # whose estimates go on from what was played
    return LocalEngine(
        policy, rollout.max_sequences, rollout.context_tokens, rollout.cache_gib, keep_rows=asked
    )
